"""vit-pytorch: attention on images, queries and keys by convolutions."""

from typing import Any

import torch
from vit_pytorch.cait import Attention as CaitAttention
from vit_pytorch.cvt import Attention as CvtAttention
from vit_pytorch.deepvit import Attention as DeepViTAttention
from vit_pytorch.levit import Attention as LevitAttention
from vit_pytorch.vit import Attention as ViTAttention


def vit(B: int, H: int, L: int, D: int, Dk: int) -> Any:
    """ViT's attention."""
    return ViTAttention(D, heads=H, dim_head=Dk), (torch.randn(B, L, D),)


def deepvit(B: int, H: int, L: int, D: int, Dk: int) -> Any:
    """DeepViT: the weights of all heads mixed and normalized after the softmax."""
    return DeepViTAttention(D, heads=H, dim_head=Dk), (torch.randn(B, L, D),)


def cait(B: int, H: int, Lq: int, Lk: int, D: int, Dk: int) -> Any:
    """CaiT: Lq class tokens attend to themselves and to Lk patches; heads mixed around the softmax."""
    return CaitAttention(D, heads=H, dim_head=Dk), (torch.randn(B, Lq, D), torch.randn(B, Lk, D))


def cvt(B: int, H: int, Lq: int, Lk: int, D: int, Dk: int) -> Any:
    """CvT on an image of Lq by Lk pixels: keys from every other row and column."""
    return CvtAttention(D, proj_kernel=3, kv_proj_stride=2, heads=H, dim_head=Dk), (torch.randn(B, D, Lq, Lk),)


def levit(B: int, H: int, D: int, Dk: int, Dv: int, W: int) -> Any:
    """LeViT on an image of W by W pixels: queries from every other row and column."""
    module = LevitAttention(D, W, heads=H, dim_key=Dk, dim_value=Dv, dim_out=2 * D, downsample=True)
    return module, (torch.randn(B, D, W, W),)
