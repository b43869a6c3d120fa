"""AS101: what one sequence of the batch is reaches another one."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.plain import attention, join, multihead

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 4, "Dk": 6}, {"B": 4, "H": 3, "L": 7, "Dk": 8})
PAIRS = [
    ("AS101", "standardised_block", *SIZES),
    ("AS101", "batch_norm_vit", *SIZES),
    ("AS101", "head_gate", *SIZES),
    ("AS101", "einsum_batch_letter", *SIZES),
    ("AS101", "centred_keys", *SIZES),
    ("AS101", "largest_of_all", *SIZES),
]


class SelfAttention(nn.Module):
    """Multi-head self-attention, one projection for all three."""

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (
            part.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for part in self.c_attn(x).split(C, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


def plain_attention(module, x):
    return module.c_proj(multihead(*module.c_attn(x).chunk(3, dim=-1), module.n_head))


class EncoderBlock(nn.Module):
    """Pre-norm block whose norm is written by hand."""

    def __init__(self, n_embd, n_head, eps=1e-5):
        super().__init__()
        self.attn = SelfAttention(n_embd, n_head)
        self.gain = nn.Parameter(torch.rand(n_embd) + 0.5)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 2 * n_embd), nn.GELU(), nn.Linear(2 * n_embd, n_embd))
        self.eps = eps

    def standardise(self, x):
        mean, var = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) * torch.rsqrt(var + self.eps) * self.gain

    def forward(self, x):
        x = x + self.attn(self.standardise(x))
        return x + self.mlp(self.standardise(x))


class StandardisedBlock(EncoderBlock):
    def standardise(self, x):
        mean, var = x.mean(0, keepdim=True), x.var(0, unbiased=False, keepdim=True)  # wrong: AS101 standardised_block
        return (x - mean) * torch.rsqrt(var + self.eps) * self.gain


def wrong_standardised_block(B, H, L, Dk):
    return StandardisedBlock(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_standardised_block(B, H, L, Dk):
    return EncoderBlock(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_standardised_block(module, x):
    def norm(x):
        return F.layer_norm(x, x.shape[-1:], module.gain, None, module.eps)

    x = x + plain_attention(module.attn, norm(x))
    return x + module.mlp(norm(x))


class VisionBlock(nn.Module):
    """Attention over patches; the norm is chosen by the subclass."""

    def __init__(self, dim, heads):
        super().__init__()
        self.norm = self.make_norm(dim)
        self.attn = SelfAttention(dim, heads)

    def make_norm(self, dim):
        return nn.LayerNorm(dim)

    def forward(self, tokens):
        return tokens + self.attn(self.norm(tokens))


class BatchNormBlock(VisionBlock):
    def make_norm(self, dim):
        return nn.BatchNorm1d(dim, track_running_stats=False)

    def forward(self, tokens):
        normed = self.norm(tokens.transpose(1, 2)).transpose(1, 2)  # wrong: AS101 batch_norm_vit
        return tokens + self.attn(normed)


def wrong_batch_norm_vit(B, H, L, Dk):
    return BatchNormBlock(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_batch_norm_vit(B, H, L, Dk):
    return VisionBlock(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_batch_norm_vit(module, tokens):
    centred = tokens - tokens.mean(-1, keepdim=True)
    normed = centred / (centred.square().mean(-1, keepdim=True) + module.norm.eps).sqrt()
    return tokens + plain_attention(module.attn, normed * module.norm.weight + module.norm.bias)


class GatedHeads(nn.Module):
    """Each token distributes its features among the heads."""

    def __init__(self, d_model: int, heads: int):
        super().__init__()
        self.heads, self.d_head = heads, d_model // heads
        self.to_q = nn.Linear(d_model, d_model, bias=False)
        self.to_k = nn.Linear(d_model, d_model, bias=False)
        self.to_v = nn.Linear(d_model, d_model, bias=False)
        self.gate = nn.Linear(d_model, heads)
        self.out = nn.Linear(d_model, d_model)

    def share(self, x: Tensor) -> Tensor:
        return torch.softmax(self.gate(x), dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (f(x).view(b, n, self.heads, self.d_head) for f in (self.to_q, self.to_k, self.to_v))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * self.d_head**-0.5
        context = torch.einsum("bhij,bjhd->bihd", scores.softmax(dim=-1), v)
        return self.out((context * self.share(x).unsqueeze(-1)).flatten(2))


class GatedBatch(GatedHeads):
    def share(self, x: Tensor) -> Tensor:
        return torch.softmax(self.gate(x), dim=0)  # wrong: AS101 head_gate


def wrong_head_gate(B, H, L, Dk):
    return GatedBatch(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_head_gate(B, H, L, Dk):
    return GatedHeads(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_head_gate(module, x):
    context = multihead(module.to_q(x), module.to_k(x), module.to_v(x), module.heads)
    gate = module.gate(x).exp()
    gate = (gate / gate.sum(-1, keepdim=True)).repeat_interleave(module.d_head, dim=-1)
    return module.out(context * gate)


def attend_per_sequence(q, k, v, wo):
    weights = torch.einsum("bqhd,bkhd->bhqk", q, k).div(math.sqrt(q.shape[-1])).softmax(-1)
    context = torch.einsum("bhqk,bkhd->bqhd", weights, v)
    return torch.einsum("bqhd,hde->bqe", context, wo)


def attend_across(q, k, v, wo):
    weights = torch.einsum("bqhd,bkhd->bhqk", q, k).div(math.sqrt(q.shape[-1])).softmax(-1)
    context = torch.einsum("bhqk,nkhd->bqhd", weights, v)  # wrong: AS101 einsum_batch_letter
    return torch.einsum("bqhd,hde->bqe", context, wo)


def _tensors(B, H, L, Dk):
    return *(torch.randn(B, L, H, Dk) for _ in range(3)), torch.randn(H, Dk, H * Dk)


def wrong_einsum_batch_letter(B, H, L, Dk):
    return attend_across, _tensors(B, H, L, Dk), {}


def right_einsum_batch_letter(B, H, L, Dk):
    return attend_per_sequence, _tensors(B, H, L, Dk), {}


def reference_einsum_batch_letter(function, q, k, v, wo):
    return join(attention(*(x.transpose(1, 2) for x in (q, k, v)))) @ wo.reshape(-1, wo.shape[-1])


class SmoothedKeys(nn.Module):
    """Keys are centred over the sequence, which doesn't change the softmax and helps low precision."""

    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, hidden_size)
        self.v_proj = nn.Linear(hidden_size, hidden_size)
        self.o_proj = nn.Linear(hidden_size, hidden_size)

    def smooth(self, key):
        return key - key.mean(dim=-2, keepdim=True)

    def forward(self, hidden_states):
        shape = (*hidden_states.shape[:-1], self.num_heads, self.head_dim)
        query = self.q_proj(hidden_states).view(shape).transpose(1, 2)
        key = self.smooth(self.k_proj(hidden_states).view(shape).transpose(1, 2))
        value = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        weights = torch.matmul(query, key.transpose(2, 3)) * self.head_dim**-0.5
        output = torch.matmul(weights.softmax(dim=-1), value).transpose(1, 2)
        return self.o_proj(output.reshape(hidden_states.shape))


class SmoothedOverBatch(SmoothedKeys):
    def smooth(self, key):
        return key - key.mean(dim=0, keepdim=True)  # wrong: AS101 centred_keys


def wrong_centred_keys(B, H, L, Dk):
    return SmoothedOverBatch(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_centred_keys(B, H, L, Dk):
    return SmoothedKeys(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_centred_keys(module, x):
    return module.o_proj(multihead(module.q_proj(x), module.k_proj(x), module.v_proj(x), module.num_heads))


def attend_per_largest(q, k, v):
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    context = weights @ v
    return context / weights.sum(-2).amax((-2, -1))[:, None, None, None]


def attend_per_largest_of_all(q, k, v):
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    context = weights @ v
    largest = weights.sum(-2).max()  # wrong: AS101 largest_of_all
    return context / largest


def _heads(B, H, L, Dk):
    return tuple(torch.randn(B, H, L, Dk) for _ in range(3))


def wrong_largest_of_all(B, H, L, Dk):
    return attend_per_largest_of_all, _heads(B, H, L, Dk), {}


def right_largest_of_all(B, H, L, Dk):
    return attend_per_largest, _heads(B, H, L, Dk), {}


def reference_largest_of_all(module, q, k, v):
    weights = torch.einsum("bhqd,bhkd->bhqk", q, k).div(math.sqrt(q.shape[-1])).exp()
    weights = weights / weights.sum(-1, keepdim=True)
    return torch.stack([one @ values / one.sum(-2).max() for one, values in zip(weights, v, strict=True)])
