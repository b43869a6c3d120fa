"""AS717: both halves of the features turn by a token's row, or both by its column."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge

MAPS = (
    {"B": 3, "H": 2, "Dk": 6, "rows": 5, "columns": 4},
    {"B": 2, "H": 5, "Dk": 4, "rows": 3, "columns": 7},
    {"B": 4, "H": 3, "Dk": 7, "rows": 6, "columns": 2},
)
PAIRS = [
    ("AS717", "axial_by_columns", *MAPS),
    ("AS717", "heights_stacked_twice", *MAPS),
    ("AS717", "halves_of_one_row", *MAPS),
]


class Axial(nn.Module):
    """The first half of the pairs of a head turns by the column, the second one by the row, as in SAM 2."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def places(self, height, width):
        t = torch.arange(height * width)
        return t % width, torch.div(t, width, rounding_mode="floor")

    def table(self, height, width, dim):
        speeds = 100.0 ** (-torch.arange(0, dim, 4, dtype=torch.float64) / dim)
        x, y = self.places(height, width)
        of_x, of_y = torch.outer(x, speeds), torch.outer(y, speeds)
        angles = torch.cat([of_x, of_y], dim=-1)  # wrong: AS717 axial_by_columns
        return torch.polar(torch.ones_like(angles), angles)

    def turned(self, x, table):
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * table.to(pairs.dtype)).flatten(-2)

    def forward(self, feature_map):
        height, width = feature_map.shape[-2:]
        x = feature_map.flatten(2).permute(0, 2, 1)
        q, k, v = (layer(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        table = self.table(height, width, q.shape[-1])
        context = F.scaled_dot_product_attention(self.turned(q, table), self.turned(k, table), v)
        return self.out(context.transpose(1, 2).flatten(2)).transpose(1, 2).unflatten(-1, (height, width))


class AxialByColumns(Axial):
    def places(self, height, width):
        t = torch.arange(height * width)
        return t % width, torch.remainder(t, width)


def _axial(cls, B, H, Dk, rows, columns):
    return cls(H * 4 * Dk, H), (torch.randn(B, H * 4 * Dk, rows, columns),), {}


def wrong_axial_by_columns(B, H, Dk, rows, columns):
    return _axial(AxialByColumns, B, H, Dk, rows, columns)


def right_axial_by_columns(B, H, Dk, rows, columns):
    return _axial(Axial, B, H, Dk, rows, columns)


def turned_on_map(x, width, speeds, pairs, of_rows):
    """Turn the features of B H N D by pairs of two features each, as many as there are speeds by row, then by column.

    With `of_rows`, the first pairs turn by the row, and the others by the column, else the other way round.
    """
    out = x.clone()
    for token in range(x.shape[2]):
        row, column = divmod(token, width)
        for number, (a, b) in enumerate(pairs):
            place = row if (number < len(speeds)) == of_rows else column
            angle = torch.tensor(place * speeds[number % len(speeds)], dtype=x.dtype)
            out[:, :, token, a] = x[:, :, token, a] * angle.cos() - x[:, :, token, b] * angle.sin()
            out[:, :, token, b] = x[:, :, token, a] * angle.sin() + x[:, :, token, b] * angle.cos()
    return out


def reference_axial_by_columns(module, feature_map):
    height, width = feature_map.shape[-2:]
    x = torch.einsum("bchw->bhwc", feature_map).flatten(1, 2)
    q, k, v = (heads(x, layer, module.n_heads) for layer in (module.q, module.k, module.v))
    D = q.shape[-1]
    speeds = [100.0 ** (-feature / D) for feature in range(0, D, 4)]
    pairs = [(feature, feature + 1) for feature in range(0, D, 2)]
    q, k = (turned_on_map(one, width, speeds, pairs, of_rows=False) for one in (q, k))
    return torch.einsum("bnc->bcn", merge(attend(q, k, v), module.out)).unflatten(-1, (height, width))


class VisionBlock(nn.Module):
    """Patches turn by a table that is looked up by their rows and columns, as in Qwen2-VL."""

    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.norm, self.qkv, self.proj = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def positions(self, height, width):
        down = torch.arange(height)[:, None].expand(height, width).flatten()
        right = torch.arange(width)[None, :].expand(height, width).flatten()
        return torch.stack([down, right], dim=-1)

    def rotary(self, height, width, head_dim):
        inv_freq = 1000.0 ** (-torch.arange(0, head_dim // 2, 2, dtype=torch.float64) / (head_dim // 2))
        table = torch.outer(torch.arange(max(height, width), dtype=torch.float64), inv_freq)
        angles = table[self.positions(height, width)].flatten(1)
        return angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

    def rotate(self, x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        return x * cos.to(x) + torch.cat((-b, a), dim=-1) * sin.to(x)

    def forward(self, patches):
        B, height, width, C = patches.shape
        x = patches.reshape(B, height * width, C)
        q, k, v = self.qkv(self.norm(x)).reshape(B, -1, 3, self.n_heads, C // self.n_heads).permute(2, 0, 3, 1, 4)
        cos, sin = self.rotary(height, width, q.shape[-1])
        scores = self.rotate(q, cos, sin) @ self.rotate(k, cos, sin).transpose(2, 3) / q.shape[-1] ** 0.5
        x = x + self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x.view_as(patches)


class VisionBlockOfRows(VisionBlock):
    def positions(self, height, width):
        down = torch.arange(height)[:, None].expand(height, width).flatten()
        return torch.stack([down, down], dim=-1)  # wrong: AS717 heights_stacked_twice


def _patches(cls, B, H, Dk, rows, columns):
    return cls(H * 4 * Dk, H), (torch.randn(B, rows, columns, H * 4 * Dk),), {}


def wrong_heights_stacked_twice(B, H, Dk, rows, columns):
    return _patches(VisionBlockOfRows, B, H, Dk, rows, columns)


def right_heights_stacked_twice(B, H, Dk, rows, columns):
    return _patches(VisionBlock, B, H, Dk, rows, columns)


def reference_heights_stacked_twice(module, patches):
    x = patches.flatten(1, 2)
    q, k, v = fused(module.norm(x), module.qkv, module.n_heads)
    half = q.shape[-1] // 2
    speeds = [1000.0 ** (-feature / half) for feature in range(0, half, 2)]
    pairs = [(feature, feature + half) for feature in range(half)]
    q, k = (turned_on_map(one, patches.shape[2], speeds, pairs, of_rows=True) for one in (q, k))
    return (x + merge(attend(q, k, v), module.proj)).view_as(patches)


def turns(place, speeds):
    angles = place[:, None] * speeds
    return torch.polar(torch.ones_like(angles), angles)


def rotated(x, height, width, speeds):
    of_row = turns(torch.arange(height).repeat_interleave(width), speeds)
    of_column = turns(torch.arange(width).repeat(height), speeds)
    upper, lower = (torch.complex(*half.chunk(2, dim=-1)) for half in x.chunk(2, dim=-1))
    upper, lower = upper * of_row, lower * of_column
    return torch.cat((upper.real, upper.imag, lower.real, lower.imag), dim=-1)


def rotated_by_rows(x, height, width, speeds):
    of_row = turns(torch.arange(height).repeat_interleave(width), speeds)
    upper, lower = (torch.complex(*half.chunk(2, dim=-1)) for half in x.chunk(2, dim=-1))
    upper, lower = upper * of_row, lower * of_row  # wrong: AS717 halves_of_one_row
    return torch.cat((upper.real, upper.imag, lower.real, lower.imag), dim=-1)


def attend_on_map(rotate, pixels, w_qkv, w_out, speeds):
    """Attend on a map (B, D, rows, columns), by (3, H, D, 4*Dk) and (H, 4*Dk, D)."""
    height, width = pixels.shape[2:]
    q, k, v = torch.einsum("bcn,thcd->tbhnd", pixels.flatten(2), w_qkv)
    q, k = rotate(q, height, width, speeds), rotate(k, height, width, speeds)
    weights = torch.einsum("bhid,bhjd->bhij", q, k).div(q.shape[-1] ** 0.5).softmax(-1)
    context = torch.einsum("bhij,bhjd->bhdi", weights, v)
    return torch.einsum("bhdi,hdc->bci", context, w_out).reshape(pixels.shape)


def _on_map(rotate, B, H, Dk, rows, columns):
    D = 4 * H * Dk
    speeds = 50.0 ** (-torch.arange(Dk) / Dk)
    weights = torch.randn(3, H, D, 4 * Dk) / D**0.5, torch.randn(H, 4 * Dk, D) / D**0.5
    return partial(attend_on_map, rotate), (torch.randn(B, D, rows, columns), *weights, speeds), {}


def wrong_halves_of_one_row(B, H, Dk, rows, columns):
    return _on_map(rotated_by_rows, B, H, Dk, rows, columns)


def right_halves_of_one_row(B, H, Dk, rows, columns):
    return _on_map(rotated, B, H, Dk, rows, columns)


def reference_halves_of_one_row(_, pixels, w_qkv, w_out, speeds):
    x = pixels.flatten(2).mT
    q, k, v = (torch.stack([x @ one for one in weight], dim=1) for weight in w_qkv)
    count = len(speeds)
    pairs = [(feature, feature + count) for start in (0, 2 * count) for feature in range(start, start + count)]
    q, k = (turned_on_map(one, pixels.shape[3], speeds.tolist(), pairs, of_rows=True) for one in (q, k))
    context = attend(q, k, v)
    return sum(context[:, h] @ one for h, one in enumerate(w_out)).mT.reshape(pixels.shape)
