"""diffusers: attention inside a U-Net."""

from typing import Any

import torch
from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.attention_processor import Attention, AttnAddedKVProcessor, AttnProcessor


def cross(B: int, H: int, Lq: int, Lk: int, D: int, Dk: int, Dv: int) -> Any:
    """Attention to a text whose width is Dv: heads folded into the batch, scores by baddbmm."""
    module = Attention(D, cross_attention_dim=Dv, heads=H, dim_head=Dk, processor=AttnProcessor())
    return module, (torch.randn(B, Lq, D), torch.randn(B, Lk, Dv))


def image(B: int, H: int, Lq: int, Lk: int, D: int, Dk: int) -> Any:
    """Self-attention of an image of Lq by Lk pixels, by fused attention, with its residual."""
    module = Attention(D, heads=H, dim_head=Dk, residual_connection=True)
    return module, (torch.randn(B, D, Lq, Lk),)


def added_keys(B: int, H: int, Lq: int, Lk: int, D: int, Dk: int, Dv: int) -> Any:
    """Self-attention of Lq pixels to themselves and to Lk tokens of a text."""
    module = Attention(
        D, heads=H, dim_head=Dk, added_kv_proj_dim=Dv, norm_num_groups=1, processor=AttnAddedKVProcessor()
    )
    return module, (torch.randn(B, D, Lq), torch.randn(B, Lk, Dv))


def block(B: int, H: int, Lq: int, Lk: int, D: int, Dv: int) -> Any:
    """A block of self-attention, cross-attention and a gated feed-forward."""
    module = BasicTransformerBlock(D, H, D // H, cross_attention_dim=Dv)
    return module, (torch.randn(B, Lq, D),), {"encoder_hidden_states": torch.randn(B, Lk, Dv)}
