"""AS113: the fused query-key-value tensor is cut along the wrong axis."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import causal, multihead

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3},
    {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6},
    {"B": 5, "H": 3, "Lq": 4, "Lk": 9, "Dk": 6},
)
PAIRS = [
    ("AS113", "three_before_length", *SIZES),
    ("AS113", "three_first", *SIZES),
    ("AS113", "sequence_first", *SIZES),
    ("AS113", "key_value_pair", *CROSS),
]


class FusedCausal(nn.Module):
    """A decoder block's attention, masked by a buffer that is as long as the sequence."""

    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.n_head = n_head
        self.ln = nn.LayerNorm(n_embd)
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)).bool())

    def cut(self, qkv):
        B, T, C = qkv.shape
        return qkv.view(B, T, 3, C // 3).unbind(2)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.cut(self.c_attn(self.ln(x))))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(~self.tril[:T, :T], float("-inf")).softmax(dim=-1)
        return x + self.c_proj((att @ v).transpose(1, 2).contiguous().view(B, T, C))


class FusedCausalCut(FusedCausal):
    def cut(self, qkv):
        B, T, C = qkv.shape
        return qkv.view(B, 3, T, C // 3).unbind(1)  # wrong: AS113 three_before_length


def wrong_three_before_length(B, H, L, Dk):
    return FusedCausalCut(H * Dk, H, L), (torch.randn(B, L, H * Dk),), {}


def right_three_before_length(B, H, L, Dk):
    return FusedCausal(H * Dk, H, L), (torch.randn(B, L, H * Dk),), {}


def reference_three_before_length(module, x):
    h, width = F.layer_norm(x, x.shape[-1:]), x.shape[-1]
    parts = zip(module.c_attn.weight.split(width), module.c_attn.bias.split(width), strict=True)
    q, k, v = (h @ weight.T + bias for weight, bias in parts)
    return x + module.c_proj(multihead(q, k, v, module.n_head, keep=causal(x.shape[1], x.shape[1])))


def patch_attention(x, qkv_weight, proj_weight, heads):
    """Self-attention of patches (B, N, C), `qkv_weight` (3*C, C)."""
    B, N, C = x.shape
    qkv = F.linear(x, qkv_weight).reshape(B, N, 3, heads, C // heads).permute(2, 0, 3, 1, 4)
    q, k, v = qkv[0], qkv[1], qkv[2]
    out = F.scaled_dot_product_attention(q, k, v)
    return F.linear(out.transpose(1, 2).reshape(B, N, C), proj_weight)


def patch_attention_direct(x, qkv_weight, proj_weight, heads):
    """Self-attention of patches (B, N, C), `qkv_weight` (3*C, C)."""
    B, N, C = x.shape
    qkv = F.linear(x, qkv_weight).reshape(3, B, N, heads, C // heads).transpose(2, 3)  # wrong: AS113 three_first
    q, k, v = qkv[0], qkv[1], qkv[2]
    out = F.scaled_dot_product_attention(q, k, v)
    return F.linear(out.transpose(1, 2).reshape(B, N, C), proj_weight)


def _patches(B, H, L, Dk):
    D = H * Dk
    return torch.randn(B, L, D), torch.randn(3 * D, D) / math.sqrt(D), torch.randn(D, D), H


def wrong_three_first(B, H, L, Dk):
    return patch_attention_direct, _patches(B, H, L, Dk), {}


def right_three_first(B, H, L, Dk):
    return patch_attention, _patches(B, H, L, Dk), {}


def reference_three_first(function, x, qkv_weight, proj_weight, heads):
    q, k, v = (x @ weight.T for weight in qkv_weight.chunk(3))
    return multihead(q, k, v, heads) @ proj_weight.T


class SequenceFirst(nn.Module):
    """Batch-first outside, (L, B*H, Dk) inside."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def cut(self, qkv):
        tgt_len, bsz, width = qkv.shape
        return (t.reshape(tgt_len, bsz * self.num_heads, self.head_dim) for t in qkv.split(width // 3, dim=-1))

    def forward(self, x):
        q, k, v = (t.transpose(0, 1) for t in self.cut(self.in_proj(x.transpose(0, 1))))
        probs = torch.bmm(q * self.head_dim**-0.5, k.transpose(1, 2)).softmax(dim=-1)
        out = torch.bmm(probs, v).transpose(0, 1).reshape(x.shape[1], x.shape[0], x.shape[2])
        return self.out_proj(out).transpose(0, 1)


class SequenceFirstCut(SequenceFirst):
    def cut(self, qkv):
        tgt_len, bsz, _ = qkv.shape
        qkv = qkv.view(tgt_len, 3, bsz * self.num_heads, self.head_dim)  # wrong: AS113 sequence_first
        return qkv.unbind(1)


def wrong_sequence_first(B, H, L, Dk):
    return SequenceFirstCut(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_sequence_first(B, H, L, Dk):
    return SequenceFirst(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_sequence_first(module, x):
    return module.out_proj(multihead(*module.in_proj(x).chunk(3, dim=-1), module.num_heads))


class MemoryReader(nn.Module):
    """Keys and values of the memory come from one projection."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.proj = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def keys_and_values(self, memory):
        B, M, D = memory.shape
        return self.kv(memory).reshape(B, M, 2, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)

    def forward(self, x, memory):
        B, N, D = x.shape
        q = self.q(x).reshape(B, N, self.heads, D // self.heads).permute(0, 2, 1, 3)
        k, v = self.keys_and_values(memory)
        attn = (q @ k.transpose(-2, -1)).mul((D // self.heads) ** -0.5).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, D))


class MemoryReaderCut(MemoryReader):
    def keys_and_values(self, memory):
        B, M, D = memory.shape
        kv = self.kv(memory).reshape(B, 2, M, self.heads, D // self.heads)  # wrong: AS113 key_value_pair
        return kv.permute(1, 0, 3, 2, 4)


def wrong_key_value_pair(B, H, Lq, Lk, Dk):
    return MemoryReaderCut(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def right_key_value_pair(B, H, Lq, Lk, Dk):
    return MemoryReader(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def reference_key_value_pair(module, x, memory):
    k, v = module.kv(memory).chunk(2, dim=-1)
    return module.proj(multihead(module.q(x), k, v, module.heads))
