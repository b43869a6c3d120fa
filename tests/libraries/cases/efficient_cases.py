"""Attention that doesn't compare every query with every key: windows, landmarks, hashes, kernels, chunks."""

from typing import Any

import torch
from axial_attention import AxialAttention, SelfAttention
from colt5_attention import ConditionalRoutedAttention
from linear_attention_transformer.linear_attention_transformer import SelfAttention as LinearSelfAttention
from linformer import LinformerSelfAttention
from local_attention import LocalAttention
from local_attention.transformer import LocalMHA
from memory_efficient_attention_pytorch import Attention as MemoryEfficientAttention
from nystrom_attention import NystromAttention
from perceiver_pytorch.perceiver_pytorch import Attention as PerceiverAttention
from performer_pytorch import CrossAttention
from performer_pytorch import SelfAttention as PerformerSelfAttention
from reformer_pytorch import LSHSelfAttention
from routing_transformer.routing_transformer import KmeansAttention


def linformer(B: int, H: int, L: int, D: int, W: int) -> Any:
    """Linformer: keys and values projected to W positions."""
    return LinformerSelfAttention(D, L, k=W, heads=H), (torch.randn(B, L, D),)


def linformer_shared(B: int, H: int, Lq: int, Lk: int, D: int, Dk: int, W: int) -> Any:
    """Linformer across sequences, with one head of keys that are also the values."""
    module = LinformerSelfAttention(D, Lk, k=W, heads=H, dim_head=Dk, one_kv_head=True, share_kv=True)
    return module, (torch.randn(B, Lq, D), torch.randn(B, Lk, D))


def local(B: int, H: int, L: int, Dk: int, W: int) -> Any:
    """Local attention of windows of W to themselves and the one before, L padded to whole windows."""
    q, k, v = torch.randn(3, B, H, L, Dk)
    return LocalAttention(window_size=W, causal=True, look_backward=1, autopad=True), (q, k, v)


def local_heads(B: int, H: int, L: int, D: int, Dk: int, W: int) -> Any:
    """Local multi-head attention to the previous and the next window, rotated."""
    return LocalMHA(dim=D, dim_head=Dk, heads=H, window_size=W), (torch.randn(B, L, D),)


def axial(B: int, H: int, Lq: int, Lk: int, D: int) -> Any:
    """Attention along each axis of an image of Lq by Lk pixels, summed."""
    return AxialAttention(D, num_dimensions=2, heads=H, dim_index=1), (torch.randn(B, D, Lq, Lk),)


def axial_cross(B: int, H: int, Lq: int, Lk: int, D: int, Dk: int) -> Any:
    """axial-attention's multi-head attention, across sequences."""
    return SelfAttention(D, H, Dk), (torch.randn(B, Lq, D), torch.randn(B, Lk, D))


def perceiver(B: int, H: int, Lq: int, Lk: int, D: int, Dk: int, Dv: int) -> Any:
    """Perceiver: Lq latents attend to Lk inputs of width Dv, padded."""
    mask = torch.arange(Lk) < Lk - torch.arange(B)[:, None] % Lk
    module = PerceiverAttention(D, Dv, heads=H, dim_head=Dk)
    return module, (torch.randn(B, Lq, D),), {"context": torch.randn(B, Lk, Dv), "mask": mask}


def nystrom(B: int, H: int, L: int, D: int, Dk: int, W: int) -> Any:
    """Nystromformer of W landmarks; L padded to a multiple of them."""
    module = NystromAttention(D, dim_head=Dk, heads=H, num_landmarks=W, residual_conv_kernel=3)
    return module, (torch.randn(B, L, D),)


def performer(B: int, H: int, L: int, D: int, Dk: int, W: int) -> Any:
    """Performer of W random features."""
    return PerformerSelfAttention(D, heads=H, dim_head=Dk, nb_features=W), (torch.randn(B, L, D),)


def performer_cross(B: int, H: int, Lq: int, Lk: int, D: int, Dk: int, W: int) -> Any:
    """Performer across sequences, by ReLU features."""
    module = CrossAttention(D, heads=H, dim_head=Dk, nb_features=W, generalized_attention=True)
    return module, (torch.randn(B, Lq, D),), {"context": torch.randn(B, Lk, D)}


def linear(B: int, H: int, L: int, D: int, Dk: int) -> Any:
    """Linear attention: queries over features and keys over tokens by softmax."""
    return LinearSelfAttention(D, H, dim_head=Dk), (torch.randn(B, L, D),)


def memory_efficient(B: int, H: int, Lq: int, Lk: int, D: int, Dk: int) -> Any:
    """The plain path, with a padding mask."""
    mask = torch.arange(Lk) < Lk - torch.arange(B)[:, None] % Lk
    module = MemoryEfficientAttention(dim=D, heads=H, dim_head=Dk)
    return module, (torch.randn(B, Lq, D), torch.randn(B, Lk, D)), {"mask": mask}


def chunked(B: int, H: int, L: int, D: int, Dk: int, W: int) -> Any:
    """The memory-efficient path: each chunk of W queries with all chunks of W keys, one after another."""
    module = MemoryEfficientAttention(
        dim=D, heads=H, dim_head=Dk, memory_efficient=True, q_bucket_size=W, k_bucket_size=W
    )
    return module, (torch.randn(B, L, D),)


def reformer(B: int, H: int, L: int, D: int, W: int) -> Any:
    """Reformer: two rounds of hashing into buckets of W; twice W must divide L."""
    module = LSHSelfAttention(D, heads=H, bucket_size=W, n_hashes=2, causal=True)
    return module, (torch.randn(B, L, D),)


def reformer_full(B: int, H: int, L: int, D: int) -> Any:
    """Reformer's full attention of shared queries and keys."""
    return LSHSelfAttention(D, heads=H, use_full_attn=True), (torch.randn(B, L, D),)


def routing(B: int, H: int, L: int, Dk: int, W: int) -> Any:
    """Routing attention: three clusters of W tokens each."""
    q, k, v = torch.randn(3, B, H, L, Dk)
    return KmeansAttention(3, W, H, Dk), (q, k, v)


def colt5(B: int, H: int, L: int, D: int, Dk: int, W: int) -> Any:
    """CoLT5: of L tokens the W most important attend to each other and to a null key."""
    module = ConditionalRoutedAttention(
        D, num_heavy_tokens_q=W, num_heavy_tokens_kv=W, has_light_attn=False, heavy_dim_head=Dk, heavy_heads=H
    )
    return module, (torch.randn(B, L, D),)
