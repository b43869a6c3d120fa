"""Attention with linear biases (ALiBi): a penalty that grows with the distance takes the place of position embeddings.

Formula:
    Attention(X) = Concat(softmax(Q_h K_hᵀ / √Dk - m_h (i - j)) V_h) Wo,  Q = X Wq,  K = X Wk,  V = X Wv
    m_h = 2^(-8 h / H) for head h = 1, …, H

Source:
    Press, Smith and Lewis, 2021, "Train Short, Test Long: Attention with Linear Biases Enables Input Length
    Extrapolation", arXiv:2108.12409, section 3; scaled as in equation (1) of Vaswani et al., arXiv:1706.03762
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor, nn

from attnshape.targets.builtin.cases import Case, causal_mask, head_width

CACHED = ("key", "value")


class ALiBi(nn.Module):
    """Self-attention with a linear bias, whose slope differs from head to head."""

    def __init__(self, D: int, H: int) -> None:
        super().__init__()
        self.H, self.Dk = H, head_width(D, H)
        self.Wq = nn.Linear(D, D, bias=False)
        self.Wk = nn.Linear(D, D, bias=False)
        self.Wv = nn.Linear(D, D, bias=False)
        self.Wo = nn.Linear(D, D, bias=False)

    @jaxtyped(typechecker=beartype)
    def forward(self, input: Float[Tensor, "B L D"], mask: Bool[Tensor, "L L"]) -> Float[Tensor, "B L D"]:
        """Return the output for each token: section 3 of Press et al.

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
        position: Float[Tensor, " L"] = torch.arange(L, dtype=input.dtype, device=input.device)
        distance: Float[Tensor, "L L"] = position.unsqueeze(1) - position
        slopes: Float[Tensor, "H 1 1"] = 2.0 ** (
            -8 / H * torch.arange(1, H + 1, dtype=input.dtype, device=input.device).view(H, 1, 1)
        )
        bias: Float[Tensor, "H L L"] = -slopes * distance
        scores: Float[Tensor, "B H L L"] = query @ key.transpose(-2, -1) / math.sqrt(Dk)
        logits: Float[Tensor, "B H L L"] = (scores + bias).masked_fill(~mask, -math.inf)
        weights: Float[Tensor, "B H L L"] = logits.softmax(dim=-1)
        context: Float[Tensor, "B H L Dk"] = weights @ value
        concat: Float[Tensor, "B L D"] = context.transpose(1, 2).reshape(B, L, D)
        output: Float[Tensor, "B L D"] = self.Wo(concat)
        return output


def self_attention(B: int, H: int, L: int, D: int) -> Case:
    """Each token attends to itself and the tokens before it."""
    claims = ("causal", "mask=keep", "alibi", "scale=1/sqrt(Dk)")
    return ALiBi(D, H), (torch.randn(B, L, D), causal_mask(L, L)), {}, claims
