"""Attention with a soft cap: a tanh keeps each score between -50 and 50, smoothly.

Formula:
    Attention(X) = Concat(softmax(cap(Q_h K_hᵀ / √Dk)) V_h) Wo,  Q = X Wq,  K = X Wk,  V = X Wv
    cap(s) = 50 tanh(s / 50)

Source:
    Gemma Team, 2024, "Gemma 2: Improving Open Language Models at a Practical Size", arXiv:2408.00118, section 2,
    "Logit soft-capping"; the heads attend by equation (1) of Vaswani et al., arXiv:1706.03762
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor, nn

from attnshape.targets.builtin.cases import Case, causal_mask, head_width

CACHED = ("key", "value")
CAP = 50.0


class Softcap(nn.Module):
    """Self-attention whose scores are capped before the mask."""

    def __init__(self, D: int, H: int) -> None:
        super().__init__()
        self.H, self.Dk = H, head_width(D, H)
        self.Wq = nn.Linear(D, D, bias=False)
        self.Wk = nn.Linear(D, D, bias=False)
        self.Wv = nn.Linear(D, D, bias=False)
        self.Wo = nn.Linear(D, D, bias=False)

    @jaxtyped(typechecker=beartype)
    def forward(self, input: Float[Tensor, "B L D"], mask: Bool[Tensor, "L L"]) -> Float[Tensor, "B L D"]:
        """Return the output for each token: section 2 of the Gemma 2 report.

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
        capped: Float[Tensor, "B H L L"] = CAP * torch.tanh(scores / CAP)
        logits: Float[Tensor, "B H L L"] = capped.masked_fill(~mask, -math.inf)
        weights: Float[Tensor, "B H L L"] = logits.softmax(dim=-1)
        context: Float[Tensor, "B H L Dk"] = weights @ value
        concat: Float[Tensor, "B L D"] = context.transpose(1, 2).reshape(B, L, D)
        output: Float[Tensor, "B L D"] = self.Wo(concat)
        return output


def self_attention(B: int, H: int, L: int, D: int) -> Case:
    """Each token attends to itself and the tokens before it."""
    claims = ("causal", "mask=keep", "scale=1/sqrt(Dk)")
    return Softcap(D, H), (torch.randn(B, L, D), causal_mask(L, L)), {}, claims
