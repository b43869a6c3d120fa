"""Grouped-query attention: G query heads share one key/value head, so that the cache is G times smaller.

Formula:
    GQA(X) = Concat(head_1, …, head_H) Wo
    head_h = softmax(Q_h K_gᵀ / √Dk) V_g,  g = ⌊h / G⌋,  G = H/Hkv,  Q = X Wq,  K = X Wk,  V = X Wv

Source:
    Ainslie et al., 2023, "GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints",
    arXiv:2305.13245, section 2.2; the heads attend by equation (1) of Vaswani et al., arXiv:1706.03762
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor, nn

from attnshape.targets.builtin.cases import Case, causal_mask, head_width

CACHED = ("key", "value")


class GroupedQuery(nn.Module):
    """Self-attention with fewer key/value heads than query heads."""

    def __init__(self, D: int, H: int, Hkv: int) -> None:
        super().__init__()
        self.Hkv, self.G, self.Dk = Hkv, H // Hkv, head_width(D, H)
        self.Wq = nn.Linear(D, D, bias=False)
        self.Wk = nn.Linear(D, Hkv * self.Dk, bias=False)
        self.Wv = nn.Linear(D, Hkv * self.Dk, bias=False)
        self.Wo = nn.Linear(D, D, bias=False)

    @jaxtyped(typechecker=beartype)
    def forward(self, input: Float[Tensor, "B L D"], mask: Bool[Tensor, "L L"]) -> Float[Tensor, "B L D"]:
        """Return the output for each token: section 2.2 of Ainslie et al.

        Args:
            input: The tokens, (B, L, D).
            mask: True where a query may see a key, (L, L).

        Returns:
            The output, (B, L, D).
        """
        B, L, D = input.shape
        Hkv, G, Dk = self.Hkv, self.G, self.Dk
        query: Float[Tensor, "B Hkv G L Dk"] = self.Wq(input).view(B, L, Hkv, G, Dk).permute(0, 2, 3, 1, 4)
        key: Float[Tensor, "B Hkv L Dk"] = self.Wk(input).view(B, L, Hkv, Dk).transpose(1, 2)
        value: Float[Tensor, "B Hkv L Dk"] = self.Wv(input).view(B, L, Hkv, Dk).transpose(1, 2)
        scores: Float[Tensor, "B Hkv G L L"] = query @ key.unsqueeze(2).transpose(-2, -1) / math.sqrt(Dk)
        logits: Float[Tensor, "B Hkv G L L"] = scores.masked_fill(~mask, -math.inf)
        weights: Float[Tensor, "B Hkv G L L"] = logits.softmax(dim=-1)
        context: Float[Tensor, "B Hkv G L Dk"] = weights @ value.unsqueeze(2)
        concat: Float[Tensor, "B L D"] = context.permute(0, 3, 1, 2, 4).reshape(B, L, D)
        output: Float[Tensor, "B L D"] = self.Wo(concat)
        return output


def self_attention(B: int, H: int, Hkv: int, L: int, D: int) -> Case:
    """Each token attends to itself and the tokens before it."""
    claims = ("causal", "mask=keep", "scale=1/sqrt(Dk)")
    return GroupedQuery(D, H, Hkv), (torch.randn(B, L, D), causal_mask(L, L)), {}, claims
