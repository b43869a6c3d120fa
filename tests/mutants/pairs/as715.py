"""AS715: different offsets on a grid share a row of a table of biases."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge

GRID = ({"B": 4, "H": 5, "W": 3, "Dk": 6}, {"B": 5, "H": 4, "W": 2, "Dk": 8}, {"B": 6, "H": 7, "W": 4, "Dk": 5})
PAIRS = [
    ("AS715", "height_as_stride", *GRID),
    ("AS715", "sum_of_offsets", *GRID),
    ("AS715", "absolute_rows", *GRID),
    ("AS715", "class_token", *GRID),
    ("AS715", "side_as_stride", *GRID),
]


def by_offset(table, height, width):
    """(2h-1)(2w-1) H -> H N N, entry by entry, for tokens that lie row by row."""
    places = [divmod(token, width) for token in range(height * width)]
    rows = [[table[(y - v + height - 1) * (2 * width - 1) + x - u + width - 1] for v, u in places] for y, x in places]
    return torch.stack([torch.stack(row) for row in rows]).movedim(-1, 0)


def tokens(B, width, W):
    return torch.randn(B, W * (2 * W + 1), width)


class RightWindow(nn.Module):
    """The index is computed once, as for windows of pixels."""

    def __init__(self, width, n_heads, window):
        super().__init__()
        self.n_heads, self.window = n_heads, window
        self.table = nn.Parameter(torch.randn((2 * window[0] - 1) * (2 * window[1] - 1), n_heads))
        grid = torch.stack(torch.meshgrid(*map(torch.arange, window), indexing="ij")).flatten(1)
        self.register_buffer(
            "index", self.number((grid[:, :, None] - grid[:, None]).permute(1, 2, 0)), persistent=False
        )
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def number(self, offsets):
        height, width = self.window
        offsets = offsets + torch.tensor([height - 1, width - 1])
        return offsets[..., 0] * (2 * width - 1) + offsets[..., 1]

    def forward(self, x):
        B, N, D = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[self.index.view(-1)].view(N, N, -1).permute(2, 0, 1)  # wrong: AS715 height_as_stride
        weights = (q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(B, N, D))


class WrongWindow(RightWindow):
    def number(self, offsets):
        height, width = self.window
        offsets = offsets + torch.tensor([height - 1, width - 1])
        return offsets[..., 0] * (2 * height - 1) + offsets[..., 1]


def _height_as_stride(cls, B, H, W, Dk):
    return cls(H * Dk, H, (W, 2 * W + 1)), (tokens(B, H * Dk, W),), {}


def wrong_height_as_stride(B, H, W, Dk):
    return _height_as_stride(WrongWindow, B, H, W, Dk)


def right_height_as_stride(B, H, W, Dk):
    return _height_as_stride(RightWindow, B, H, W, Dk)


def reference_height_as_stride(module, x):
    bias = by_offset(module.table, *module.window)
    return merge(attend(*fused(x, module.qkv, module.n_heads), bias=bias), module.proj)


class RightPatches(nn.Module):
    """An embedding is read in the call, for torch's fused attention."""

    def __init__(self, width, n_heads, height, columns):
        super().__init__()
        self.n_heads, self.height, self.columns = n_heads, height, columns
        self.offsets = nn.Embedding((2 * height - 1) * (2 * columns - 1), n_heads)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def bias(self):
        place = torch.arange(self.height * self.columns)
        down, right = place // self.columns, place % self.columns
        down, right = down[:, None] - down + self.height - 1, right[:, None] - right + self.columns - 1
        return self.offsets(down * (2 * self.columns - 1) + right)

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for w in (self.q, self.k, self.v))
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias().movedim(-1, 0)[None])
        return self.o(context.transpose(1, 2).flatten(2))


class WrongPatches(RightPatches):
    def bias(self):
        place = torch.arange(self.height * self.columns)
        down, right = place // self.columns, place % self.columns
        down, right = down[:, None] - down + self.height - 1, right[:, None] - right + self.columns - 1
        return self.offsets(down + right)  # wrong: AS715 sum_of_offsets


class WrongSquare(RightPatches):
    """In a square, the row is a function of the distance in the sequence."""

    def bias(self):
        place = torch.arange(self.height * self.columns)
        down, right = place // self.columns, place % self.columns
        down, right = down[:, None] - down + self.height - 1, right[:, None] - right + self.columns - 1
        return self.offsets(down * self.columns + right)  # wrong: AS715 side_as_stride


def _side_as_stride(cls, B, H, W, Dk):
    return cls(H * Dk, H, W, W), (torch.randn(B, W * W, H * Dk),), {}


def wrong_side_as_stride(B, H, W, Dk):
    return _side_as_stride(WrongSquare, B, H, W, Dk)


def right_side_as_stride(B, H, W, Dk):
    return _side_as_stride(RightPatches, B, H, W, Dk)


def _sum_of_offsets(cls, B, H, W, Dk):
    return cls(H * Dk, H, 2 * W + 1, W), (tokens(B, H * Dk, W),), {}


def wrong_sum_of_offsets(B, H, W, Dk):
    return _sum_of_offsets(WrongPatches, B, H, W, Dk)


def right_sum_of_offsets(B, H, W, Dk):
    return _sum_of_offsets(RightPatches, B, H, W, Dk)


def reference_sum_of_offsets(module, x):
    q, k, v = (heads(x, one, module.n_heads) for one in (module.q, module.k, module.v))
    bias = by_offset(module.offsets.weight, module.height, module.columns)
    return merge(attend(q, k, v, bias=bias), module.o)


reference_side_as_stride = reference_sum_of_offsets


class RightTable(nn.Module):
    """A table with an axis for each direction, which all heads share."""

    def __init__(self, width, n_heads, height, columns):
        super().__init__()
        self.n_heads, self.shape = n_heads, (height, columns)
        self.table = nn.Parameter(torch.randn(2 * height - 1, 2 * columns - 1))
        self.in_proj = nn.Linear(width, 3 * width, bias=False)

    def bias(self):
        height, columns = self.shape
        y, x = torch.arange(height).repeat_interleave(columns), torch.arange(columns).repeat(height)
        return self.table[y[:, None] - y + height - 1, x[:, None] - x + columns - 1]

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.in_proj(x).chunk(3, dim=-1))
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5 + self.bias()
        return torch.einsum("bhij,bhjd->bihd", scores.softmax(dim=-1), v).flatten(2)


class WrongTable(RightTable):
    def bias(self):
        height, columns = self.shape
        y, x = torch.arange(height).repeat_interleave(columns), torch.arange(columns).repeat(height)
        return self.table[y[:, None] + 0 * y + height - 1, x[:, None] - x + columns - 1]  # wrong: AS715 absolute_rows


def _absolute_rows(cls, B, H, W, Dk):
    return cls(H * Dk, H, W, 2 * W + 1), (tokens(B, H * Dk, W),), {}


def wrong_absolute_rows(B, H, W, Dk):
    return _absolute_rows(WrongTable, B, H, W, Dk)


def right_absolute_rows(B, H, W, Dk):
    return _absolute_rows(RightTable, B, H, W, Dk)


def reference_absolute_rows(module, x):
    bias = by_offset(module.table.reshape(-1, 1), *module.shape)
    return merge(attend(*fused(x, module.in_proj, module.n_heads), bias=bias))


class RightClass(nn.Module):
    """A class token comes first, with three rows for its own pairs at the end of the table."""

    def __init__(self, width, n_heads, height, columns):
        super().__init__()
        self.n_heads, self.shape = n_heads, (height, columns)
        self.offsets = (2 * height - 1) * (2 * columns - 1)
        self.table = nn.Parameter(torch.randn(n_heads, self.offsets + 3))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def number(self, down, right):
        height, columns = self.shape
        return (down + height - 1) * (2 * columns - 1) + right + columns - 1

    def index(self):
        height, columns = self.shape
        y, x = torch.arange(height).repeat_interleave(columns), torch.arange(columns).repeat(height)
        whole = F.pad(self.number(y[:, None] - y, x[:, None] - x), (1, 0, 1, 0))
        whole[0], whole[:, 0], whole[0, 0] = self.offsets, self.offsets + 1, self.offsets + 2
        return whole

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        bias = self.table[:, self.index()]
        return self.out(((q @ k.mT / q.shape[-1] ** 0.5 + bias).softmax(-1) @ v).transpose(1, 2).flatten(2))


class WrongClass(RightClass):
    def number(self, down, right):
        columns = self.shape[1]
        return down.abs() * (2 * columns - 1) + right + columns - 1  # wrong: AS715 class_token


def _class_token(cls, B, H, W, Dk):
    return cls(H * Dk, H, W, 2 * W + 1), (torch.randn(B, 1 + W * (2 * W + 1), H * Dk),), {}


def wrong_class_token(B, H, W, Dk):
    return _class_token(WrongClass, B, H, W, Dk)


def right_class_token(B, H, W, Dk):
    return _class_token(RightClass, B, H, W, Dk)


def reference_class_token(module, x):
    grid = by_offset(module.table[:, :-3].T, *module.shape)
    own = module.table[:, -3:, None, None]
    first = torch.cat((own[:, 2], own[:, 0].expand(-1, 1, grid.shape[-1])), dim=-1)
    bias = torch.cat((first, torch.cat((own[:, 1].expand(-1, grid.shape[-1], 1), grid), dim=-1)), dim=1)
    return merge(attend(*fused(x, module.qkv, module.n_heads), bias=bias), module.out)
