"""AS410: windows of a rolled map hold tokens from both of its sides, and the mask doesn't keep them apart."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge

SIZES = (
    {"B": 3, "H": 5, "Dk": 6, "W": 4},
    {"B": 5, "H": 4, "Dk": 8, "W": 3},
    {"B": 6, "H": 7, "Dk": 8, "W": 4},
)
PAIRS = [
    ("AS410", "regions_of_other_roll", *SIZES),
    ("AS410", "numbers_used_twice", *SIZES),
    ("AS410", "first_window_masked", *SIZES),
]


def apart(sizes, width, shift):
    """Return which positions of a map are in the same window, where the windows begin `shift` positions later."""
    cells = torch.stack([(torch.arange(size) - shift).div(width, rounding_mode="floor") for size in sizes[:1]])
    for size in sizes[1:]:
        cell = (torch.arange(size) - shift).div(width, rounding_mode="floor")
        cells = torch.cat([cells.repeat_interleave(size, 1), cell.repeat(cells.shape[1])[None]])
    return (cells[:, :, None] == cells[:, None, :]).all(0)


def partition(x, width):
    B, Y, X, D = x.shape
    return x.view(B, Y // width, width, X // width, width, D).transpose(2, 3).reshape(-1, width * width, D)


class RightShifted(nn.Module):
    """Shifted windows over a map with its channels last; regions are numbered in the rolled map."""

    def __init__(self, dim, num_heads, window):
        super().__init__()
        self.num_heads, self.window, self.shift = num_heads, window, window // 2
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def same_region(self, Y, X):
        rows, columns = (torch.arange(size) >= size - self.shift for size in (Y, X))
        regions = partition((2 * rows[:, None] + columns)[None, :, :, None], self.window).squeeze(-1)
        return regions[:, :, None] == regions[:, None, :]

    def forward(self, x):
        B, Y, X, D = x.shape
        rolled = torch.roll(x, (-self.shift, -self.shift), dims=(1, 2))
        windows = partition(rolled, self.window)
        q, k, v = self.qkv(windows).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        attn = q @ k.transpose(-2, -1) * (D // self.num_heads) ** -0.5
        attn = attn.unflatten(0, (B, -1)).masked_fill(~self.same_region(Y, X)[:, None], float("-inf")).flatten(0, 1)
        out = self.proj((attn.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))
        out = out.view(B, Y // self.window, X // self.window, self.window, self.window, D).transpose(2, 3)
        return torch.roll(out.reshape(B, Y, X, D), (self.shift, self.shift), dims=(1, 2))


class WrongShifted(RightShifted):
    def same_region(self, Y, X):
        rows, columns = (torch.arange(size) < self.shift for size in (Y, X))
        regions = partition((2 * rows[:, None] + columns)[None, :, :, None], self.window).squeeze(-1)
        return regions[:, :, None] == regions[:, None, :]  # wrong: AS410 regions_of_other_roll


def _regions_of_other_roll(cls, B, H, Dk, W):
    return cls(H * Dk, H, W), (torch.randn(B, 2 * W, 3 * W, H * Dk),), {}


def wrong_regions_of_other_roll(B, H, Dk, W):
    return _regions_of_other_roll(WrongShifted, B, H, Dk, W)


def right_regions_of_other_roll(B, H, Dk, W):
    return _regions_of_other_roll(RightShifted, B, H, Dk, W)


def reference_regions_of_other_roll(module, x):
    q, k, v = fused(x.flatten(1, 2), module.qkv, module.num_heads)
    return merge(attend(q, k, v, apart(x.shape[1:3], module.window, module.shift)), module.proj).view(x.shape)


class RightMap(nn.Module):
    """Shifted windows over a map with its channels first, with fused attention and a mask that is added."""

    def __init__(self, channels, heads, window):
        super().__init__()
        self.heads, self.window, self.shift = heads, window, window // 2
        self.qkv = nn.Conv2d(channels, 3 * channels, 1, bias=False)

    def windows(self, t):
        w = self.window
        return t.unfold(2, w, w).unfold(3, w, w).flatten(4).flatten(2, 3).movedim(1, -1)

    def regions(self, Y, X):
        rows, columns = (torch.arange(size) >= size - self.shift for size in (Y, X))
        return rows[:, None] + 2.0 * columns

    def mask(self, Y, X):
        of_windows = self.windows(self.regions(Y, X)[None, None]).squeeze(-1)
        differ = of_windows[0, :, None, :] - of_windows[0, :, :, None]
        return torch.zeros_like(differ).masked_fill(differ != 0, -100.0)  # wrong: AS410 numbers_used_twice

    def forward(self, x):
        (Y, X), w = x.shape[2:], self.window
        tokens = self.windows(self.qkv(torch.roll(x, (-self.shift, -self.shift), dims=(2, 3))))
        q, k, v = tokens.unflatten(-1, (3, self.heads, -1)).permute(3, 0, 4, 1, 2, 5)
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask(Y, X).to(x.dtype))
        out = context.permute(0, 1, 4, 2, 3).flatten(1, 2)
        out = out.unflatten(-1, (w, w)).unflatten(2, (Y // w, X // w)).transpose(3, 4).flatten(4).flatten(2, 3)
        return torch.roll(out, (self.shift, self.shift), dims=(2, 3))


class WrongMap(RightMap):
    def regions(self, Y, X):
        rows, columns = (torch.arange(size) >= size - self.shift for size in (Y, X))
        return rows[:, None] + 1.0 * columns


def _numbers_used_twice(cls, B, H, Dk, W):
    return cls(H * Dk, H, W), (torch.randn(B, H * Dk, 2 * W, 3 * W),), {}


def wrong_numbers_used_twice(B, H, Dk, W):
    return _numbers_used_twice(WrongMap, B, H, Dk, W)


def right_numbers_used_twice(B, H, Dk, W):
    return _numbers_used_twice(RightMap, B, H, Dk, W)


def reference_numbers_used_twice(module, x):
    projected = torch.einsum("oi,biyx->boyx", module.qkv.weight[:, :, 0, 0], x).flatten(2).mT
    q, k, v = (torch.stack(t.chunk(module.heads, -1), 1) for t in projected.chunk(3, -1))
    keep = apart(x.shape[2:], module.window, module.shift)
    return merge(attend(q, k, v, keep)).mT.reshape(x.shape)


def right_parts(length, width):
    return torch.arange(length) >= length - width // 2


def shifted_sequence(q, k, v, heads, width, parts=right_parts):
    length = q.size(1)
    part = parts(length, width).unflatten(0, (-1, width))
    q, k, v = (t.roll(-(width // 2), dims=1).unflatten(1, (-1, width)).unflatten(-1, (heads, -1)) for t in (q, k, v))
    scores = torch.einsum("bnqhd,bnkhd->bnhqk", q, k) / q.size(-1) ** 0.5
    scores = scores.masked_fill((part[:, :, None] != part[:, None, :])[:, None], -torch.inf)
    context = torch.einsum("bnhqk,bnkhd->bnqhd", scores.softmax(-1), v)
    return context.flatten(1, 2).flatten(2).roll(width // 2, dims=1)


def wrong_parts(length, width):
    return torch.arange(length) < width // 2  # wrong: AS410 first_window_masked


def shifted_sequence_wrong(q, k, v, heads, width):
    return shifted_sequence(q, k, v, heads, width, wrong_parts)


def _first_window_masked(function, B, H, Dk, W):
    return function, (*(torch.randn(B, 3 * W, H * Dk) for _ in range(3)), H, W), {}


def wrong_first_window_masked(B, H, Dk, W):
    return _first_window_masked(shifted_sequence_wrong, B, H, Dk, W)


def right_first_window_masked(B, H, Dk, W):
    return _first_window_masked(shifted_sequence, B, H, Dk, W)


def reference_first_window_masked(function, q, k, v, heads, width):
    q, k, v = (torch.stack(t.chunk(heads, -1), 1) for t in (q, k, v))
    return merge(attend(q, k, v, apart(q.shape[2:3], width, width // 2)))
