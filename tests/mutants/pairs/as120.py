"""AS120: tokens are folded into a map with its height and width swapped."""

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge
from tests.mutants.plain import attention

MAPS = (
    {"B": 3, "H": 2, "Dk": 7, "rows": 5, "columns": 4},
    {"B": 2, "H": 4, "Dk": 6, "rows": 3, "columns": 5},
    {"B": 4, "H": 3, "Dk": 5, "rows": 6, "columns": 2},
)
ODD = (
    {"B": 4, "H": 2, "Dk": 7, "rows": 5, "columns": 3},
    {"B": 2, "H": 4, "Dk": 6, "rows": 3, "columns": 5},
    {"B": 4, "H": 3, "Dk": 6, "rows": 5, "columns": 7},
)
PAIRS = [
    ("AS120", "keys_of_strided_convolution", *ODD),
    ("AS120", "keys_of_average_pooling", *ODD),
    ("AS120", "windows_of_folded_tokens", *ODD),
    ("AS120", "rows_alone", *MAPS),
    ("AS120", "convolved_before_attention", *MAPS),
]


class RightReduced(nn.Module):
    """Keys and values are those of patches of two by two tokens."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.kv, self.o = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.reduce = nn.Conv2d(width, width, kernel_size=2, stride=2)

    def folded(self, x, height, width):
        return x.transpose(1, 2).reshape(x.shape[0], -1, height, width)

    def attend(self, x, height, width):
        few = self.reduce(self.folded(x, height, width)).flatten(2).transpose(1, 2)
        k, v = self.kv(few).unflatten(-1, (2, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        q = self.q(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))

    def forward(self, image):
        x = image.flatten(2).transpose(1, 2)
        return x + self.attend(x, *image.shape[2:])


class WrongReduced(RightReduced):
    def folded(self, x, height, width):
        return x.transpose(1, 2).reshape(x.shape[0], -1, width, height)  # wrong: AS120 keys_of_strided_convolution


def _reduced(cls, B, H, Dk, rows, columns):
    return cls(H * Dk, H), (torch.randn(B, H * Dk, rows + 1, columns + 1),), {}


def wrong_keys_of_strided_convolution(B, H, Dk, rows, columns):
    return _reduced(WrongReduced, B, H, Dk, rows, columns)


def right_keys_of_strided_convolution(B, H, Dk, rows, columns):
    return _reduced(RightReduced, B, H, Dk, rows, columns)


def reference_keys_of_strided_convolution(module, image):
    x = torch.einsum("bchw->bhwc", image).flatten(1, 2)
    patches = image.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
    few = torch.einsum("bciyjx,ocyx->bijo", patches, module.reduce.weight).flatten(1, 2) + module.reduce.bias
    kv = (few @ module.kv.weight.T + module.kv.bias).unflatten(-1, (2, module.n_heads, -1))
    k, v = torch.einsum("blchd->cbhld", kv)
    return x + merge(attend(heads(x, module.q, module.n_heads), k, v), module.o)


class RightPooled(RightReduced):
    """Keys and values are means of two by two tokens."""

    def __init__(self, width, n_heads):
        super().__init__(width, n_heads)
        self.reduce = nn.AvgPool2d(2)

    def folded(self, x, height, width):
        return rearrange(x, "b (h w) c -> b c h w", h=height)


class WrongPooled(RightPooled):
    def folded(self, x, height, width):
        return rearrange(x, "b (h w) c -> b c h w", h=width)  # wrong: AS120 keys_of_average_pooling


def wrong_keys_of_average_pooling(B, H, Dk, rows, columns):
    return _reduced(WrongPooled, B, H, Dk, rows, columns)


def right_keys_of_average_pooling(B, H, Dk, rows, columns):
    return _reduced(RightPooled, B, H, Dk, rows, columns)


def reference_keys_of_average_pooling(module, image):
    x = torch.einsum("bchw->bhwc", image).flatten(1, 2)
    few = torch.einsum("bciyjx->bijc", image.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))).flatten(1, 2) / 4
    kv = (few @ module.kv.weight.T + module.kv.bias).unflatten(-1, (2, module.n_heads, -1))
    k, v = torch.einsum("blchd->cbhld", kv)
    return x + merge(attend(heads(x, module.q, module.n_heads), k, v), module.o)


class RightWindows(nn.Module):
    """Tokens of a map attend within windows of two by two."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, n_heads, batch_first=True)

    def sides(self, height, width):
        return height, width

    def forward(self, pixels):
        B, height, width, C = pixels.shape
        height, width = self.sides(height, width)
        tokens = pixels.flatten(1, 2)
        cut = tokens.view(B, height // 2, 2, width // 2, 2, C)  # wrong: AS120 windows_of_folded_tokens
        x = cut.permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, C)
        x, _ = self.attention(x, x, x, need_weights=False)
        x = x.view(B, height // 2, width // 2, 2, 2, C).permute(0, 1, 3, 2, 4, 5)
        return tokens + x.reshape(B, -1, C)


class WrongWindows(RightWindows):
    def sides(self, height, width):
        return width, height


def _windows(cls, B, H, Dk, rows, columns):
    return cls(H * Dk, H), (torch.randn(B, rows + 1, columns + 1, H * Dk),), {}


def wrong_windows_of_folded_tokens(B, H, Dk, rows, columns):
    return _windows(WrongWindows, B, H, Dk, rows, columns)


def right_windows_of_folded_tokens(B, H, Dk, rows, columns):
    return _windows(RightWindows, B, H, Dk, rows, columns)


def reference_windows_of_folded_tokens(module, pixels):
    out = pixels.clone()
    inner, layer = nn.Linear(1, 1), module.attention
    inner.weight, inner.bias = layer.in_proj_weight, layer.in_proj_bias
    for top in range(0, pixels.shape[1], 2):
        for left in range(0, pixels.shape[2], 2):
            x = pixels[:, top : top + 2, left : left + 2].flatten(1, 2)
            context = merge(attend(*fused(x, inner, layer.num_heads)), layer.out_proj)
            out[:, top : top + 2, left : left + 2] += context.unflatten(1, (2, 2))
    return out.flatten(1, 2)


class RightAxial(nn.Module):
    """Each pixel attends to the pixels of its row."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def by_row(self, x, height, width):
        return x.unflatten(1, (height, width)).flatten(0, 1)

    def forward(self, image):
        B, C, height, width = image.shape
        x = self.norm(image.permute(0, 2, 3, 1).flatten(1, 2))
        lines = self.by_row(x, height, width)
        q, k, v = (layer(lines).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        out = self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + out.reshape(B, height * width, C)


class WrongAxial(RightAxial):
    def by_row(self, x, height, width):
        return x.unflatten(1, (width, height)).flatten(0, 1)  # wrong: AS120 rows_alone


def _axial(cls, B, H, Dk, rows, columns):
    return cls(H * Dk, H), (torch.randn(B, H * Dk, rows + 1, columns + 1),), {}


def wrong_rows_alone(B, H, Dk, rows, columns):
    return _axial(WrongAxial, B, H, Dk, rows, columns)


def right_rows_alone(B, H, Dk, rows, columns):
    return _axial(RightAxial, B, H, Dk, rows, columns)


def reference_rows_alone(module, image):
    x = torch.einsum("bchw->bhwc", image)
    x = (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + module.norm.eps)
    x = x * module.norm.weight + module.norm.bias
    q, k, v = (
        (x @ layer.weight.T).unflatten(-1, (module.n_heads, -1)).movedim(-2, 1)
        for layer in (module.q, module.k, module.v)
    )
    context = attention(q, k, v)
    return (x + context.movedim(1, -2).flatten(-2) @ module.o.weight.T).flatten(1, 2)


class RightConvolved(nn.Module):
    """A depthwise convolution tells tokens of their neighbours before they attend, as in place of positions."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.near = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def fold(self, tokens, height, width):
        return tokens.mT.unflatten(-1, (height, width))

    def forward(self, feature_map):
        x = feature_map.flatten(2).mT
        x = x + self.near(self.fold(x, *feature_map.shape[2:])).flatten(2).mT
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        weights = torch.einsum("bhqd,bhkd->bhqk", q, k).mul(q.shape[-1] ** -0.5).softmax(-1)
        return self.proj(torch.einsum("bhqk,bhkd->bqhd", weights, v).flatten(2))


class WrongConvolved(RightConvolved):
    def fold(self, tokens, height, width):
        return tokens.mT.unflatten(-1, (width, height))  # wrong: AS120 convolved_before_attention


def _convolved(cls, B, H, Dk, rows, columns):
    return cls(H * Dk, H), (torch.randn(B, H * Dk, rows + 1, columns + 1),), {}


def wrong_convolved_before_attention(B, H, Dk, rows, columns):
    return _convolved(WrongConvolved, B, H, Dk, rows, columns)


def right_convolved_before_attention(B, H, Dk, rows, columns):
    return _convolved(RightConvolved, B, H, Dk, rows, columns)


def reference_convolved_before_attention(module, feature_map):
    height, width = feature_map.shape[2:]
    x = feature_map.clone()
    wide = torch.zeros(*x.shape[:2], height + 2, width + 2, dtype=x.dtype)
    wide[:, :, 1:-1, 1:-1] = feature_map
    for y in range(3):
        for z in range(3):
            x = x + wide[:, :, y : y + height, z : z + width] * module.near.weight[:, 0, y, z][:, None, None]
    x = torch.einsum("bchw->bhwc", x + module.near.bias[:, None, None]).flatten(1, 2)
    return merge(attend(*fused(x, module.qkv, module.n_heads)), module.proj)
