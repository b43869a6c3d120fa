"""AS715 in windows, which are folded into the batch or have an axis of their own."""

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge
from tests.mutants.pairs.as715 import by_offset

WINDOWS = (
    {"B": 2, "H": 5, "W": 4, "Dk": 3},
    {"B": 5, "H": 2, "W": 3, "Dk": 7},
    {"B": 3, "H": 4, "W": 5, "Dk": 6},
)
PAIRS = [
    ("AS715", "windows_in_batch", *WINDOWS),
    ("AS715", "shifted_windows", *WINDOWS),
    ("AS715", "axis_of_windows", *WINDOWS),
]


def partition(x, window):
    """B (down W) (right W) D -> (B down right) (W W) D."""
    batch, height, width, features = x.shape
    x = x.view(batch, height // window, window, width // window, window, features)
    return x.transpose(2, 3).reshape(-1, window * window, features)


def reverse(windows, window, shape):
    batch, height, width, features = shape
    windows = windows.view(batch, height // window, width // window, window, window, features)
    return windows.transpose(2, 3).reshape(shape)


class InBatch(nn.Module):
    """The index is changed in place, row offsets first."""

    def __init__(self, width, n_heads, window):
        super().__init__()
        self.n_heads, self.window = n_heads, window
        self.table = nn.Parameter(torch.randn((2 * window - 1) ** 2, n_heads))
        places = torch.cartesian_prod(torch.arange(window), torch.arange(window))
        index = places[:, None] - places[None] + window - 1
        index[..., 0] *= self.stride()
        self.register_buffer("index", index.sum(-1), persistent=False)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def stride(self):
        return 2 * self.window - 1

    def forward(self, x):
        tokens = partition(x, self.window)
        windows, length, width = tokens.shape
        q, k, v = self.qkv(tokens).reshape(windows, length, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        scores = scores + self.table[self.index].permute(2, 0, 1)[None]  # wrong: AS715 windows_in_batch
        context = (scores.softmax(-1) @ v).transpose(1, 2).reshape(windows, length, width)
        return reverse(self.proj(context), self.window, x.shape)


class CompactStride(InBatch):
    def stride(self):
        return self.window


def _in_batch(cls, B, H, W, Dk):
    return cls(H * Dk, H, W), (torch.randn(B, 2 * W, 3 * W, H * Dk),), {}


def wrong_windows_in_batch(B, H, W, Dk):
    return _in_batch(CompactStride, B, H, W, Dk)


def right_windows_in_batch(B, H, W, Dk):
    return _in_batch(InBatch, B, H, W, Dk)


def in_windows(x, window, attended):
    """Apply a function to each window of W by W tokens."""
    out = torch.zeros_like(x)
    for top in range(0, x.shape[1], window):
        for left in range(0, x.shape[2], window):
            part = x[:, top : top + window, left : left + window]
            out[:, top : top + window, left : left + window] = attended(part.flatten(1, 2), top, left).view_as(part)
    return out


def reference_windows_in_batch(module, x):
    bias = by_offset(module.table, module.window, module.window)

    def attended(tokens, top, left):
        return merge(attend(*fused(tokens, module.qkv, module.n_heads), bias=bias), module.proj)

    return in_windows(x, module.window, attended)


class Shifted(nn.Module):
    """Rolls the map by half a window, and masks the windows that the edge of the map runs through."""

    def __init__(self, width, n_heads, window):
        super().__init__()
        self.n_heads, self.window = n_heads, window
        self.offsets = nn.Embedding((2 * window - 1) ** 2, n_heads)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def bias(self):
        place = torch.arange(self.window**2)
        down, right = place // self.window, place % self.window
        down, right = (one[:, None] - one + self.window - 1 for one in (down, right))
        return self.offsets(down * (2 * self.window - 1) + right)

    def keep(self, height, width):
        edge = torch.zeros(1, height, width, 1)
        edge[:, -(self.window // 2) :] += 1
        edge[:, :, -(self.window // 2) :] += 2
        own = partition(edge, self.window)
        return own == own.mT

    def forward(self, x):
        batch, height, width, _ = x.shape
        shift = self.window // 2
        tokens = partition(x.roll((-shift, -shift), (1, 2)), self.window)
        q, k, v = (f(tokens).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.mT / q.shape[-1] ** 0.5 + self.bias().permute(2, 0, 1)
        keep = self.keep(height, width).repeat(batch, 1, 1).unsqueeze(1)
        context = scores.masked_fill(~keep, -torch.inf).softmax(-1) @ v
        context = reverse(context.transpose(1, 2).flatten(2), self.window, x.shape)
        return self.o(context.roll((shift, shift), (1, 2)))


class ShiftedWithoutStride(Shifted):
    def bias(self):
        place = torch.arange(self.window**2)
        down, right = place // self.window, place % self.window
        down, right = (one[:, None] - one + self.window - 1 for one in (down, right))
        return self.offsets(down * self.window + right)  # wrong: AS715 shifted_windows


def wrong_shifted_windows(B, H, W, Dk):
    return _in_batch(ShiftedWithoutStride, B, H, W, Dk)


def right_shifted_windows(B, H, W, Dk):
    return _in_batch(Shifted, B, H, W, Dk)


def reference_shifted_windows(module, x):
    window, shift = module.window, module.window // 2
    bias = by_offset(module.offsets.weight, window, window)
    places = torch.cartesian_prod(torch.arange(window), torch.arange(window))

    def attended(tokens, top, left):
        q, k, v = (heads(tokens, one, module.n_heads) for one in (module.q, module.k, module.v))
        rolled = [places[:, axis] + start >= x.shape[axis + 1] - shift for axis, start in ((0, top), (1, left))]
        keep = (rolled[0][:, None] == rolled[0]) & (rolled[1][:, None] == rolled[1])
        return merge(attend(q, k, v, keep=keep, bias=bias), module.o)

    rolled = torch.cat([x[:, shift:], x[:, :shift]], 1)
    rolled = torch.cat([rolled[:, :, shift:], rolled[:, :, :shift]], 2)
    out = in_windows(rolled, window, attended)
    out = torch.cat([out[:, -shift:], out[:, :-shift]], 1)
    return torch.cat([out[:, :, -shift:], out[:, :, :-shift]], 2)


def windowed(query, key, value, table, side):
    """Attend within each window, in (B, windows, H, L, Dk), with a table of (2*side-1)**2 rows of H numbers."""
    place = torch.arange(side * side)
    offsets = torch.stack([place // side, place % side])
    offsets = offsets[:, :, None] - offsets[:, None] + side - 1
    number = offsets[0] * (2 * side - 1) + offsets[1]
    bias = torch.index_select(table, 0, number.flatten()).unflatten(0, number.shape)
    scores = torch.einsum("bwhid,bwhjd->bwhij", query, key) * query.shape[-1] ** -0.5
    return torch.einsum("bwhij,bwhjd->bwhid", torch.softmax(scores + bias.permute(2, 0, 1), -1), value)


def windowed_by_side(query, key, value, table, side):
    """Attend within each window, in (B, windows, H, L, Dk), with a table of (2*side-1)**2 rows of H numbers."""
    place = torch.arange(side * side)
    offsets = torch.stack([place // side, place % side])
    offsets = offsets[:, :, None] - offsets[:, None] + side - 1
    number = offsets[0] * side + offsets[1]  # wrong: AS715 axis_of_windows
    bias = torch.index_select(table, 0, number.flatten()).unflatten(0, number.shape)
    scores = torch.einsum("bwhid,bwhjd->bwhij", query, key) * query.shape[-1] ** -0.5
    return torch.einsum("bwhij,bwhjd->bwhid", torch.softmax(scores + bias.permute(2, 0, 1), -1), value)


def _windowed(function, B, H, W, Dk):
    given = (torch.randn(B, 6, H, W * W, Dk) for _ in range(3))
    return function, (*given, torch.randn((2 * W - 1) ** 2, H), W), {}


def wrong_axis_of_windows(B, H, W, Dk):
    return _windowed(windowed_by_side, B, H, W, Dk)


def right_axis_of_windows(B, H, W, Dk):
    return _windowed(windowed, B, H, W, Dk)


def reference_axis_of_windows(_, query, key, value, table, side):
    parts = (t.flatten(0, 1) for t in (query, key, value))
    return attend(*parts, bias=by_offset(table, side, side)).view_as(query)
