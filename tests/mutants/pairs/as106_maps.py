"""AS106: the windows of a map whose pixels are one sequence are put back in another order than they were cut out."""

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from tests.mutants.plain import attention, multihead

SIZES = (
    {"B": 4, "H": 5, "Lq": 2, "Lk": 3, "Dk": 7},
    {"B": 6, "H": 4, "Lq": 3, "Lk": 5, "Dk": 11},
    {"B": 6, "H": 2, "Lq": 3, "Lk": 4, "Dk": 5},
)
PAIRS = [
    ("AS106", "height_and_width_exchanged", *SIZES),
    ("AS106", "counted_by_columns", *SIZES),
    ("AS106", "columns_concatenated", *SIZES),
]


def window_partition(x, size):
    B, height, width, C = x.shape
    x = x.view(B, height // size, size, width // size, size, C)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, size * size, C)


def window_reverse(windows, size, height, width):
    x = windows.view(-1, height // size, width // size, size, size, windows.shape[-1])
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(x.shape[0], height, width, -1)


class Block(nn.Module):
    """Attention within windows of three by three pixels, with a residual stream of pixels row by row."""

    def __init__(self, dim, heads, height, width):
        super().__init__()
        self.heads, self.height, self.width = heads, height, width
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def attend(self, windows):
        q, k, v = self.qkv(windows).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def together(self, windows):
        return window_reverse(windows, 3, self.height, self.width)

    def forward(self, x):
        image = self.norm(x).view(x.shape[0], self.height, self.width, -1)
        return x + self.together(self.attend(window_partition(image, 3))).flatten(1, 2)


class Exchanged(Block):
    def together(self, windows):
        return window_reverse(windows, 3, self.width, self.height)  # wrong: AS106 height_and_width_exchanged


def _block(cls, B, H, Lq, Lk, Dk):
    return cls(H * Dk, H, 3 * Lq, 3 * Lk), (torch.randn(B, 9 * Lq * Lk, H * Dk),), {}


def wrong_height_and_width_exchanged(B, H, Lq, Lk, Dk):
    return _block(Exchanged, B, H, Lq, Lk, Dk)


def right_height_and_width_exchanged(B, H, Lq, Lk, Dk):
    return _block(Block, B, H, Lq, Lk, Dk)


def reference_height_and_width_exchanged(module, x):
    image = x.unflatten(1, (module.height, module.width))
    out = image.clone()
    for row in range(0, module.height, 3):
        for column in range(0, module.width, 3):
            at = slice(None), slice(row, row + 3), slice(column, column + 3)
            q, k, v = module.qkv(module.norm(image[at].flatten(1, 2))).chunk(3, -1)
            out[at] += module.proj(multihead(q, k, v, module.heads)).unflatten(1, (3, 3))
    return out.flatten(1, 2)


def in_windows(back):
    """Return attention with one head within windows of two by two pixels, which `back` puts back."""

    def attend(q, k, v, grid):
        h, w = grid.shape
        cut = "b (h p w q) c -> (b h w) (p q) c"
        q, k, v = (rearrange(t, cut, h=h, w=w, p=2, q=2) for t in (q, k, v))
        scores = torch.bmm(q, k.mT) / q.shape[-1] ** 0.5
        return back(torch.bmm(scores.softmax(-1), v), h, w)

    return attend


def _in_windows(back, B, H, Lq, Lk, Dk):
    return in_windows(back), (*(torch.randn(B, 4 * Lq * Lk, H * Dk) for _ in range(3)), torch.zeros(Lq, Lk)), {}


def wrong_counted_by_columns(B, H, Lq, Lk, Dk):
    def back(y, h, w):
        return rearrange(y, "(b w h) (p q) c -> b (h p w q) c", w=w, h=h, p=2)  # wrong: AS106 counted_by_columns

    return _in_windows(back, B, H, Lq, Lk, Dk)


def right_counted_by_columns(B, H, Lq, Lk, Dk):
    def back(y, h, w):
        return rearrange(y, "(b h w) (p q) c -> b (h p w q) c", h=h, w=w, p=2)

    return _in_windows(back, B, H, Lq, Lk, Dk)


def reference_counted_by_columns(attend, q, k, v, grid):
    h, w = grid.shape
    pixels = torch.arange(4 * h * w).reshape(2 * h, 2 * w)
    out = torch.empty_like(v)
    for row in range(0, 2 * h, 2):
        for column in range(0, 2 * w, 2):
            at = pixels[row : row + 2, column : column + 2].flatten()
            out[:, at] = attention(q[:, at], k[:, at], v[:, at])
    return out


class Columns(nn.Module):
    """Each column of a map attends within itself; the columns are folded with the batch."""

    def __init__(self, dim, heads, height, width):
        super().__init__()
        self.height, self.width = height, width
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)

    def together(self, columns):
        return columns.unflatten(0, (-1, self.width)).transpose(1, 2).flatten(1, 2)

    def forward(self, x):
        columns = x.unflatten(1, (self.height, self.width)).transpose(1, 2).flatten(0, 1)
        return self.together(self.attention(columns, columns, columns, need_weights=False)[0])


class ColumnsOneAfterTheOther(Columns):
    def together(self, columns):
        return columns.reshape(-1, self.height * self.width, columns.shape[-1])  # wrong: AS106 columns_concatenated


def wrong_columns_concatenated(B, H, Lq, Lk, Dk):
    return ColumnsOneAfterTheOther(H * Dk, H, 3 * Lq, 2 * Lk), (torch.randn(B, 6 * Lq * Lk, H * Dk),), {}


def right_columns_concatenated(B, H, Lq, Lk, Dk):
    return Columns(H * Dk, H, 3 * Lq, 2 * Lk), (torch.randn(B, 6 * Lq * Lk, H * Dk),), {}


def reference_columns_concatenated(module, x):
    attend, out = module.attention, torch.empty_like(x)
    weights, biases = attend.in_proj_weight.chunk(3), attend.in_proj_bias.chunk(3)
    for column in range(module.width):
        one = x[:, column :: module.width]
        q, k, v = (F.linear(one, w, b) for w, b in zip(weights, biases, strict=True))
        out[:, column :: module.width] = attend.out_proj(multihead(q, k, v, attend.num_heads))
    return out
