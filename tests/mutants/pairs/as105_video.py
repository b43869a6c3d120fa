"""AS105: a video's channels and frames are mixed by a reshape, instead of being permuted."""

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from tests.mutants.pairs.as4_reference import attend, merge, project

SIZES = (
    {"B": 2, "H": 3, "L": 7, "Dk": 5},
    {"B": 4, "H": 2, "L": 8, "Dk": 7},
    {"B": 3, "H": 4, "L": 7, "Dk": 5},
)
ROWS, COLUMNS = 3, 4
"""Of a frame: few, since every pixel attends to every other one."""
PAIRS = [
    ("AS105", "frames_by_reshape", *SIZES),
    ("AS105", "frames_by_view_in_einsum", *SIZES),
    ("AS105", "frames_by_einops", *SIZES),
]


def pixels(x):
    """B D L ROWS COLUMNS -> B*L ROWS*COLUMNS D, one frame after the other."""
    return torch.stack([frame for video in x for frame in video.unbind(1)]).flatten(2).mT


def videos(x, like):
    """The inverse of `pixels`, with as many features as x has."""
    _, _, frames, rows, columns = like.shape
    parts = x.mT.unflatten(-1, (rows, columns)).split(frames)
    return torch.stack([video.transpose(0, 1) for video in parts])


class Spatial(nn.Module):
    """The pixels of each frame attend to each other."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def frames(self, x):
        b, c, t, h, w = x.shape
        return x.permute(0, 2, 1, 3, 4).reshape(b * t, c, h * w)

    def forward(self, x):
        b, c, t, h, w = x.shape
        tokens = self.frames(x).transpose(1, 2)
        q, k, v = self.qkv(tokens).reshape(b * t, h * w, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b * t, h * w, c)
        return x + self.out(out).reshape(b, t, h, w, c).permute(0, 4, 1, 2, 3)


class FramesByReshape(Spatial):
    def frames(self, x):
        b, c, t, h, w = x.shape
        return x.reshape(b * t, c, h * w)  # wrong: AS105 frames_by_reshape


def _spatial(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, H * Dk, L, ROWS, COLUMNS),), {}


def wrong_frames_by_reshape(B, H, L, Dk):
    return _spatial(FramesByReshape, B, H, L, Dk)


def right_frames_by_reshape(B, H, L, Dk):
    return _spatial(Spatial, B, H, L, Dk)


def reference_frames_by_reshape(module, x):
    tokens = pixels(x)
    q, k, v = (torch.stack(t.chunk(module.heads, -1), 1) for t in project(tokens, module.qkv).chunk(3, -1))
    return x + videos(merge(attend(q, k, v), module.out), x)


class Spelled(nn.Module):
    """Without a bias, with the heads' scores in einsum; the result stays pixels of frames."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))

    def tokens(self, x):
        return x.transpose(1, 2).flatten(0, 1).flatten(2).mT

    def forward(self, x):
        tokens = self.tokens(x)
        q, k, v = (one(tokens).unflatten(-1, (self.heads, -1)) for one in (self.q, self.k, self.v))
        weights = torch.softmax(torch.einsum("nihd,njhd->nhij", q, k) * q.shape[-1] ** -0.5, dim=-1)
        out = torch.einsum("nhij,njhd->nihd", weights, v).flatten(2)
        return out.unflatten(0, (x.shape[0], x.shape[2])).unflatten(2, x.shape[3:])


class SpelledByView(Spelled):
    def tokens(self, x):
        batch, channels, frames, rows, columns = x.shape
        return x.view(batch * frames, channels, rows * columns).mT  # wrong: AS105 frames_by_view_in_einsum


def wrong_frames_by_view_in_einsum(B, H, L, Dk):
    return _spatial(SpelledByView, B, H, L, Dk)


def right_frames_by_view_in_einsum(B, H, L, Dk):
    return _spatial(Spelled, B, H, L, Dk)


def reference_frames_by_view_in_einsum(module, x):
    parts = (project(pixels(x), one).chunk(module.heads, -1) for one in (module.q, module.k, module.v))
    out = merge(attend(*(torch.stack(part, 1) for part in parts)))
    return out.unflatten(0, (x.shape[0], x.shape[2])).unflatten(2, x.shape[3:])


class Rearranged(Spatial):
    def frames(self, x):
        return rearrange(x, "b c t h w -> (b t) c (h w)")


class RearrangedByLetters(Rearranged):
    def frames(self, x):
        parts = rearrange(x, "b c t h w -> b (c t) (h w)")
        return rearrange(parts, "b (t c) n -> (b t) c n", t=x.shape[2])  # wrong: AS105 frames_by_einops


def wrong_frames_by_einops(B, H, L, Dk):
    return _spatial(RearrangedByLetters, B, H, L, Dk)


def right_frames_by_einops(B, H, L, Dk):
    return _spatial(Rearranged, B, H, L, Dk)


reference_frames_by_einops = reference_frames_by_reshape
