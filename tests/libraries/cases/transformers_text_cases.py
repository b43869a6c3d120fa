"""transformers: encoders and decoders of text."""

from typing import Any

import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BloomConfig,
    DebertaConfig,
    DistilBertConfig,
    DynamicCache,
    FalconConfig,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    LongformerConfig,
    MistralConfig,
    Qwen3Config,
)
from transformers.models.bert.modeling_bert import BertSelfAttention
from transformers.models.bloom.modeling_bloom import BloomAttention, build_alibi_tensor
from transformers.models.deberta.modeling_deberta import DisentangledSelfAttention, build_relative_position
from transformers.models.distilbert.modeling_distilbert import DistilBertSelfAttention
from transformers.models.falcon.modeling_falcon import FalconAttention, FalconRotaryEmbedding
from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention, Gemma2RotaryEmbedding
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention, GPTNeoXRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention
from transformers.models.mistral.modeling_mistral import MistralAttention
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention


def causal_mask(queries: int, keys: int) -> Tensor:
    """Return an additive mask, (1, 1, queries, keys): the last query sees all keys."""
    return torch.full((queries, keys), torch.finfo().min).triu(keys - queries + 1)[None, None]


def positions(batch: int, length: int, past: int = 0) -> Tensor:
    """Return position ids, (batch, length), that follow the cached ones."""
    return torch.arange(past, past + length).expand(batch, length)


def filled(*shape: int) -> DynamicCache:
    """Return a cache whose first layer has keys and values of the given shape."""
    cache = DynamicCache()
    cache.update(torch.randn(*shape), torch.randn(*shape), 0)
    return cache


def bert(B: int, H: int, L: int, D: int) -> Any:
    """BERT's self-attention, eager."""
    config = BertConfig(hidden_size=D, num_attention_heads=H, attn_implementation="eager")
    return BertSelfAttention(config), (torch.randn(B, L, D),)


def distilbert(B: int, H: int, L: int, D: int) -> Any:
    """DistilBERT's self-attention by fused attention, padded."""
    config = DistilBertConfig(dim=D, n_heads=H, attn_implementation="sdpa")
    mask = (torch.arange(L) < L - torch.arange(B)[:, None] % L)[:, None, None, :].expand(B, 1, L, L)
    return DistilBertSelfAttention(config), (torch.randn(B, L, D), mask)


def gpt2(B: int, H: int, L: int, D: int) -> Any:
    """GPT-2's attention, eager, causal."""
    config = GPT2Config(n_embd=D, n_head=H, attn_implementation="eager")
    return GPT2Attention(config, layer_idx=0), (torch.randn(B, L, D),), {"attention_mask": causal_mask(L, L)}


def gpt2_upcast(B: int, H: int, L: int, D: int) -> Any:
    """GPT-2's attention with scores by baddbmm in float32."""
    config = GPT2Config(n_embd=D, n_head=H, reorder_and_upcast_attn=True, attn_implementation="eager")
    return GPT2Attention(config, layer_idx=0), (torch.randn(B, L, D),), {"attention_mask": causal_mask(L, L)}


def gpt2_cross(B: int, H: int, Lq: int, Lk: int, D: int) -> Any:
    """GPT-2's cross-attention."""
    config = GPT2Config(n_embd=D, n_head=H, attn_implementation="eager")
    module = GPT2Attention(config, is_cross_attention=True, layer_idx=0)
    return module, (torch.randn(B, Lq, D),), {"encoder_hidden_states": torch.randn(B, Lk, D)}


def llama(B: int, H: int, Hkv: int, L: int, Lp: int, D: int) -> Any:
    """Llama's grouped-query attention after Lp cached positions."""
    config = LlamaConfig(
        hidden_size=D, num_attention_heads=H, num_key_value_heads=Hkv, head_dim=D // H, attn_implementation="eager"
    )
    x = torch.randn(B, L, D)
    rotary = LlamaRotaryEmbedding(config)(x, positions(B, L, Lp))
    cache = filled(B, Hkv, Lp, D // H)
    return LlamaAttention(config, 0), (x, rotary, causal_mask(L, Lp + L)), {"past_key_values": cache}


def llama_fused(B: int, H: int, Hkv: int, L: int, D: int) -> Any:
    """Llama's attention by fused attention, without a cache."""
    config = LlamaConfig(
        hidden_size=D, num_attention_heads=H, num_key_value_heads=Hkv, head_dim=D // H, attn_implementation="sdpa"
    )
    x = torch.randn(B, L, D)
    return LlamaAttention(config, 0), (x, LlamaRotaryEmbedding(config)(x, positions(B, L)), None)


def mistral(B: int, H: int, Hkv: int, L: int, D: int, W: int) -> Any:
    """Mistral's attention; a query sees the last W keys."""
    config = MistralConfig(
        hidden_size=D,
        num_attention_heads=H,
        num_key_value_heads=Hkv,
        head_dim=D // H,
        sliding_window=W,
        attn_implementation="eager",
    )
    x = torch.randn(B, L, D)
    outside = torch.ones(L, L).triu(1) + torch.ones(L, L).tril(-W)
    return MistralAttention(config, 0), (
        x,
        LlamaRotaryEmbedding(config)(x, positions(B, L)),
        (outside * torch.finfo().min)[None, None],
    )


def qwen3(B: int, H: int, Hkv: int, L: int, D: int, Dk: int) -> Any:
    """Qwen3's attention: queries and keys are normalized, and H*Dk differs from D."""
    config = Qwen3Config(
        hidden_size=D, num_attention_heads=H, num_key_value_heads=Hkv, head_dim=Dk, attn_implementation="eager"
    )
    x = torch.randn(B, L, D)
    return Qwen3Attention(config, 0), (x, LlamaRotaryEmbedding(config)(x, positions(B, L)), causal_mask(L, L))


def gemma2(B: int, H: int, Hkv: int, L: int, D: int, Dk: int) -> Any:
    """Gemma 2's attention: scores capped by tanh."""
    config = Gemma2Config(
        hidden_size=D, num_attention_heads=H, num_key_value_heads=Hkv, head_dim=Dk, attn_implementation="eager"
    )
    x = torch.randn(B, L, D)
    return Gemma2Attention(config, 0), (x, Gemma2RotaryEmbedding(config)(x, positions(B, L)), causal_mask(L, L))


def gpt_neox(B: int, H: int, L: int, Lp: int, D: int) -> Any:
    """GPT-NeoX's attention: half of each head is rotated; after Lp cached positions."""
    config = GPTNeoXConfig(
        hidden_size=D,
        num_attention_heads=H,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        attn_implementation="eager",
    )
    x = torch.randn(B, L, D)
    rotary = GPTNeoXRotaryEmbedding(config)(x, positions(B, L, Lp))
    arguments = {"layer_past": filled(B, H, Lp, D // H), "position_embeddings": rotary}
    return GPTNeoXAttention(config, 0), (x, causal_mask(L, Lp + L)), arguments


def falcon(B: int, H: int, L: int, D: int) -> Any:
    """Falcon 7B's attention: all heads share one key and value."""
    config = FalconConfig(hidden_size=D, num_attention_heads=H, multi_query=True, attn_implementation="eager")
    x = torch.randn(B, L, D)
    rotary = FalconRotaryEmbedding(config)(x, positions(B, L))
    return FalconAttention(config, 0), (x, None, causal_mask(L, L)), {"position_embeddings": rotary}


def falcon_grouped(B: int, H: int, Hkv: int, L: int, D: int) -> Any:
    """Falcon 40B's attention: queries, key and value of each group lie side by side."""
    config = FalconConfig(
        hidden_size=D,
        num_attention_heads=H,
        num_kv_heads=Hkv,
        new_decoder_architecture=True,
        attn_implementation="eager",
    )
    x = torch.randn(B, L, D)
    rotary = FalconRotaryEmbedding(config)(x, positions(B, L))
    return FalconAttention(config, 0), (x, None, causal_mask(L, L)), {"position_embeddings": rotary}


def bloom(B: int, H: int, L: int, D: int) -> Any:
    """BLOOM's attention: ALiBi, heads folded into the batch, scores by baddbmm."""
    config = BloomConfig(hidden_size=D, n_head=H, attn_implementation="eager")
    x = torch.randn(B, L, D)
    alibi = build_alibi_tensor(torch.ones(B, L), H, torch.float32)
    return BloomAttention(config, 0), (x, torch.randn(B, L, D), alibi, causal_mask(L, L))


def deberta(B: int, H: int, L: int, D: int, W: int) -> Any:
    """DeBERTa's disentangled attention: content to position and position to content, W positions at most."""
    config = DebertaConfig(
        hidden_size=D,
        num_attention_heads=H,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        max_relative_positions=W,
    )
    x = torch.randn(B, L, D)
    arguments = {"relative_pos": build_relative_position(x, x), "rel_embeddings": torch.randn(2 * W, D)}
    return DisentangledSelfAttention(config), (x, torch.ones(B, 1, L, L)), arguments


def longformer(B: int, H: int, L: int, D: int, W: int) -> Any:
    """Longformer's sliding window, W keys on either side; 2*W must divide L."""
    config = LongformerConfig(hidden_size=D, num_attention_heads=H, attention_window=[2 * W])
    arguments = {
        "attention_mask": torch.zeros(B, L),
        "is_index_masked": torch.zeros(B, L).bool(),
        "is_index_global_attn": torch.zeros(B, L).bool(),
        "is_global_attn": False,
    }
    return LongformerSelfAttention(config, 0), (torch.randn(B, L, D),), arguments


def longformer_global(B: int, H: int, L: int, D: int, W: int) -> Any:
    """Longformer with one global token, which attends to all tokens and is visible to all."""
    module, args, arguments = longformer(B, H, L, D, W)
    first = torch.zeros(B, L).bool()
    first[:, 0] = True
    return module, args, arguments | {"is_index_global_attn": first, "is_global_attn": True}
