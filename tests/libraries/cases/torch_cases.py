"""torch's own attention."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional


def mha_self(B: int, H: int, L: int, D: int) -> Any:
    """nn.MultiheadAttention that also returns its weights, averaged over the heads."""
    x = torch.randn(B, L, D)
    return nn.MultiheadAttention(D, H, batch_first=True), (x, x, x)


def mha_cross(B: int, H: int, Lq: int, Lk: int, D: int) -> Any:
    """nn.MultiheadAttention without weights, sequence first: fused attention."""
    query, memory = torch.randn(Lq, B, D), torch.randn(Lk, B, D)
    return nn.MultiheadAttention(D, H), (query, memory, memory), {"need_weights": False}


def mha_padded(B: int, H: int, Lq: int, Lk: int, D: int, Dk: int, Dv: int) -> Any:
    """nn.MultiheadAttention with other widths of keys and values and with padding; returns the weights per head."""
    module = nn.MultiheadAttention(D, H, kdim=Dk, vdim=Dv, batch_first=True)
    padding = torch.arange(Lk)[None] >= (Lk - torch.arange(B) % Lk)[:, None]
    args = torch.randn(B, Lq, D), torch.randn(B, Lk, Dk), torch.randn(B, Lk, Dv)
    return module, args, {"key_padding_mask": padding, "average_attn_weights": False}


def mha_function(B: int, H: int, Lq: int, Lk: int, D: int) -> Any:
    """F.multi_head_attention_forward with bias_k and bias_v: one more key."""
    query, memory = torch.randn(Lq, B, D), torch.randn(Lk, B, D)
    in_weight, in_bias = torch.randn(3 * D, D), torch.randn(3 * D)
    bias_k, bias_v = torch.randn(1, 1, D), torch.randn(1, 1, D)
    out_weight, out_bias = torch.randn(D, D), torch.randn(D)
    args = (query, memory, memory, D, H, in_weight, in_bias, bias_k, bias_v, False, 0.0, out_weight, out_bias)
    return functional.multi_head_attention_forward, args


def encoder_layer(B: int, H: int, L: int, D: int) -> Any:
    """nn.TransformerEncoderLayer."""
    return nn.TransformerEncoderLayer(D, H, 4 * D, batch_first=True), (torch.randn(B, L, D),)


def decoder_layer(B: int, H: int, Lq: int, Lk: int, D: int) -> Any:
    """nn.TransformerDecoderLayer with a causal mask, norm first."""
    module = nn.TransformerDecoderLayer(D, H, 4 * D, batch_first=True, norm_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(Lq)
    return module, (torch.randn(B, Lq, D), torch.randn(B, Lk, D)), {"tgt_mask": mask, "tgt_is_causal": True}


def transformer(B: int, H: int, Lq: int, Lk: int, D: int) -> Any:
    """nn.Transformer of one encoder and one decoder layer: Lk source, Lq target tokens."""
    module = nn.Transformer(D, H, 1, 1, 2 * D, batch_first=True)
    return module, (torch.randn(B, Lk, D), torch.randn(B, Lq, D))


def fused(B: int, H: int, Hkv: int, Lq: int, Lk: int, Dk: int, Dv: int) -> Any:
    """F.scaled_dot_product_attention with grouped heads."""
    query, key, value = torch.randn(B, H, Lq, Dk), torch.randn(B, Hkv, Lk, Dk), torch.randn(B, Hkv, Lk, Dv)
    return functional.scaled_dot_product_attention, (query, key, value), {"enable_gqa": True}
