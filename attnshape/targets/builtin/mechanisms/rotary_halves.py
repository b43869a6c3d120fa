"""Rotary position embedding in halves: feature i is rotated with feature i + Dk/2, by its position's angle.

Formula:
    Attention(X) = Concat(softmax(R(Q_h) R(K_h)ᵀ / √Dk) V_h) Wo,  Q = X Wq,  K = X Wk,  V = X Wv
    R(x) at position m: (x_i, x_{i+Dk/2}) is rotated by the angle m θ_i,  θ_i = 10000^(-2i/Dk)

Source:
    Su et al., 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", arXiv:2104.09864, equations (15)
    and (34); in the layout of GPT-NeoX, Black et al., 2022, arXiv:2204.06745, section 2.1
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor, nn

from attnshape.targets.builtin.cases import Case, causal_mask, head_width

CACHED = ("key", "value")
BASE = 10_000.0


@jaxtyped(typechecker=beartype)
def rotate_halves(x: Float[Tensor, "B H L Dk"]) -> Float[Tensor, "B H L Dk"]:
    """Rotate each pair of features (i, i + Dk/2) by its position's angle: equation (34) of Su et al.

    Args:
        x: Queries or keys, (B, H, L, Dk); Dk is even.

    Returns:
        The rotated queries or keys, (B, H, L, Dk).
    """
    L, Dk = x.shape[-2:]
    position: Float[Tensor, " L"] = torch.arange(L, dtype=x.dtype, device=x.device)
    frequency: Float[Tensor, " Dk//2"] = BASE ** (-torch.arange(0, Dk, 2, dtype=x.dtype, device=x.device) / Dk)
    angle: Float[Tensor, "L Dk//2"] = torch.outer(position, frequency)
    first: Float[Tensor, "B H L Dk//2"] = x[..., : Dk // 2]
    second: Float[Tensor, "B H L Dk//2"] = x[..., Dk // 2 :]
    turned_first: Float[Tensor, "B H L Dk//2"] = first * angle.cos() - second * angle.sin()
    turned_second: Float[Tensor, "B H L Dk//2"] = second * angle.cos() + first * angle.sin()
    return torch.cat((turned_first, turned_second), dim=-1)


class RotaryHalves(nn.Module):
    """Self-attention whose scores depend on positions only through their distance."""

    def __init__(self, D: int, H: int) -> None:
        super().__init__()
        self.H, self.Dk = H, head_width(D, H)
        self.Wq = nn.Linear(D, D, bias=False)
        self.Wk = nn.Linear(D, D, bias=False)
        self.Wv = nn.Linear(D, D, bias=False)
        self.Wo = nn.Linear(D, D, bias=False)

    @jaxtyped(typechecker=beartype)
    def forward(self, input: Float[Tensor, "B L D"], mask: Bool[Tensor, "L L"]) -> Float[Tensor, "B L D"]:
        """Return the output for each token: equation (15) of Su et al.

        Args:
            input: The tokens, (B, L, D).
            mask: True where a query may see a key, (L, L).

        Returns:
            The output, (B, L, D).
        """
        B, L, D = input.shape
        H, Dk = self.H, self.Dk
        query: Float[Tensor, "B H L Dk"] = self.Wq(input).view(B, L, H, Dk).transpose(1, 2)
        key: Float[Tensor, "B H L Dk"] = self.Wk(input).view(B, L, H, Dk).transpose(1, 2)
        value: Float[Tensor, "B H L Dk"] = self.Wv(input).view(B, L, H, Dk).transpose(1, 2)
        scores: Float[Tensor, "B H L L"] = rotate_halves(query) @ rotate_halves(key).transpose(-2, -1) / math.sqrt(Dk)
        logits: Float[Tensor, "B H L L"] = scores.masked_fill(~mask, -math.inf)
        weights: Float[Tensor, "B H L L"] = logits.softmax(dim=-1)
        context: Float[Tensor, "B H L Dk"] = weights @ value
        concat: Float[Tensor, "B L D"] = context.transpose(1, 2).reshape(B, L, D)
        output: Float[Tensor, "B L D"] = self.Wo(concat)
        return output


def self_attention(B: int, H: int, L: int, D: int) -> Case:
    """Each token attends to itself and the tokens before it."""
    claims = ("causal", "mask=keep", "rope=half", "scale=1/sqrt(Dk)")
    return RotaryHalves(D, H), (torch.randn(B, L, D), causal_mask(L, L)), {}, claims
