"""Attention with QK norm: queries and keys are normalised within each head, so that scores can't grow without bound.

Formula:
    Attention(X) = Concat(softmax(N(Q_h) N(K_h)ᵀ / √Dk) V_h) Wo,  Q = X Wq,  K = X Wk,  V = X Wv
    N(x) = g ⊙ x / √(mean(x²) + ε), with a gain g of width Dk for queries, and one for keys

Source:
    Yang et al., 2025, "Qwen3 Technical Report", arXiv:2505.09388, section 2; the norm is equation (4) of Zhang and
    Sennrich, 2019, "Root Mean Square Layer Normalization", arXiv:1910.07467
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor, nn

from attnshape.targets.builtin.cases import Case, causal_mask, head_width

CACHED = ("key", "value")


class QKNorm(nn.Module):
    """Self-attention between normalised queries and keys."""

    def __init__(self, D: int, H: int) -> None:
        super().__init__()
        self.H, self.Dk = H, head_width(D, H)
        self.Wq = nn.Linear(D, D, bias=False)
        self.Wk = nn.Linear(D, D, bias=False)
        self.Wv = nn.Linear(D, D, bias=False)
        self.Wo = nn.Linear(D, D, bias=False)
        self.query_norm = nn.RMSNorm(self.Dk, eps=1e-6)
        self.key_norm = nn.RMSNorm(self.Dk, eps=1e-6)

    @jaxtyped(typechecker=beartype)
    def forward(self, input: Float[Tensor, "B L D"], mask: Bool[Tensor, "L L"]) -> Float[Tensor, "B L D"]:
        """Return the output for each token: section 2 of Yang et al.

        Args:
            input: The tokens, (B, L, D).
            mask: True where a query may see a key, (L, L).

        Returns:
            The output, (B, L, D).
        """
        B, L, D = input.shape
        H, Dk = self.H, self.Dk
        query: Float[Tensor, "B H L Dk"] = self.query_norm(self.Wq(input).view(B, L, H, Dk)).transpose(1, 2)
        key: Float[Tensor, "B H L Dk"] = self.key_norm(self.Wk(input).view(B, L, H, Dk)).transpose(1, 2)
        value: Float[Tensor, "B H L Dk"] = self.Wv(input).view(B, L, H, Dk).transpose(1, 2)
        scores: Float[Tensor, "B H L L"] = query @ key.transpose(-2, -1) / math.sqrt(Dk)
        logits: Float[Tensor, "B H L L"] = scores.masked_fill(~mask, -math.inf)
        weights: Float[Tensor, "B H L L"] = logits.softmax(dim=-1)
        context: Float[Tensor, "B H L Dk"] = weights @ value
        concat: Float[Tensor, "B L D"] = context.transpose(1, 2).reshape(B, L, D)
        output: Float[Tensor, "B L D"] = self.Wo(concat)
        return output


def self_attention(B: int, H: int, L: int, D: int) -> Case:
    """Each token attends to itself and the tokens before it."""
    claims = ("causal", "mask=keep", "scale=1/sqrt(Dk)")
    return QKNorm(D, H), (torch.randn(B, L, D), causal_mask(L, L)), {}, claims
