"""AS103: a product with weights runs along the tokens, where nothing should mix them."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.plain import attention, join, multihead, split

SQUARE = ({"B": 2, "H": 3, "Dk": 5}, {"B": 5, "H": 2, "Dk": 4}, {"B": 3, "H": 4, "Dk": 6})
"""Of these the length equals a width: elsewhere the mistake would fail at once."""
SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
PAIRS = [
    ("AS103", "weight_on_the_left", *SQUARE),
    ("AS103", "einsum_letters", *SQUARE),
    ("AS103", "conv_projection", *SQUARE),
    ("AS103", "head_mixer", *SQUARE),
    ("AS103", "averaging_left_in", *SIZES),
]


class ParameterAttention(nn.Module):
    """Self-attention with bare parameters in place of nn.Linear."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.depth = num_heads, d_model // num_heads
        self.w_q = nn.Parameter(torch.randn(d_model, d_model) / math.sqrt(d_model))
        self.w_k = nn.Parameter(torch.randn(d_model, d_model) / math.sqrt(d_model))
        self.w_v = nn.Parameter(torch.randn(d_model, d_model) / math.sqrt(d_model))
        self.w_o = nn.Parameter(torch.randn(d_model, d_model) / math.sqrt(d_model))

    def query(self, x):
        return torch.matmul(x, self.w_q.t())

    def split_heads(self, x):
        return x.reshape(x.size(0), -1, self.num_heads, self.depth).permute(0, 2, 1, 3)

    def forward(self, x):
        q = self.split_heads(self.query(x))
        k = self.split_heads(torch.matmul(x, self.w_k.t()))
        v = self.split_heads(torch.matmul(x, self.w_v.t()))
        logits = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.depth)
        out = torch.matmul(torch.softmax(logits, dim=-1), v)
        return torch.matmul(out.permute(0, 2, 1, 3).reshape(x.shape), self.w_o.t())


class LeftParameterAttention(ParameterAttention):
    def query(self, x):
        return torch.matmul(self.w_q, x)  # wrong: AS103 weight_on_the_left


def wrong_weight_on_the_left(B, H, Dk):
    return LeftParameterAttention(H * Dk, H), (torch.randn(B, H * Dk, H * Dk),), {}


def right_weight_on_the_left(B, H, Dk):
    return ParameterAttention(H * Dk, H), (torch.randn(B, H * Dk, H * Dk),), {}


def reference_weight_on_the_left(module, x):
    q, k, v = (F.linear(x, w) for w in (module.w_q, module.w_k, module.w_v))
    return F.linear(multihead(q, k, v, module.num_heads), module.w_o)


def einsum_attention(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wo: Tensor) -> Tensor:
    """`wq`, `wk` and `wv` are (D, H, Dk), `wo` is (D, D)."""
    q, k, v = (torch.einsum("bld,dhk->bhlk", x, w) for w in (wq, wk, wv))
    weights = torch.softmax(torch.einsum("bhik,bhjk->bhij", q, k) * q.shape[-1] ** -0.5, dim=-1)
    merged = torch.einsum("bhij,bhjk->bihk", weights, v).flatten(2)
    return torch.einsum("bld,de->ble", merged, wo)


def einsum_attention_out(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wo: Tensor) -> Tensor:
    """`wq`, `wk` and `wv` are (D, H, Dk), `wo` is (D, D)."""
    q, k, v = (torch.einsum("bld,dhk->bhlk", x, w) for w in (wq, wk, wv))
    weights = torch.softmax(torch.einsum("bhik,bhjk->bhij", q, k) * q.shape[-1] ** -0.5, dim=-1)
    merged = torch.einsum("bhij,bhjk->bihk", weights, v).flatten(2)
    return torch.einsum("bdl,de->bel", merged, wo)  # wrong: AS103 einsum_letters


def _weights(B, H, Dk):
    D = H * Dk
    projections = [torch.randn(D, H, Dk) / math.sqrt(D) for _ in range(3)]
    return torch.randn(B, D, D), *projections, torch.randn(D, D)


def wrong_einsum_letters(B, H, Dk):
    return einsum_attention_out, _weights(B, H, Dk), {}


def right_einsum_letters(B, H, Dk):
    return einsum_attention, _weights(B, H, Dk), {}


def reference_einsum_letters(function, x, wq, wk, wv, wo):
    q, k, v = (x @ w.flatten(1) for w in (wq, wk, wv))
    return multihead(q, k, v, wq.shape[1]) @ wo


class ConvProjection(nn.Module):
    """Projects by a convolution of width one, over (B, D, L)."""

    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.theta = nn.Conv1d(channels, channels, 1)
        self.phi = nn.Conv1d(channels, channels, 1)
        self.g = nn.Conv1d(channels, channels, 1)
        self.last = nn.Linear(channels, channels)

    def values(self, x):
        return self.g(x.transpose(1, 2)).transpose(1, 2)

    def forward(self, x):
        B, L, D = x.shape
        q = self.theta(x.transpose(1, 2)).reshape(B, self.heads, D // self.heads, L)
        k = self.phi(x.transpose(1, 2)).reshape(B, self.heads, D // self.heads, L)
        v = self.values(x).reshape(B, L, self.heads, D // self.heads).transpose(1, 2)
        attn = (q.transpose(-2, -1) @ k).div(math.sqrt(D // self.heads)).softmax(-1)
        return x + self.last((attn @ v).transpose(1, 2).flatten(2))


class DirectConvProjection(ConvProjection):
    def values(self, x):
        return self.g(x)  # wrong: AS103 conv_projection


def wrong_conv_projection(B, H, Dk):
    return DirectConvProjection(H * Dk, H), (torch.randn(B, H * Dk, H * Dk),), {}


def right_conv_projection(B, H, Dk):
    return ConvProjection(H * Dk, H), (torch.randn(B, H * Dk, H * Dk),), {}


def reference_conv_projection(module, x):
    q, k, v = (F.linear(x, conv.weight[:, :, 0], conv.bias) for conv in (module.theta, module.phi, module.g))
    return x + module.last(multihead(q, k, v, module.heads))


class PerHeadOutput(nn.Module):
    """Each head has its own output matrix, (H, Dk, Dk)."""

    def __init__(self, heads, d_head):
        super().__init__()
        self.heads, self.d_head = heads, d_head
        self.qkv = nn.Linear(heads * d_head, 3 * heads * d_head, bias=False)
        self.mix = nn.Parameter(torch.randn(heads, d_head, d_head))

    def per_head(self, context):
        return context @ self.mix

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, self.d_head).permute(2, 0, 3, 1, 4)
        context = F.scaled_dot_product_attention(q, k, v)
        return self.per_head(context).permute(0, 2, 1, 3).reshape(b, n, d)


class PerHeadOutputLeft(PerHeadOutput):
    def per_head(self, context):
        return self.mix @ context  # wrong: AS103 head_mixer


def wrong_head_mixer(B, H, Dk):
    return PerHeadOutputLeft(H, Dk), (torch.randn(B, Dk, H * Dk),), {}


def right_head_mixer(B, H, Dk):
    return PerHeadOutput(H, Dk), (torch.randn(B, Dk, H * Dk),), {}


def reference_head_mixer(module, x):
    q, k, v = (split(part, module.heads) for part in module.qkv(x).chunk(3, dim=-1))
    return join(torch.einsum("bhld,hde->bhle", attention(q, k, v), module.mix))


class Decoder(nn.Module):
    """A block that grew out of one that took the mean of what came before."""

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.ln = nn.LayerNorm(n_embd)
        self.key = nn.Linear(n_embd, n_embd, bias=False)
        self.query = nn.Linear(n_embd, n_embd, bias=False)
        self.value = nn.Linear(n_embd, n_embd, bias=False)
        self.proj = nn.Linear(n_embd, n_embd)

    def prepare(self, x):
        return self.ln(x)

    def forward(self, x):
        B, T, C = x.shape
        h = self.prepare(x)
        q, k, v = (f(h).view(B, T, self.n_head, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        wei = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        tril = torch.tril(torch.ones(T, T, device=x.device))
        wei = F.softmax(wei.masked_fill(tril == 0, float("-inf")), dim=-1)
        return x + self.proj((wei @ v).transpose(1, 2).reshape(B, T, C))


class AveragingDecoder(Decoder):
    def prepare(self, x):
        T = x.shape[1]
        tril = torch.tril(x.new_ones(T, T))
        past = tril / tril.sum(1, keepdim=True)
        x = past @ x  # wrong: AS103 averaging_left_in
        return self.ln(x)


def wrong_averaging_left_in(B, H, L, Dk):
    return AveragingDecoder(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_averaging_left_in(B, H, L, Dk):
    return Decoder(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_averaging_left_in(module, x):
    h = module.ln(x)
    q, k, v = module.query(h), module.key(h), module.value(h)
    keep = torch.tensor([[j <= i for j in range(x.shape[1])] for i in range(x.shape[1])])
    return x + module.proj(multihead(q, k, v, module.n_head, keep=keep))
