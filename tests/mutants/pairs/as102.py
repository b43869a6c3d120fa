"""AS102: a sequence-first module or function is given batch-first tensors."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import multihead

SIZES = ({"B": 3, "H": 2, "L": 6, "Dk": 5}, {"B": 7, "H": 4, "L": 5, "Dk": 3}, {"B": 4, "H": 5, "L": 9, "Dk": 6})
PAIRS = [
    ("AS102", "torch_multihead", *SIZES),
    ("AS102", "forgotten_transpose", *SIZES),
    ("AS102", "encoder_stack", *SIZES),
    ("AS102", "own_module_in_block", *SIZES),
    ("AS102", "functional_forward", *SIZES),
    ("AS102", "decoder_layer", *SIZES),
]


def torch_multihead(module, query, memory):
    """What nn.MultiheadAttention computes, of tensors (B, L, D)."""
    wq, wk, wv = module.in_proj_weight.chunk(3)
    bq, bk, bv = module.in_proj_bias.chunk(3)
    joined = multihead(query @ wq.T + bq, memory @ wk.T + bk, memory @ wv.T + bv, module.num_heads)
    return module.out_proj(joined)


class TextEncoder(nn.Module):
    """An embedding's tokens attend to each other; `options` go to torch's module."""

    def __init__(self, d_model, heads, **options):
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.attn = nn.MultiheadAttention(d_model, heads, **options)
        self.head = nn.Linear(d_model, d_model)

    def forward(self, x):
        h = self.norm(x)
        attended, _ = self.attn(h, h, h, need_weights=False)
        return self.head(x + attended)


def wrong_torch_multihead(B, H, L, Dk):
    return TextEncoder(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_torch_multihead(B, H, L, Dk):
    return TextEncoder(H * Dk, H, batch_first=True), (torch.randn(B, L, H * Dk),), {}


def reference_torch_multihead(module, x):
    h = module.norm(x)
    return module.head(x + torch_multihead(module.attn, h, h))


class Pooler(nn.Module):
    """The module is sequence-first, the model around it batch-first."""

    def __init__(self, width, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads)
        self.ff = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def attend(self, x):
        x = x.transpose(0, 1)
        return self.attn(x, x, x)[0].transpose(0, 1)

    def forward(self, x):
        x = x + self.attend(x)
        return x + self.ff(x)


class DirectPooler(Pooler):
    def attend(self, x):
        return self.attn(x, x, x)[0]  # wrong: AS102 forgotten_transpose


def wrong_forgotten_transpose(B, H, L, Dk):
    return DirectPooler(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_forgotten_transpose(B, H, L, Dk):
    return Pooler(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_forgotten_transpose(module, x):
    x = x + torch_multihead(module.attn, x, x)
    return x + module.ff(x)


def _stack(d_model, heads, **options):
    layer = nn.TransformerEncoderLayer(d_model, heads, 2 * d_model, dropout=0.1, **options)
    return nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)


def wrong_encoder_stack(B, H, L, Dk):
    return _stack(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_encoder_stack(B, H, L, Dk):
    return _stack(H * Dk, H, batch_first=True), (torch.randn(B, L, H * Dk),), {}


def reference_encoder_stack(module, x):
    for layer in module.layers:
        x = layer.norm1(x + torch_multihead(layer.self_attn, x, x))
        x = layer.norm2(x + layer.linear2(torch.relu(layer.linear1(x))))
    return x


class SequenceFirstAttention(nn.Module):
    """Takes (length, batch, width), as older toolkits lay sequences out."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        length, bsz, width = x.size()
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        q = (q * self.scaling).contiguous().view(length, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        k = k.contiguous().view(length, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        v = v.contiguous().view(length, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        weights = F.softmax(torch.bmm(q, k.transpose(1, 2)), dim=-1)
        attn = torch.bmm(weights, v).transpose(0, 1).contiguous().view(length, bsz, width)
        return self.out_proj(attn)


class TransformerLayer(nn.Module):
    """Batch-first around a sequence-first attention."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.self_attn = SequenceFirstAttention(embed_dim, num_heads)
        self.self_attn_layer_norm = nn.LayerNorm(embed_dim)
        self.fc = nn.Linear(embed_dim, embed_dim)

    def attend(self, x):
        return self.self_attn(x.transpose(0, 1)).transpose(0, 1)

    def forward(self, x):
        x = self.self_attn_layer_norm(x + self.attend(x))
        return x + torch.tanh(self.fc(x))


class CarelessTransformerLayer(TransformerLayer):
    def attend(self, x):
        return self.self_attn(x)


def wrong_own_module_in_block(B, H, L, Dk):
    return CarelessTransformerLayer(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_own_module_in_block(B, H, L, Dk):
    return TransformerLayer(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_own_module_in_block(module, x):
    inner = module.self_attn
    attended = inner.out_proj(multihead(*inner.in_proj(x).chunk(3, dim=-1), inner.num_heads))
    x = module.self_attn_layer_norm(x + attended)
    return x + torch.tanh(module.fc(x))


class FunctionalAttention(nn.Module):
    """Calls torch's function, which is sequence-first whatever the caller is."""

    def __init__(self, dim, heads):
        super().__init__()
        self.dim, self.heads = dim, heads
        self.qkv_weight = nn.Parameter(torch.randn(3 * dim, dim) / math.sqrt(dim))
        self.qkv_bias = nn.Parameter(torch.randn(3 * dim))
        self.out = nn.Linear(dim, dim)

    def multi_head(self, x):
        weights = (self.qkv_weight, self.qkv_bias, None, None, False, 0.0, self.out.weight, self.out.bias)
        return F.multi_head_attention_forward(x, x, x, self.dim, self.heads, *weights, training=False)[0]

    def forward(self, x):
        return self.multi_head(x.permute(1, 0, 2)).permute(1, 0, 2)


class BatchFirstFunctional(FunctionalAttention):
    def forward(self, x):
        return self.multi_head(x)


def wrong_functional_forward(B, H, L, Dk):
    return BatchFirstFunctional(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_functional_forward(B, H, L, Dk):
    return FunctionalAttention(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_functional_forward(module, x):
    q, k, v = (x @ module.qkv_weight.T + module.qkv_bias).chunk(3, dim=-1)
    return module.out(multihead(q, k, v, module.heads))


def _decoder(d_model, heads, **options):
    return nn.TransformerDecoderLayer(d_model, heads, 2 * d_model, norm_first=True, **options)


def wrong_decoder_layer(B, H, L, Dk):
    return _decoder(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(B, L, H * Dk)), {}


def right_decoder_layer(B, H, L, Dk):
    return _decoder(H * Dk, H, batch_first=True), (torch.randn(B, L, H * Dk), torch.randn(B, L, H * Dk)), {}


def reference_decoder_layer(module, x, memory):
    h = module.norm1(x)
    x = x + torch_multihead(module.self_attn, h, h)
    x = x + torch_multihead(module.multihead_attn, module.norm2(x), memory)
    return x + module.linear2(torch.relu(module.linear1(module.norm3(x))))
