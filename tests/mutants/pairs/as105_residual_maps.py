"""AS105: the residual stream of tokens is viewed as a map after attention, and read as pixels."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge

MAPS = (
    {"B": 2, "H": 3, "Dk": 5, "rows": 4, "columns": 7},
    {"B": 4, "H": 2, "Dk": 7, "rows": 5, "columns": 3},
    {"B": 3, "H": 5, "Dk": 4, "rows": 2, "columns": 6},
)
TEXT = (
    {"B": 2, "H": 3, "Lk": 9, "Dk": 5, "rows": 4, "columns": 7},
    {"B": 4, "H": 2, "Lk": 11, "Dk": 7, "rows": 5, "columns": 3},
    {"B": 3, "H": 5, "Lk": 7, "Dk": 4, "rows": 2, "columns": 6},
)
PAIRS = [
    ("AS105", "spatial_transformer", *TEXT),
    ("AS105", "tokens_before_a_convolution", *MAPS),
    ("AS105", "stage_before_pooling", *MAPS),
]


class Attention(nn.Module):
    """Queries of x, keys and values of x or of another sequence, in torch's fused kernel."""

    def __init__(self, width, context, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k, self.to_v = (nn.Linear(context, width, bias=False) for _ in range(2))
        self.to_out = nn.Linear(width, width)

    def forward(self, x, context=None):
        context = x if context is None else context
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for t in (self.to_q(x), self.to_k(context), self.to_v(context))
        )
        return self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class SpatialTransformer(nn.Module):
    """A block of a U-Net: the pixels attend to each other, then to a text."""

    def __init__(self, channels, text, heads):
        super().__init__()
        self.norm = nn.GroupNorm(1, channels)
        self.proj_in, self.proj_out = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 1)
        self.attn1, self.attn2 = Attention(channels, channels, heads), Attention(channels, text, heads)
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)

    def to_map(self, x, shape):
        b, c, h, w = shape
        return x.reshape(b, h, w, c).permute(0, 3, 1, 2)

    def forward(self, x, text):
        x_in = x
        x = self.proj_in(self.norm(x)).flatten(2).transpose(1, 2)
        x = self.attn1(self.norm1(x)) + x
        x = self.attn2(self.norm2(x), text) + x
        return self.proj_out(self.to_map(x, x_in.shape)) + x_in


class SpatialTransformerOfAView(SpatialTransformer):
    def to_map(self, x, shape):
        return x.reshape(shape)  # wrong: AS105 spatial_transformer


def _spatial(cls, B, H, Lk, Dk, rows, columns):
    return cls(H * Dk, 23, H), (torch.randn(B, H * Dk, rows, columns), torch.randn(B, Lk, 23)), {}


def wrong_spatial_transformer(B, H, Lk, Dk, rows, columns):
    return _spatial(SpatialTransformerOfAView, B, H, Lk, Dk, rows, columns)


def right_spatial_transformer(B, H, Lk, Dk, rows, columns):
    return _spatial(SpatialTransformer, B, H, Lk, Dk, rows, columns)


def _normed(x, norm, axes=(-1,)):
    centred = x - x.mean(axes, keepdim=True)
    return centred / (centred.square().mean(axes, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def _pixels(x):
    """B D rows columns -> B rows*columns D."""
    return torch.stack([pixel for row in x.unbind(2) for pixel in row.unbind(2)], dim=1)


def _image(x, rows, columns):
    """The inverse of `_pixels`."""
    pixels = iter(x.unbind(1))
    return torch.stack([torch.stack([next(pixels) for _ in range(columns)], -1) for _ in range(rows)], -2)


def _attention(module, x, context):
    q, k, v = (
        heads(t, one, module.heads) for t, one in ((x, module.to_q), (context, module.to_k), (context, module.to_v))
    )
    return merge(attend(q, k, v), module.to_out)


def _pointwise(conv, x):
    """A convolution of one pixel over B L D."""
    return torch.einsum("bli,oi->blo", x, conv.weight[..., 0, 0]) + conv.bias


def reference_spatial_transformer(module, x, text):
    tokens = _pointwise(module.proj_in, _normed(_pixels(x), module.norm, (1, 2)))
    own = _normed(tokens, module.norm1)
    tokens = tokens + _attention(module.attn1, own, own)
    tokens = tokens + _attention(module.attn2, _normed(tokens, module.norm2), text)
    return x + _image(_pointwise(module.proj_out, tokens), *x.shape[2:])


class Upsampler(nn.Module):
    """Tokens of a grid attend to each other; a convolution of three by three pixels follows (SwinIR)."""

    def __init__(self, width, heads, grid):
        super().__init__()
        self.heads, self.grid = heads, grid
        self.norm = nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def unembed(self, x):
        return x.transpose(1, 2).view(x.shape[0], -1, *self.grid)

    def forward(self, x):
        B, L, D = x.shape
        qkv = self.qkv(self.norm(x)).view(B, L, 3, self.heads, D // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attn = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(D // self.heads), dim=-1)
        y = x + self.proj((attn @ v).transpose(1, 2).reshape(B, L, D))
        return x + self.conv(self.unembed(y)).flatten(2).transpose(1, 2)


class UpsamplerOfAView(Upsampler):
    def unembed(self, x):
        return x.view(x.shape[0], -1, *self.grid)  # wrong: AS105 tokens_before_a_convolution


def _tokens(cls, B, H, Dk, rows, columns):
    return cls(H * Dk, H, (rows, columns)), (torch.randn(B, rows * columns, H * Dk),), {}


def wrong_tokens_before_a_convolution(B, H, Dk, rows, columns):
    return _tokens(UpsamplerOfAView, B, H, Dk, rows, columns)


def right_tokens_before_a_convolution(B, H, Dk, rows, columns):
    return _tokens(Upsampler, B, H, Dk, rows, columns)


def reference_tokens_before_a_convolution(module, x):
    y = x + merge(attend(*fused(_normed(x, module.norm), module.qkv, module.heads)), module.proj)
    image = F.pad(_image(y, *module.grid), (1, 1, 1, 1))
    rows, columns = module.grid
    near = sum(
        torch.einsum("bdhw,cd->bhwc", image[:, :, i : i + rows, j : j + columns], module.conv.weight[:, :, i, j])
        for i in range(3)
        for j in range(3)
    )
    return x + (near + module.conv.bias).flatten(1, 2)


def stage(x, w_q, w_kv, w_o, grid):
    """Attend in (B, L, D) with (H, D, Dk), and halve the map of the stream by its largest numbers."""
    q, (k, v) = torch.einsum("bld,hde->bhle", x, w_q), torch.einsum("bld,thde->tbhle", x, w_kv)
    scores = torch.einsum("bhie,bhje->bhij", q, k) * q.shape[-1] ** -0.5
    context = torch.einsum("bhij,bhje->bihe", scores.softmax(dim=-1), v).flatten(2)
    stream = torch.einsum("bie,ed->bid", context, w_o).add(x)
    image = stream.mT.unflatten(2, grid)
    return F.max_pool2d(image, 2, ceil_mode=True).flatten(2).mT


def stage_of_a_view(x, w_q, w_kv, w_o, grid):
    """Attend in (B, L, D) with (H, D, Dk), and halve the map of the stream by its largest numbers."""
    q, (k, v) = torch.einsum("bld,hde->bhle", x, w_q), torch.einsum("bld,thde->tbhle", x, w_kv)
    scores = torch.einsum("bhie,bhje->bhij", q, k) * q.shape[-1] ** -0.5
    context = torch.einsum("bhij,bhje->bihe", scores.softmax(dim=-1), v).flatten(2)
    stream = torch.einsum("bie,ed->bid", context, w_o).add(x)
    image = stream.reshape(len(x), -1, *grid)  # wrong: AS105 stage_before_pooling
    return F.max_pool2d(image, 2, ceil_mode=True).flatten(2).mT


def _stage(function, B, H, Dk, rows, columns):
    D = H * Dk
    weights = (torch.randn(*shape) / math.sqrt(D) for shape in ((H, D, Dk), (2, H, D, Dk), (D, D)))
    return function, (torch.randn(B, rows * columns, D), *weights, (rows, columns)), {}


def wrong_stage_before_pooling(B, H, Dk, rows, columns):
    return _stage(stage_of_a_view, B, H, Dk, rows, columns)


def right_stage_before_pooling(B, H, Dk, rows, columns):
    return _stage(stage, B, H, Dk, rows, columns)


def reference_stage_before_pooling(function, x, w_q, w_kv, w_o, grid):
    stream = x.clone()
    for wq, wk, wv, wo in zip(w_q, *w_kv, w_o.chunk(len(w_q)), strict=True):
        weights = torch.exp((x @ wq) @ (x @ wk).mT / math.sqrt(wq.shape[1]))
        stream += weights / weights.sum(-1, keepdim=True) @ (x @ wv) @ wo
    rows, columns = grid
    pooled = [
        torch.stack([stream[:, a * columns + b] for a in (i, i + 1) for b in (j, j + 1) if a < rows and b < columns])
        for i in range(0, rows, 2)
        for j in range(0, columns, 2)
    ]
    return torch.stack([of_square.amax(0) for of_square in pooled], dim=1)
