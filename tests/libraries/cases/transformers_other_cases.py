"""transformers: encoder-decoders, vision, and compressed keys and values."""

from typing import Any

import torch
from transformers import (
    BartConfig,
    CLIPVisionConfig,
    DeepseekV3Config,
    DynamicCache,
    SwinConfig,
    T5Config,
    ViTConfig,
    WhisperConfig,
)
from transformers.models.bart.modeling_bart import BartAttention
from transformers.models.clip.modeling_clip import CLIPAttention
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding
from transformers.models.swin.modeling_swin import SwinAttention, SwinLayer
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.vit.modeling_vit import ViTAttention
from transformers.models.whisper.modeling_whisper import WhisperAttention


def t5_self(B: int, H: int, L: int, D: int, Dk: int) -> Any:
    """T5's self-attention with its relative position bias; H*Dk differs from D."""
    config = T5Config(d_model=D, num_heads=H, d_kv=Dk, attn_implementation="eager")
    return T5Attention(config, has_relative_attention_bias=True, layer_idx=0), (torch.randn(B, L, D),)


def t5_cross(B: int, H: int, Lq: int, Lk: int, D: int, Dk: int) -> Any:
    """T5's attention to the encoder."""
    config = T5Config(d_model=D, num_heads=H, d_kv=Dk, is_decoder=True, attn_implementation="eager")
    arguments = {"key_value_states": torch.randn(B, Lk, D)}
    return T5Attention(config, layer_idx=0), (torch.randn(B, Lq, D),), arguments


def whisper_cross(B: int, H: int, Lq: int, Lk: int, D: int) -> Any:
    """Whisper's attention of the decoder to the audio."""
    config = WhisperConfig(d_model=D, decoder_attention_heads=H, attn_implementation="eager")
    module = WhisperAttention(D, H, is_decoder=True, layer_idx=0, config=config)
    return module, (torch.randn(B, Lq, D),), {"key_value_states": torch.randn(B, Lk, D)}


def bart_cross(B: int, H: int, Lq: int, Lk: int, D: int) -> Any:
    """BART's attention of the decoder to the encoder, by fused attention."""
    config = BartConfig(d_model=D, decoder_attention_heads=H, attn_implementation="sdpa")
    module = BartAttention(D, H, is_decoder=True, layer_idx=0, config=config)
    return module, (torch.randn(B, Lq, D),), {"key_value_states": torch.randn(B, Lk, D)}


def bart_decoding(B: int, H: int, L: int, Lp: int, D: int) -> Any:
    """BART's self-attention of L new tokens after Lp cached ones."""
    config = BartConfig(d_model=D, decoder_attention_heads=H, attn_implementation="eager")
    module = BartAttention(D, H, is_decoder=True, is_causal=True, layer_idx=0, config=config)
    cache = DynamicCache()
    cache.update(torch.randn(B, H, Lp, D // H), torch.randn(B, H, Lp, D // H), 0)
    return module, (torch.randn(B, L, D),), {"past_key_values": cache}


def vit(B: int, H: int, L: int, D: int) -> Any:
    """ViT's attention."""
    config = ViTConfig(hidden_size=D, num_attention_heads=H, attn_implementation="eager")
    return ViTAttention(config), (torch.randn(B, L, D),)


def clip(B: int, H: int, L: int, D: int) -> Any:
    """CLIP's attention, by fused attention."""
    config = CLIPVisionConfig(hidden_size=D, num_attention_heads=H, attn_implementation="sdpa")
    return CLIPAttention(config), (torch.randn(B, L, D),)


def swin(B: int, H: int, L: int, D: int, W: int) -> Any:
    """Swin's attention in L shifted windows of W by W, each with its own mask."""
    config = SwinConfig(window_size=W, attn_implementation="eager")
    mask = torch.randn(L, W * W, W * W)
    return SwinAttention(config, D, H, W), (torch.randn(B * L, W * W, D), mask)


def swin_layer(B: int, H: int, Lq: int, Lk: int, D: int, W: int) -> Any:
    """A layer of Swin on Lq by Lk windows, shifted by one row and column."""
    config = SwinConfig(window_size=W, attn_implementation="eager")
    size = (Lq * W, Lk * W)
    return SwinLayer(config, D, size, H, shift_size=1), (torch.randn(B, size[0] * size[1], D), size)


def deepseek_v3(B: int, H: int, L: int, D: int, Dk: int, Dv: int) -> Any:
    """DeepSeek-V3's latent attention; Dk of the 3*Dk features of a query are rotated, as of the paper's 128 + 64."""
    config = _deepseek(H, D, Dk, Dv)
    x = torch.randn(B, L, D)
    rotary = DeepseekV3RotaryEmbedding(config)(x, torch.arange(L).expand(B, L))
    mask = torch.full((L, L), torch.finfo().min).triu(1)[None, None]
    return DeepseekV3Attention(config, 0), (x, rotary, mask)


def deepseek_v3_decoding(B: int, H: int, L: int, Lp: int, D: int, Dk: int, Dv: int) -> Any:
    """DeepSeek-V3's latent attention after a cache of Lp compressed keys and values."""
    config = _deepseek(H, D, Dk, Dv)
    x = torch.randn(B, L, D)
    rotary = DeepseekV3RotaryEmbedding(config)(x, torch.arange(Lp, Lp + L).expand(B, L))
    mask = torch.full((L, Lp + L), torch.finfo().min).triu(Lp + 1)[None, None]
    cache = DynamicCache()
    cache.update(torch.randn(B, 1, Lp, 4 * Dv), torch.randn(B, 1, Lp, Dk), 0)
    return DeepseekV3Attention(config, 0), (x, rotary, mask), {"past_key_values": cache}


def _deepseek(H: int, D: int, Dk: int, Dv: int) -> DeepseekV3Config:
    return DeepseekV3Config(
        hidden_size=D,
        num_attention_heads=H,
        num_key_value_heads=H,
        q_lora_rank=3 * Dv,
        kv_lora_rank=4 * Dv,
        qk_nope_head_dim=2 * Dk,
        qk_rope_head_dim=Dk,
        v_head_dim=Dv,
        attn_implementation="eager",
    )
