"""AS301: axes of keys are flattened for the softmax, and the heads with them."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge, project

MAPS = (
    {"B": 4, "H": 3, "Lq": 7, "rows": 6, "columns": 5, "Dk": 8},
    {"B": 2, "H": 5, "Lq": 9, "rows": 3, "columns": 4, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 6, "rows": 2, "columns": 7, "Dk": 3},
)
PAIRS = [
    ("AS301", "queries_over_a_map", *MAPS),
    ("AS301", "pixels_over_pixels", *MAPS),
    ("AS301", "frames_and_their_patches", *MAPS),
]


class OverMap(nn.Module):
    """Queries attend to the pixels of a map, whose rows and columns stay two axes, as in DETR's maps of attention."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q_linear, self.kv = nn.Linear(width, width), nn.Conv2d(width, 2 * width, 1, bias=False)

    def probabilities(self, logits):
        return F.softmax(logits.flatten(3), dim=-1).view(logits.size())

    def forward(self, queries, features):
        q = self.q_linear(queries).unflatten(-1, (self.n_heads, -1)) * (queries.shape[-1] // self.n_heads) ** -0.5
        k, v = self.kv(features).unflatten(1, (2, self.n_heads, -1)).unbind(1)
        weights = self.probabilities(torch.einsum("bqnc,bnchw->bqnhw", q, k))
        return queries + torch.einsum("bqnhw,bnchw->bqnc", weights, v).flatten(2)


class OverMapOfHeads(OverMap):
    def probabilities(self, logits):
        return F.softmax(logits.flatten(2), dim=-1).view(logits.size())  # wrong: AS301 queries_over_a_map


def _map(cls, B, H, Lq, rows, columns, Dk):
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, H * Dk, rows, columns)), {}


def wrong_queries_over_a_map(B, H, Lq, rows, columns, Dk):
    return _map(OverMapOfHeads, B, H, Lq, rows, columns, Dk)


def right_queries_over_a_map(B, H, Lq, rows, columns, Dk):
    return _map(OverMap, B, H, Lq, rows, columns, Dk)


def reference_queries_over_a_map(module, queries, features):
    pixels = features.flatten(2).mT
    k, v = (pixels @ weight[..., 0, 0].T for weight in module.kv.weight.chunk(2))
    q = project(queries, module.q_linear)
    q, k, v = (one.unflatten(-1, (module.n_heads, -1)).transpose(1, 2) for one in (q, k, v))
    return queries + merge(attend(q, k, v))


def over_pixels(x, w_qkv, w_out):
    """Let all pixels of a map attend to each other: B rows columns D, by (3, H, Dk, D) and (D, H, Dk)."""
    q, k, v = torch.einsum("bxyi,thdi->tbhxyd", x, w_qkv)
    scores = torch.einsum("bhxyd,bhuvd->bxyhuv", q / q.shape[-1] ** 0.5, k)
    weights = scores.flatten(-2).softmax(-1).unflatten(-1, x.shape[1:3])
    return torch.einsum("bxyhuv,bhuvd,ohd->bxyo", weights, v, w_out)


def over_pixels_and_heads(x, w_qkv, w_out):
    """Let all pixels of a map attend to each other: B rows columns D, by (3, H, Dk, D) and (D, H, Dk)."""
    q, k, v = torch.einsum("bxyi,thdi->tbhxyd", x, w_qkv)
    scores = torch.einsum("bhxyd,bhuvd->bxyhuv", q / q.shape[-1] ** 0.5, k)
    weights = scores.flatten(3).softmax(-1).unflatten(-1, scores.shape[3:])  # wrong: AS301 pixels_over_pixels
    return torch.einsum("bxyhuv,bhuvd,ohd->bxyo", weights, v, w_out)


def _pixels(function, B, H, Lq, rows, columns, Dk):
    weights = torch.randn(3, H, Dk, H * Dk), torch.randn(H * Dk, H, Dk)
    return function, (torch.randn(B, rows, columns, H * Dk), *(one / (H * Dk) ** 0.5 for one in weights)), {}


def wrong_pixels_over_pixels(B, H, Lq, rows, columns, Dk):
    return _pixels(over_pixels_and_heads, B, H, Lq, rows, columns, Dk)


def right_pixels_over_pixels(B, H, Lq, rows, columns, Dk):
    return _pixels(over_pixels, B, H, Lq, rows, columns, Dk)


def reference_pixels_over_pixels(_, x, w_qkv, w_out):
    pixels = x.flatten(1, 2)
    q, k, v = (torch.stack([pixels @ one.T for one in weight], dim=1) for weight in w_qkv)
    context = attend(q, k, v)
    return sum(context[:, h] @ w_out[:, h].T for h in range(w_out.shape[1])).view_as(x)


class Frames(nn.Module):
    """Queries read the patches of all frames, (B, frames, patches, D), but for frames that are padded."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.to_q, self.to_kv, self.proj = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def attn(self, scores):
        B, Lq, H, T, N = scores.shape
        attn = nn.Softmax(dim=-1)(scores.reshape(B, Lq, H, T * N))
        return attn.reshape(B, Lq, H, T, N)

    def forward(self, queries, video, keep):
        q = self.to_q(queries).unflatten(-1, (self.n_heads, 1, 1, -1))
        k, v = self.to_kv(video).unflatten(-1, (2, self.n_heads, -1)).permute(3, 0, 4, 1, 2, 5).unsqueeze(2)
        scores = (q * k).sum(-1) / k.shape[-1] ** 0.5
        attn = self.attn(scores.masked_fill(~keep[:, None, None, :, None], -torch.inf))
        return self.proj((attn.unsqueeze(-1) * v).sum((3, 4)).flatten(2))


class FramesOfHeads(Frames):
    def attn(self, scores):
        B, Lq, H, T, N = scores.shape
        attn = nn.Softmax(dim=-1)(scores.reshape(B, Lq, H * T * N))  # wrong: AS301 frames_and_their_patches
        return attn.reshape(B, Lq, H, T, N)


def _frames(cls, B, H, Lq, rows, columns, Dk):
    keep = torch.arange(rows) < torch.tensor([rows - b % 2 for b in range(B)])[:, None]
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, rows, columns, H * Dk), keep), {}


def wrong_frames_and_their_patches(B, H, Lq, rows, columns, Dk):
    return _frames(FramesOfHeads, B, H, Lq, rows, columns, Dk)


def right_frames_and_their_patches(B, H, Lq, rows, columns, Dk):
    return _frames(Frames, B, H, Lq, rows, columns, Dk)


def reference_frames_and_their_patches(module, queries, video, keep):
    patches, n_heads = video.flatten(1, 2), module.n_heads
    k, v = project(patches, module.to_kv).unflatten(-1, (2, n_heads, -1)).permute(2, 0, 3, 1, 4)
    keep = keep.repeat_interleave(video.shape[2], dim=1)[:, None, None]
    return merge(attend(heads(queries, module.to_q, n_heads), k, v, keep=keep), module.proj)
