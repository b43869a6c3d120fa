"""Sliding-window attention: each query sees its own position and the W - 1 before it.

Formula:
    Attention(X) = Concat(softmax(Q_h K_hᵀ / √Dk + M) V_h) Wo,  Q = X Wq,  K = X Wk,  V = X Wv
    M_ij = 0 where i - W < j ≤ i, and -∞ elsewhere

Source:
    Beltagy, Peters and Cohan, 2020, "Longformer: The Long-Document Transformer", arXiv:2004.05150, section 3.1;
    causal as in Jiang et al., 2023, "Mistral 7B", arXiv:2310.06825, section 2, with equation (1) of arXiv:1706.03762
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor, nn

from attnshape.targets.builtin.cases import Case, causal_mask, head_width


class SlidingWindow(nn.Module):
    """Self-attention under a mask of a window's width."""

    def __init__(self, D: int, H: int) -> None:
        super().__init__()
        self.H, self.Dk = H, head_width(D, H)
        self.Wq = nn.Linear(D, D, bias=False)
        self.Wk = nn.Linear(D, D, bias=False)
        self.Wv = nn.Linear(D, D, bias=False)
        self.Wo = nn.Linear(D, D, bias=False)

    @jaxtyped(typechecker=beartype)
    def forward(self, input: Float[Tensor, "B L D"], mask: Bool[Tensor, "L L"]) -> Float[Tensor, "B L D"]:
        """Return the output for each token: section 3.1 of Beltagy et al.

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
        scores: Float[Tensor, "B H L L"] = query @ key.transpose(-2, -1) / math.sqrt(Dk)
        logits: Float[Tensor, "B H L L"] = scores.masked_fill(~mask, -math.inf)
        weights: Float[Tensor, "B H L L"] = logits.softmax(dim=-1)
        context: Float[Tensor, "B H L Dk"] = weights @ value
        concat: Float[Tensor, "B L D"] = context.transpose(1, 2).reshape(B, L, D)
        output: Float[Tensor, "B L D"] = self.Wo(concat)
        return output


def self_attention(B: int, H: int, L: int, D: int, W: int) -> Case:
    """Each token attends to itself and to the W - 1 tokens before it."""
    window = causal_mask(L, L).triu(1 - W)
    claims = ("causal", "window=W", "mask=keep", "scale=1/sqrt(Dk)")
    return SlidingWindow(D, H), (torch.randn(B, L, D), window), {}, claims
