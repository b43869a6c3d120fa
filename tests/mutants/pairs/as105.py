"""AS105: a layout operation puts one token's numbers at several positions."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import multihead

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
MAPS = (
    {"B": 2, "H": 3, "Lq": 4, "Lk": 6, "Dk": 5},
    {"B": 5, "H": 2, "Lq": 6, "Lk": 4, "Dk": 7},
    {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 5},
)
PAIRS = [
    ("AS105", "channels_first_by_reshape", *SIZES),
    (
        "AS105",
        "feature_map_tokens",
        {"B": 2, "H": 3, "Lq": 4, "Lk": 6, "Dk": 5},
        {"B": 4, "H": 2, "Lq": 5, "Lk": 3, "Dk": 7},
        {"B": 3, "H": 4, "Lq": 6, "Lk": 2, "Dk": 5},
    ),
    ("AS105", "output_by_view", *SIZES),
    ("AS105", "content_and_position", *SIZES),
    ("AS105", "two_branches", *SIZES),
    (
        "AS105",
        "viewed_feature_map",
        {"B": 2, "H": 3, "Lq": 4, "Lk": 6, "Dk": 5},
        {"B": 4, "H": 2, "Lq": 5, "Lk": 3, "Dk": 7},
        {"B": 3, "H": 4, "Lq": 6, "Lk": 2, "Dk": 5},
    ),
    ("AS105", "map_for_fewer_keys", *MAPS),
    ("AS105", "pooled_map", *MAPS),
    ("AS105", "map_after_attention", *MAPS),
    ("AS105", "viewed_patches", *SIZES),
    ("AS105", "shrunk_keys_viewed", *MAPS),
    ("AS105", "stem_with_norm", *SIZES),
]


class ConvAttention(nn.Module):
    """Projects by convolutions of width one over (B, D, L)."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Conv1d(dim, 3 * dim, 1, bias=False)
        self.to_out = nn.Conv1d(dim, dim, 1)

    def channels_first(self, x):
        return x.transpose(1, 2)

    def forward(self, x):
        B, L, D = x.shape
        q, k, v = self.to_qkv(self.channels_first(x)).reshape(B, 3, self.heads, D // self.heads, L).unbind(1)
        attn = torch.einsum("bhdi,bhdj->bhij", q, k).mul((D // self.heads) ** -0.5).softmax(dim=-1)
        out = torch.einsum("bhij,bhdj->bhdi", attn, v)
        return self.to_out(out.reshape(B, D, L)).transpose(1, 2)


class ReshapedConvAttention(ConvAttention):
    def channels_first(self, x):
        return x.reshape(x.shape[0], x.shape[2], x.shape[1])  # wrong: AS105 channels_first_by_reshape


def wrong_channels_first_by_reshape(B, H, L, Dk):
    return ReshapedConvAttention(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_channels_first_by_reshape(B, H, L, Dk):
    return ConvAttention(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_channels_first_by_reshape(module, x):
    q, k, v = (x @ module.to_qkv.weight[:, :, 0].T).chunk(3, dim=-1)
    return F.linear(multihead(q, k, v, module.heads), module.to_out.weight[:, :, 0], module.to_out.bias)


class MapEncoder(nn.Module):
    """The pixels of a feature map (B, D, rows, columns) attend to each other."""

    def __init__(self, hidden_dim, nheads):
        super().__init__()
        self.attn = nn.MultiheadAttention(hidden_dim, nheads, batch_first=True)
        self.norm = nn.LayerNorm(hidden_dim)

    def tokens(self, features):
        return features.flatten(2).transpose(1, 2)

    def forward(self, features):
        src = self.tokens(features)
        return self.norm(src + self.attn(src, src, src, need_weights=False)[0])


class ViewedMapEncoder(MapEncoder):
    def tokens(self, features):
        batch, channels, rows, columns = features.shape
        return features.view(batch, rows * columns, channels)  # wrong: AS105 feature_map_tokens


def wrong_feature_map_tokens(B, H, Lq, Lk, Dk):
    return ViewedMapEncoder(H * Dk, H), (torch.randn(B, H * Dk, Lq, Lk),), {}


def right_feature_map_tokens(B, H, Lq, Lk, Dk):
    return MapEncoder(H * Dk, H), (torch.randn(B, H * Dk, Lq, Lk),), {}


def reference_feature_map_tokens(module, features):
    src = torch.stack([pixel for row in features.unbind(2) for pixel in row.unbind(2)], dim=1)
    q, k, v = F.linear(src, module.attn.in_proj_weight, module.attn.in_proj_bias).chunk(3, dim=-1)
    return module.norm(src + module.attn.out_proj(multihead(q, k, v, module.attn.num_heads)))


class PixelAttention(nn.Module):
    """One head in channels-first layout, as image generators have it, over (B, L, D) tokens."""

    def __init__(self, channels):
        super().__init__()
        self.query, self.key = nn.Linear(channels, channels), nn.Linear(channels, channels)
        self.value = nn.Linear(channels, channels)
        self.gamma = nn.Parameter(torch.rand(1) + 0.5)

    def tokens(self, out, shape):
        return out.transpose(1, 2)

    def forward(self, x):
        energy = torch.bmm(self.query(x), self.key(x).transpose(1, 2)) / math.sqrt(x.shape[-1])
        attention = F.softmax(energy, dim=-1)
        out = torch.bmm(self.value(x).transpose(1, 2), attention.transpose(1, 2))
        return self.gamma * self.tokens(out, x.shape) + x


class ViewedPixelAttention(PixelAttention):
    def tokens(self, out, shape):
        return out.view(shape)  # wrong: AS105 output_by_view


def wrong_output_by_view(B, H, L, Dk):
    return ViewedPixelAttention(H * Dk), (torch.randn(B, L, H * Dk),), {}


def right_output_by_view(B, H, L, Dk):
    return PixelAttention(H * Dk), (torch.randn(B, L, H * Dk),), {}


def reference_output_by_view(module, x):
    return module.gamma * multihead(module.query(x), module.key(x), module.value(x), 1) + x


class ConcatenatedPositions(nn.Module):
    """Each token is half content and half position."""

    def __init__(self, heads, d_head, length):
        super().__init__()
        self.heads = heads
        self.content = nn.Linear(2 * heads * d_head, heads * d_head)
        self.position = nn.Parameter(torch.randn(length, heads * d_head))
        self.qkv = nn.Linear(2 * heads * d_head, 6 * heads * d_head)

    def embed(self, x):
        content = self.content(x)
        return torch.cat((content, self.position.expand_as(content)), dim=-1)

    def forward(self, x):
        b, n, d = x.shape
        h = self.embed(x)
        q, k, v = (t.view(b, n, self.heads, d // self.heads).transpose(1, 2) for t in self.qkv(h).chunk(3, dim=-1))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)


class StackedPositions(ConcatenatedPositions):
    def embed(self, x):
        content = self.content(x)
        both = torch.cat((content, self.position.expand_as(content)), dim=1)
        return both.view(x.shape)  # wrong: AS105 content_and_position


def wrong_content_and_position(B, H, L, Dk):
    return StackedPositions(H, Dk, L), (torch.randn(B, L, 2 * H * Dk),), {}


def right_content_and_position(B, H, L, Dk):
    return ConcatenatedPositions(H, Dk, L), (torch.randn(B, L, 2 * H * Dk),), {}


def reference_content_and_position(module, x):
    h = torch.stack([torch.cat((row, module.position), dim=1) for row in module.content(x)])
    return multihead(*module.qkv(h).chunk(3, dim=-1), module.heads)


class TwoBranches(nn.Module):
    """Two attentions of half the width side by side, joined and projected."""

    def __init__(self, width, heads):
        super().__init__()
        self.near = nn.MultiheadAttention(width, heads, batch_first=True)
        self.far = nn.MultiheadAttention(width, heads, batch_first=True)
        self.fuse = nn.Linear(2 * width, width)

    def join(self, near, far):
        return torch.cat([near, far], dim=2)

    def forward(self, x):
        near, far = (attn(x, x, x, need_weights=False)[0] for attn in (self.near, self.far))
        return x + self.fuse(self.join(near, far))


class StackedBranches(TwoBranches):
    def join(self, near, far):
        return torch.stack([near, far], dim=1).reshape(*near.shape[:2], -1)  # wrong: AS105 two_branches


def wrong_two_branches(B, H, L, Dk):
    return StackedBranches(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_two_branches(B, H, L, Dk):
    return TwoBranches(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_two_branches(module, x):
    outputs = []
    for attn in (module.near, module.far):
        q, k, v = F.linear(x, attn.in_proj_weight, attn.in_proj_bias).chunk(3, dim=-1)
        outputs.append(attn.out_proj(multihead(q, k, v, attn.num_heads)))
    return (
        x
        + sum(F.linear(out, w) for out, w in zip(outputs, module.fuse.weight.chunk(2, 1), strict=True))
        + module.fuse.bias
    )


class PixelTokens(nn.Module):
    """Attends over the pixels of (B, D, Lq, Lk), as tokens of D channels."""

    def __init__(self, width, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)

    def tokens(self, image):
        return image.flatten(2).transpose(1, 2)

    def forward(self, image):
        tokens = self.tokens(image)
        return self.attn(tokens, tokens, tokens, need_weights=False)[0]


class ViewedPixels(PixelTokens):
    def tokens(self, image):
        return image.reshape(image.shape[0], -1, image.shape[1])  # wrong: AS105 viewed_feature_map


def _viewed_feature_map(cls, B, H, Lq, Lk, Dk):
    return cls(H * Dk, H), (torch.randn(B, H * Dk, Lq, Lk),), {}


def wrong_viewed_feature_map(B, H, Lq, Lk, Dk):
    return _viewed_feature_map(ViewedPixels, B, H, Lq, Lk, Dk)


def right_viewed_feature_map(B, H, Lq, Lk, Dk):
    return _viewed_feature_map(PixelTokens, B, H, Lq, Lk, Dk)


def reference_viewed_feature_map(module, image):
    tokens = torch.stack([image[:, :, i, j] for i in range(image.shape[2]) for j in range(image.shape[3])], dim=1)
    q, k, v = F.linear(tokens, module.attn.in_proj_weight, module.attn.in_proj_bias).chunk(3, dim=-1)
    return module.attn.out_proj(multihead(q, k, v, module.attn.num_heads))


class FewerKeys(nn.Module):
    """Tokens of a grid attend to keys that a strided convolution makes of their map."""

    def __init__(self, heads, depth, grid):
        super().__init__()
        width = heads * depth
        self.heads, self.grid = heads, grid
        self.wq, self.wkv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.reduce, self.norm = nn.Conv2d(width, width, 2, stride=2), nn.LayerNorm(width)

    def to_map(self, x):
        return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], *self.grid)

    def forward(self, x):
        fewer = self.norm(self.reduce(self.to_map(x)).flatten(2).transpose(1, 2))
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.wq(x), *self.wkv(fewer).chunk(2, dim=-1))
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class FewerKeysOfAView(FewerKeys):
    def to_map(self, x):
        return x.reshape(x.shape[0], x.shape[2], *self.grid)  # wrong: AS105 map_for_fewer_keys


def _grid_of_tokens(cls, B, H, Lq, Lk, Dk):
    return cls(H, Dk, (Lq, Lk)), (torch.randn(B, Lq * Lk, H * Dk),), {}


def wrong_map_for_fewer_keys(B, H, Lq, Lk, Dk):
    return _grid_of_tokens(FewerKeysOfAView, B, H, Lq, Lk, Dk)


def right_map_for_fewer_keys(B, H, Lq, Lk, Dk):
    return _grid_of_tokens(FewerKeys, B, H, Lq, Lk, Dk)


def _image(x, grid):
    """Return the map of (B, rows * columns, D), pixel by pixel."""
    rows, columns = grid
    pixels = [torch.stack([x[:, row * columns + column] for column in range(columns)], -1) for row in range(rows)]
    return torch.stack(pixels, -2)


def reference_map_for_fewer_keys(module, x):
    image = _image(x, module.grid)
    fewer = sum(
        torch.einsum("bchw,dc->bhwd", image[..., i::2, j::2], module.reduce.weight[..., i, j])
        for i in range(2)
        for j in range(2)
    )
    fewer = module.norm((fewer + module.reduce.bias).flatten(1, 2))
    return module.out(multihead(module.wq(x), *module.wkv(fewer).chunk(2, dim=-1), module.heads))


def attend_to_means(x, rows, columns, w, heads):
    """Each token attends to the means of squares of two by two tokens; `w` is (3, D, D)."""
    B, N, D = x.shape
    grid = F.layer_norm(x, (D,)).transpose(1, 2).reshape(B, D, rows, columns)
    means = F.avg_pool2d(grid, 2).flatten(2).transpose(1, 2)
    q, k, v = (t.view(B, -1, heads, D // heads).transpose(1, 2) for t in (x @ w[0], means @ w[1], means @ w[2]))
    scores = q @ k.transpose(-2, -1) / math.sqrt(D // heads)
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, N, D)


def attend_to_means_of_a_view(x, rows, columns, w, heads):
    """Each token attends to the means of squares of two by two tokens; `w` is (3, D, D)."""
    B, N, D = x.shape
    grid = F.layer_norm(x, (D,)).view(B, D, rows, columns)  # wrong: AS105 pooled_map
    means = F.avg_pool2d(grid, 2).flatten(2).transpose(1, 2)
    q, k, v = (t.view(B, -1, heads, D // heads).transpose(1, 2) for t in (x @ w[0], means @ w[1], means @ w[2]))
    scores = q @ k.transpose(-2, -1) / math.sqrt(D // heads)
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, N, D)


def _means(function, B, H, Lq, Lk, Dk):
    D = H * Dk
    return function, (torch.randn(B, Lq * Lk, D), Lq, Lk, torch.randn(3, D, D) / math.sqrt(D), H), {}


def wrong_pooled_map(B, H, Lq, Lk, Dk):
    return _means(attend_to_means_of_a_view, B, H, Lq, Lk, Dk)


def right_pooled_map(B, H, Lq, Lk, Dk):
    return _means(attend_to_means, B, H, Lq, Lk, Dk)


def reference_pooled_map(function, x, rows, columns, w, heads):
    image = _image(F.layer_norm(x, x.shape[-1:]), (rows, columns))
    means = sum(image[..., i::2, j::2] for i in range(2) for j in range(2)).flatten(2).mT / 4
    return multihead(x @ w[0], means @ w[1], means @ w[2], heads)


class LocalAfterGlobal(nn.Module):
    """What tokens read goes through a projection, then through a convolution of each channel over their grid."""

    def __init__(self, heads, depth, grid):
        super().__init__()
        width = heads * depth
        self.grid = grid
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.near = nn.Conv2d(width, width, 3, padding=1, groups=width)

    def to_map(self, x):
        return x.unflatten(1, self.grid).permute(0, 3, 1, 2)

    def forward(self, x):
        x = x + self.attn(x, x, x, need_weights=False)[0]
        hidden = F.linear(x, self.attn.out_proj.weight)
        return x + self.near(self.to_map(hidden)).flatten(2).transpose(1, 2)


class LocalOfAView(LocalAfterGlobal):
    def to_map(self, x):
        return x.view(len(x), -1, *self.grid)  # wrong: AS105 map_after_attention


def wrong_map_after_attention(B, H, Lq, Lk, Dk):
    return _grid_of_tokens(LocalOfAView, B, H, Lq, Lk, Dk)


def right_map_after_attention(B, H, Lq, Lk, Dk):
    return _grid_of_tokens(LocalAfterGlobal, B, H, Lq, Lk, Dk)


def reference_map_after_attention(module, x):
    attn = module.attn
    q, k, v = F.linear(x, attn.in_proj_weight, attn.in_proj_bias).chunk(3, dim=-1)
    x = x + attn.out_proj(multihead(q, k, v, attn.num_heads))
    image = F.pad(_image(x @ attn.out_proj.weight.T, module.grid), (1, 1, 1, 1))
    rows, columns = module.grid
    near = sum(
        image[..., i : i + rows, j : j + columns] * module.near.weight[:, 0, i, j, None, None]
        for i in range(3)
        for j in range(3)
    )
    return x + (near + module.near.bias[:, None, None]).flatten(2).mT


class Patches(nn.Module):
    """A convolution makes patches of a series; a class token is put before them, and positions are added."""

    def __init__(self, heads, depth, count):
        super().__init__()
        width = heads * depth
        self.patch = nn.Conv1d(3, width, 2, stride=2)
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, count + 1, width))
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)

    def tokens(self, patches):
        return patches.flatten(2).transpose(1, 2)

    def forward(self, series):
        x = self.tokens(self.patch(series))
        x = torch.cat((self.first.expand(len(x), -1, -1), x), dim=1) + self.places
        return self.attn(x, x, x, need_weights=False)[0]


class ViewedPatches(Patches):
    def tokens(self, patches):
        return patches.view(len(patches), -1, patches.shape[1])  # wrong: AS105 viewed_patches


def _corners(image):
    """Return the four pixels of each patch of two by two, (B, channels, 4, rows, columns)."""
    rows, columns = (size // 2 * 2 for size in image.shape[2:])
    return torch.stack([image[..., i:rows:2, j:columns:2] for i in range(2) for j in range(2)], dim=2)


def _patches(module, B, H, L, Dk):
    return module(H, Dk, L), (torch.randn(B, 3, 2 * L),), {}


def wrong_viewed_patches(B, H, L, Dk):
    return _patches(ViewedPatches, B, H, L, Dk)


def right_viewed_patches(B, H, L, Dk):
    return _patches(Patches, B, H, L, Dk)


def reference_viewed_patches(module, series):
    x = torch.einsum("bclk,dck->bld", series.unflatten(-1, (-1, 2)), module.patch.weight) + module.patch.bias
    x = torch.cat((module.first.expand(len(x), -1, -1), x), dim=1) + module.places
    q, k, v = F.linear(x, module.attn.in_proj_weight, module.attn.in_proj_bias).chunk(3, dim=-1)
    return module.attn.out_proj(multihead(q, k, v, module.attn.num_heads))


class ShrunkKeys(nn.Module):
    """Keys and values come from fewer pixels, which a convolution with strides makes (PVT)."""

    def __init__(self, heads, depth):
        super().__init__()
        width = heads * depth
        self.heads = heads
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.shrink, self.norm = nn.Conv2d(width, width, 2, stride=2), nn.LayerNorm(width)

    def fewer(self, image):
        return torch.einsum("bchw->bhwc", self.shrink(image)).flatten(1, 2)

    def forward(self, image):
        x = image.flatten(2).mT
        k, v = self.kv(self.norm(self.fewer(image))).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.q(x), k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class ViewOfShrunkKeys(ShrunkKeys):
    def fewer(self, image):
        fewer = self.shrink(image)
        return fewer.reshape(fewer.size(0), fewer[0, 0].numel(), -1)  # wrong: AS105 shrunk_keys_viewed


def _shrunk(module, B, H, Lq, Lk, Dk):
    return module(H, Dk), (torch.randn(B, H * Dk, Lq, Lk),), {}


def wrong_shrunk_keys_viewed(B, H, Lq, Lk, Dk):
    return _shrunk(ViewOfShrunkKeys, B, H, Lq, Lk, Dk)


def right_shrunk_keys_viewed(B, H, Lq, Lk, Dk):
    return _shrunk(ShrunkKeys, B, H, Lq, Lk, Dk)


def reference_shrunk_keys_viewed(module, image):
    corners = _corners(image)
    fewer = torch.einsum("bckhw,dck->bhwd", corners, module.shrink.weight.flatten(2)).flatten(1, 2)
    k, v = module.kv(module.norm(fewer + module.shrink.bias)).chunk(2, dim=-1)
    return multihead(module.q(image.flatten(2).mT), k, v, module.heads)


class Stem(nn.Module):
    """A convolution along the sequence, a norm of its channels and an activation come before attention."""

    def __init__(self, heads, depth):
        super().__init__()
        width = heads * depth
        self.heads = heads
        self.conv, self.norm = nn.Conv1d(7, width, 3, padding=1), nn.BatchNorm1d(width)
        self.qkv = nn.Linear(width, 3 * width)

    def last(self, x):
        return x.permute(0, 2, 1)

    def forward(self, signal):
        x = self.last(F.gelu(self.norm(self.conv(signal))))
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return (torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v).transpose(1, 2).flatten(2)


class StemOfAView(Stem):
    def last(self, x):
        batch, width, length = x.shape
        return x.reshape(batch, length, width)  # wrong: AS105 stem_with_norm


def wrong_stem_with_norm(B, H, L, Dk):
    return StemOfAView(H, Dk), (torch.randn(B, 7, L),), {}


def right_stem_with_norm(B, H, L, Dk):
    return Stem(H, Dk), (torch.randn(B, 7, L),), {}


def reference_stem_with_norm(module, signal):
    padded = F.pad(signal, (1, 1))
    near = torch.stack([padded[..., i : i + signal.shape[-1]] for i in range(3)], dim=-1)
    x = torch.einsum("bclk,dck->bld", near, module.conv.weight) + module.conv.bias
    norm = module.norm
    x = (x - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
    return multihead(*module.qkv(F.gelu(x)).chunk(3, dim=-1), module.heads)
