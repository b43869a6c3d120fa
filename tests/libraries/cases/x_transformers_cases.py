"""x-transformers: one attention with many options."""

from typing import Any

import torch
from x_transformers.x_transformers import Attention, RotaryEmbedding


def grouped(B: int, H: int, Hkv: int, L: int, D: int, Dk: int) -> Any:
    """Causal, with fewer key heads than query heads."""
    return Attention(D, dim_head=Dk, heads=H, kv_heads=Hkv, causal=True), (torch.randn(B, L, D),)


def one_key_head(B: int, H: int, L: int, D: int, Dk: int) -> Any:
    """One head of keys and values for all queries, rotated."""
    arguments = {"rotary_pos_emb": RotaryEmbedding(Dk)(torch.arange(L))}
    return Attention(D, dim_head=Dk, heads=H, one_kv_head=True), (torch.randn(B, L, D),), arguments


def cross_padded(B: int, H: int, Lq: int, Lk: int, D: int, Dk: int, Dv: int) -> Any:
    """Cross-attention to a padded context, with another width of values."""
    module = Attention(D, dim_head=Dk, heads=H, value_dim_head=Dv)
    mask = torch.arange(Lk) < Lk - torch.arange(B)[:, None] % Lk
    return module, (torch.randn(B, Lq, D),), {"context": torch.randn(B, Lk, D), "context_mask": mask}


def memories(B: int, H: int, L: int, D: int, Dk: int, W: int) -> Any:
    """W learned keys and values before the sequence's own, queries and keys normalized."""
    return Attention(D, dim_head=Dk, heads=H, num_mem_kv=W, qk_norm=True), (torch.randn(B, L, D),)


def talking_heads(B: int, H: int, L: int, D: int, Dk: int) -> Any:
    """Heads mixed before and after the softmax."""
    module = Attention(D, dim_head=Dk, heads=H, pre_talking_heads=True, post_talking_heads=True)
    return module, (torch.randn(B, L, D),)


def flash(B: int, H: int, Lq: int, Lk: int, D: int, Dk: int) -> Any:
    """Cross-attention by fused attention."""
    return Attention(D, dim_head=Dk, heads=H, flash=True), (torch.randn(B, Lq, D), torch.randn(B, Lk, D))
