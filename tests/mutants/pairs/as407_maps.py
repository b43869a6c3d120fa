"""AS402 and AS407: a mask has the axes of a map's tokens, which attention flattens, cuts up, or goes along."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, join, multihead, split

MAPS = (
    {"B": 3, "H": 2, "Dk": 7, "rows": 5, "columns": 4},
    {"B": 2, "H": 5, "Dk": 6, "rows": 3, "columns": 7},
    {"B": 4, "H": 3, "Dk": 5, "rows": 6, "columns": 2},
)
FRAMES = (
    {"B": 3, "H": 2, "L": 5, "Dk": 7, "T": 4},
    {"B": 2, "H": 5, "L": 3, "Dk": 6, "T": 7},
    {"B": 4, "H": 3, "L": 6, "Dk": 5, "T": 2},
)
PAIRS = [
    ("AS402", "frames_hide_queries", *FRAMES),
    ("AS407", "pixels_by_columns", *MAPS),
    ("AS407", "windows_without_permute", *MAPS),
]


def random_keep(*shape):
    keep = torch.rand(shape) < 0.6
    keep[..., 0] = True
    keep[..., 0, 1], keep[..., 1, 1] = True, False
    return keep


class Pixels(nn.Module):
    """Attention of all pixels of feature maps that are padded to one size."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Conv2d(dim, dim, 1) for _ in range(3))

    def hidden(self, outside):
        return outside.flatten(1)

    def forward(self, features, outside):
        q, k, v = (f(features).unflatten(1, (self.heads, -1)).flatten(3).mT for f in (self.q, self.k, self.v))
        seen = ~self.hidden(outside)[:, None, None]
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return context.mT.reshape(features.shape)


class PixelsByColumns(Pixels):
    def hidden(self, outside):
        return outside.transpose(1, 2).flatten(1)  # wrong: AS407 pixels_by_columns


def _pixels(cls, B, H, Dk, rows, columns):
    features = torch.randn(B, H * Dk, rows, columns)
    return cls(H * Dk, H), (features, ~random_keep(B, rows, columns)), {}, ["outside=drop"]


def wrong_pixels_by_columns(B, H, Dk, rows, columns):
    return _pixels(PixelsByColumns, B, H, Dk, rows, columns)


def right_pixels_by_columns(B, H, Dk, rows, columns):
    return _pixels(Pixels, B, H, Dk, rows, columns)


def reference_pixels_by_columns(module, features, outside):
    tokens = features.flatten(2).mT
    q, k, v = (tokens @ f.weight[..., 0, 0].mT + f.bias for f in (module.q, module.k, module.v))
    seen = ~outside.reshape(len(outside), 1, 1, -1)
    return multihead(q, k, v, module.heads, keep=seen).mT.reshape(features.shape)


SIDE = 2


class Windows(nn.Module):
    """Attention within square windows of a map, whose axis is folded with that of the batch."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def partition(self, x):
        b, h, w, c = x.shape
        x = x.view(b, h // SIDE, SIDE, w // SIDE, SIDE, c)
        return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, SIDE * SIDE, c)

    def partition_mask(self, valid):
        return self.partition(valid.unsqueeze(-1)).squeeze(-1)

    def forward(self, x, valid):
        b, h, w, c = x.shape
        q, k, v = self.qkv(self.partition(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attn = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        attn = attn.masked_fill(self.partition_mask(valid)[:, None, None] == 0, -1e9).softmax(dim=-1)
        x = self.proj((attn @ v).transpose(1, 2).flatten(2))
        x = x.view(b, h // SIDE, w // SIDE, SIDE, SIDE, c).permute(0, 1, 3, 2, 4, 5)
        return x.reshape(b, h, w, c)


class WindowsWithoutPermute(Windows):
    def partition_mask(self, valid):
        return valid.reshape(-1, SIDE * SIDE)  # wrong: AS407 windows_without_permute


def _windows(cls, B, H, Dk, rows, columns):
    x = torch.randn(B, SIDE * rows, SIDE * columns, H * Dk)
    valid = random_keep(B, SIDE * rows, SIDE * columns)
    valid[:, ::SIDE, ::SIDE] = True
    return cls(H * Dk, H), (x, valid.long()), {}, ["valid=keep"]


def wrong_windows_without_permute(B, H, Dk, rows, columns):
    return _windows(WindowsWithoutPermute, B, H, Dk, rows, columns)


def right_windows_without_permute(B, H, Dk, rows, columns):
    return _windows(Windows, B, H, Dk, rows, columns)


def reference_windows_without_permute(module, x, valid):
    out = torch.empty_like(x)
    for i in range(0, x.shape[1], SIDE):
        for j in range(0, x.shape[2], SIDE):
            at = (slice(None), slice(i, i + SIDE), slice(j, j + SIDE))
            q, k, v = module.qkv(x[at].flatten(1, 2)).chunk(3, -1)
            seen = valid[at].flatten(1)[:, None, None] == 1
            out[at] = module.proj(multihead(q, k, v, module.heads, keep=seen)).reshape(x[at].shape)
    return out


class Frames(nn.Module):
    """Attention of the tokens of each frame, which are fewer in some frames than in others."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_kv = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)

    def of_scores(self, present):
        return present[:, :, None, None, :]

    def forward(self, x, present):
        q = self.to_q(x).unflatten(-1, (self.heads, -1))
        k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.to_kv(x).chunk(2, dim=-1))
        scores = torch.einsum("btihd,btjhd->bthij", q, k) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~self.of_scores(present), -1e9)
        return torch.einsum("bthij,btjhd->btihd", scores.softmax(-1), v).flatten(3)


class FramesHideQueries(Frames):
    def of_scores(self, present):
        return present[:, :, None, :, None]  # wrong: AS402 frames_hide_queries


def _frames(cls, B, H, L, Dk, T):
    return cls(H * Dk, H), (torch.randn(B, T, L, H * Dk), random_keep(B, T, L)), {}, ["present=keep"]


def wrong_frames_hide_queries(B, H, L, Dk, T):
    return _frames(FramesHideQueries, B, H, L, Dk, T)


def right_frames_hide_queries(B, H, L, Dk, T):
    return _frames(Frames, B, H, L, Dk, T)


def reference_frames_hide_queries(module, x, present):
    out = []
    for frame, seen in zip(x.unbind(1), present.unbind(1), strict=True):
        k, v = module.to_kv(frame).chunk(2, -1)
        heads = (split(t, module.heads) for t in (module.to_q(frame), k, v))
        out.append(join(attention(*heads, keep=seen[:, None, None])))
    return torch.stack(out, 1)
