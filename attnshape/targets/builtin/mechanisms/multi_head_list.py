"""Multi-head attention as a list of heads with free widths: of the input, the keys, the values and the output.

Formula:
    MultiHead(X) = Concat(head_1, …, head_H) Wo
    head_h = softmax(Q_h K_hᵀ / √Dk) V_h,  Q_h = X Wq_h,  K_h = X Wk_h,  V_h = X Wv_h
    Wq_h and Wk_h are Din × Dk, Wv_h is Din × Dv, Wo is H Dv × Dout

Source:
    Vaswani et al., 2017, "Attention Is All You Need", arXiv:1706.03762, section 3.2.2 and equation (1), with
    widths d_k and d_v that don't depend on the input's
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor, nn

from attnshape.targets.builtin.cases import Case, causal_mask


class WideHead(nn.Module):
    """One attention head, whose values may be wider than its keys."""

    def __init__(self, Din: int, Dk: int, Dv: int) -> None:
        super().__init__()
        self.Wq = nn.Linear(Din, Dk, bias=False)
        self.Wk = nn.Linear(Din, Dk, bias=False)
        self.Wv = nn.Linear(Din, Dv, bias=False)

    @jaxtyped(typechecker=beartype)
    def forward(self, input: Float[Tensor, "B L Din"], mask: Bool[Tensor, "L L"]) -> Float[Tensor, "B L Dv"]:
        """Return the head's context: equation (1) of Vaswani et al.

        Args:
            input: The tokens, (B, L, Din).
            mask: True where a query may see a key, (L, L).

        Returns:
            The context, (B, L, Dv).
        """
        query: Float[Tensor, "B L Dk"] = self.Wq(input)
        key: Float[Tensor, "B L Dk"] = self.Wk(input)
        value: Float[Tensor, "B L Dv"] = self.Wv(input)
        scores: Float[Tensor, "B L L"] = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        logits: Float[Tensor, "B L L"] = scores.masked_fill(~mask, -math.inf)
        weights: Float[Tensor, "B L L"] = logits.softmax(dim=-1)
        context: Float[Tensor, "B L Dv"] = weights @ value
        return context


class MultiHeadList(nn.Module):
    """Self-attention of a list of heads, whose contexts are joined and projected."""

    def __init__(self, H: int, Din: int, Dk: int, Dv: int, Dout: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(WideHead(Din, Dk, Dv) for _ in range(H))
        self.Wo = nn.Linear(H * Dv, Dout, bias=False)

    @jaxtyped(typechecker=beartype)
    def forward(self, input: Float[Tensor, "B L Din"], mask: Bool[Tensor, "L L"]) -> Float[Tensor, "B L Dout"]:
        """Return the output for each token: section 3.2.2 of Vaswani et al.

        Args:
            input: The tokens, (B, L, Din).
            mask: True where a query may see a key, (L, L).

        Returns:
            The output, (B, L, Dout).
        """
        output: Float[Tensor, "B L Dout"] = self.Wo(torch.cat([head(input, mask) for head in self.heads], dim=-1))
        return output


def self_attention(B: int, H: int, L: int, Dk: int, Dv: int, Din: int, Dout: int) -> Case:
    """Each token attends to itself and the tokens before it."""
    claims = ("causal", "mask=keep", "scale=1/sqrt(Dk)")
    return MultiHeadList(H, Din, Dk, Dv, Dout), (torch.randn(B, L, Din), causal_mask(L, L)), {}, claims
