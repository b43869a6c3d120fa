"""AS715 on a grid of three axes, such as frames of pixels."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge

VOLUMES = (
    {"B": 4, "H": 5, "W": 3, "Dk": 6},
    {"B": 5, "H": 6, "W": 2, "Dk": 8},
    {"B": 3, "H": 4, "W": 5, "Dk": 2},
)
PAIRS = [
    ("AS715", "volume_in_place", *VOLUMES),
    ("AS715", "volume_swapped_strides", *VOLUMES),
    ("AS715", "volume_mirrored", *VOLUMES),
]


def sides(W):
    return 2, W, 3


def rows(side):
    return (2 * side[0] - 1) * (2 * side[1] - 1) * (2 * side[2] - 1)


def by_offset(table, side):
    """One row for each offset of frames, rows and columns -> H N N, entry by entry."""
    counts = [2 * one - 1 for one in side]
    places = [(z, y, x) for z in range(side[0]) for y in range(side[1]) for x in range(side[2])]

    def row(a, b):
        z, y, x = (i - j + one - 1 for i, j, one in zip(a, b, side, strict=True))
        return table[z * counts[1] * counts[2] + y * counts[2] + x]

    return torch.stack([torch.stack([row(a, b) for b in places]) for a in places]).movedim(-1, 0)


class RightWindow(nn.Module):
    """The index is changed in place, one axis after the other."""

    def __init__(self, width, n_heads, window):
        super().__init__()
        self.n_heads, self.window = n_heads, window
        self.table = nn.Parameter(torch.randn(rows(window), n_heads))
        places = torch.stack(torch.meshgrid([torch.arange(side) for side in window], indexing="ij")).flatten(1)
        index = (places[:, :, None] - places[:, None, :]).permute(1, 2, 0).contiguous()
        for axis in range(3):
            index[:, :, axis] += window[axis] - 1
        index[:, :, 0] *= self.stride()
        index[:, :, 1] *= 2 * window[2] - 1
        self.register_buffer("index", index.sum(-1), persistent=False)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def stride(self):
        return (2 * self.window[1] - 1) * (2 * self.window[2] - 1)

    def forward(self, x):
        B, N, D = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[self.index.view(-1)].view(N, N, -1).permute(2, 0, 1)  # wrong: AS715 volume_in_place
        weights = (q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(B, N, D))


class WrongWindow(RightWindow):
    def stride(self):
        return 3 * self.window[1] - 1


def _volume_in_place(cls, B, H, W, Dk):
    return cls(H * Dk, H, sides(W)), (torch.randn(B, 6 * W, H * Dk),), {}


def wrong_volume_in_place(B, H, W, Dk):
    return _volume_in_place(WrongWindow, B, H, W, Dk)


def right_volume_in_place(B, H, W, Dk):
    return _volume_in_place(RightWindow, B, H, W, Dk)


def reference_volume_in_place(module, x):
    bias = by_offset(module.table, module.window)
    return merge(attend(*fused(x, module.qkv, module.n_heads), bias=bias), module.proj)


class RightVideo(nn.Module):
    """An embedding is read in the call, by frames, rows and columns, for torch's fused attention."""

    def __init__(self, width, n_heads, side):
        super().__init__()
        self.n_heads, self.side = n_heads, side
        self.offsets = nn.Embedding(rows(side), n_heads)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def offset(self):
        place = torch.arange(self.side[0] * self.side[1] * self.side[2])
        own = place // (self.side[1] * self.side[2]), place // self.side[2] % self.side[1], place % self.side[2]
        return [one[:, None] - one + side - 1 for one, side in zip(own, self.side, strict=True)]

    def bias(self):
        frame, down, right = self.offset()
        _, height, width = (2 * side - 1 for side in self.side)
        return self.offsets((frame * height + down) * width + right)

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for w in (self.q, self.k, self.v))
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias().movedim(-1, 0)[None])
        return self.o(context.transpose(1, 2).flatten(2))


class WrongVideo(RightVideo):
    def bias(self):
        frame, down, right = self.offset()
        _, height, width = (2 * side - 1 for side in self.side)
        return self.offsets((frame * height + down) * (width - 2) + right)  # wrong: AS715 volume_swapped_strides


def _volume_swapped_strides(cls, B, H, W, Dk):
    return cls(H * Dk, H, sides(W)), (torch.randn(B, 6 * W, H * Dk),), {}


def wrong_volume_swapped_strides(B, H, W, Dk):
    return _volume_swapped_strides(WrongVideo, B, H, W, Dk)


def right_volume_swapped_strides(B, H, W, Dk):
    return _volume_swapped_strides(RightVideo, B, H, W, Dk)


def reference_volume_swapped_strides(module, x):
    q, k, v = (heads(x, one, module.n_heads) for one in (module.q, module.k, module.v))
    return merge(attend(q, k, v, bias=by_offset(module.offsets.weight, module.side)), module.o)


class RightAxes(nn.Module):
    """A table with an axis for each direction of the offset, which all heads share."""

    def __init__(self, width, n_heads, side):
        super().__init__()
        self.n_heads, self.side = n_heads, side
        self.table = nn.Parameter(torch.randn([2 * one - 1 for one in side]))
        self.in_proj = nn.Linear(width, 3 * width, bias=False)

    def bias(self):
        places = torch.cartesian_prod(*(torch.arange(one) for one in self.side)).unbind(-1)
        z, y, x = (one[:, None] - one + side - 1 for one, side in zip(places, self.side, strict=True))
        return self.table[z, y, x]

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.in_proj(x).chunk(3, dim=-1))
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5 + self.bias()
        return torch.einsum("bhij,bhjd->bihd", scores.softmax(dim=-1), v).flatten(2)


class WrongAxes(RightAxes):
    def bias(self):
        places = torch.cartesian_prod(*(torch.arange(one) for one in self.side)).unbind(-1)
        z, y, x = (one[:, None] - one + side - 1 for one, side in zip(places, self.side, strict=True))
        return self.table[z, y, (x - 1).abs()]  # wrong: AS715 volume_mirrored


def _volume_mirrored(cls, B, H, W, Dk):
    return cls(H * Dk, H, sides(W)), (torch.randn(B, 6 * W, H * Dk),), {}


def wrong_volume_mirrored(B, H, W, Dk):
    return _volume_mirrored(WrongAxes, B, H, W, Dk)


def right_volume_mirrored(B, H, W, Dk):
    return _volume_mirrored(RightAxes, B, H, W, Dk)


def reference_volume_mirrored(module, x):
    bias = by_offset(module.table.reshape(-1, 1), module.side)
    return merge(attend(*fused(x, module.in_proj, module.n_heads), bias=bias))
