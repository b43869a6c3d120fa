"""labml-nn: sequence first, heads last."""

from typing import Any

import torch
from labml_nn.transformers.alibi import AlibiMultiHeadAttention
from labml_nn.transformers.mha import MultiHeadAttention
from labml_nn.transformers.retro.model import ChunkedCrossAttention
from labml_nn.transformers.rope import RotaryPEMultiHeadAttention
from labml_nn.transformers.xl.relative_mha import RelativeMultiHeadAttention


def cross(B: int, H: int, Lq: int, Lk: int, D: int) -> Any:
    """The annotated multi-head attention: scores are (Lq, Lk, B, H)."""
    memory = torch.randn(Lk, B, D)
    return MultiHeadAttention(H, D), (), {"query": torch.randn(Lq, B, D), "key": memory, "value": memory}


def rotary(B: int, H: int, L: int, D: int) -> Any:
    """All of each head rotated, a causal mask."""
    x = torch.randn(L, B, D)
    mask = torch.ones(L, L).tril()[:, :, None].bool()
    module = RotaryPEMultiHeadAttention(H, D, rope_percentage=1.0)
    return module, (), {"query": x, "key": x, "value": x, "mask": mask}


def relative(B: int, H: int, L: int, Lp: int, D: int) -> Any:
    """Transformer-XL's relative attention of L tokens to Lp cached ones and themselves."""
    x = torch.randn(L, B, D)
    memory = torch.cat([torch.randn(Lp, B, D), x])
    return RelativeMultiHeadAttention(H, D), (), {"query": x, "key": memory, "value": memory}


def alibi(B: int, H: int, L: int, D: int) -> Any:
    """ALiBi, whose biases are computed at the first call."""
    x = torch.randn(L, B, D)
    mask = torch.ones(L, L).tril()[:, :, None].bool()
    return AlibiMultiHeadAttention(H, D), (), {"query": x, "key": x, "value": x, "mask": mask}


def retro(B: int, H: int, L: int, Lk: int, D: int, Dk: int, W: int) -> Any:
    """RETRO's attention of L chunks of W tokens to two neighbours each, of Lk tokens."""
    return ChunkedCrossAttention(D, H, Dk, W), (torch.randn(B, L * W, D), torch.randn(B, L, 2, Lk, D))
