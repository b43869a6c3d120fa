"""Multi-query attention: all query heads share one head of keys and values.

Formula:
    MQA(X) = Concat(head_1, …, head_H) Wo
    head_h = softmax(Q_h Kᵀ / √Dk) V,  Q = X Wq,  K = X Wk,  V = X Wv,  Dk = D/H

Source:
    Shazeer, 2019, "Fast Transformer Decoding: One Write-Head is All You Need", arXiv:1911.02150, section 3;
    scaled as in equation (1) of Vaswani et al., arXiv:1706.03762
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor, nn

from attnshape.targets.builtin.cases import Case, causal_mask, head_width

CACHED = ("key", "value")


class MultiQuery(nn.Module):
    """Self-attention with one key/value head."""

    def __init__(self, D: int, H: int) -> None:
        super().__init__()
        self.H, self.Dk = H, head_width(D, H)
        self.Wq = nn.Linear(D, D, bias=False)
        self.Wk = nn.Linear(D, self.Dk, bias=False)
        self.Wv = nn.Linear(D, self.Dk, bias=False)
        self.Wo = nn.Linear(D, D, bias=False)

    @jaxtyped(typechecker=beartype)
    def forward(self, input: Float[Tensor, "B L D"], mask: Bool[Tensor, "L L"]) -> Float[Tensor, "B L D"]:
        """Return the output for each token: section 3 of Shazeer.

        Args:
            input: The tokens, (B, L, D).
            mask: True where a query may see a key, (L, L).

        Returns:
            The output, (B, L, D).
        """
        B, L, D = input.shape
        H, Dk = self.H, self.Dk
        query: Float[Tensor, "B H L Dk"] = self.Wq(input).view(B, L, H, Dk).transpose(1, 2)
        key: Float[Tensor, "B 1 L Dk"] = self.Wk(input).unsqueeze(1)
        value: Float[Tensor, "B 1 L Dk"] = self.Wv(input).unsqueeze(1)
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
    return MultiQuery(D, H), (torch.randn(B, L, D), causal_mask(L, L)), {}, claims
