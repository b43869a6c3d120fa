"""Single-head attention: learned queries, keys and values; the causal mask is a buffer of the module.

Formula:
    Attention(X) = softmax(Q Kᵀ / √Dk) V,  Q = X W_Q,  K = X W_K,  V = X W_V

Source:
    Vaswani et al., 2017, "Attention Is All You Need", arXiv:1706.03762, section 3.2, equation (1);
    its causal mask: section 3.2.3
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor, nn

from attnshape.targets.builtin.cases import Case, causal_mask


class SingleHead(nn.Module):
    """One attention head over sequences of L tokens, causal or not."""

    mask: Bool[Tensor, "L L"] | None

    def __init__(
        self,
        L: int,
        D: int,
        Dk: int,
        *,
        causal: bool = False,
        mask_value: float = -math.inf,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.mask_value = mask_value
        self.W_Q = nn.Linear(D, Dk, bias=bias)
        self.W_K = nn.Linear(D, Dk, bias=bias)
        self.W_V = nn.Linear(D, Dk, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", causal_mask(L, L) if causal else None)

    @jaxtyped(typechecker=beartype)
    def forward(self, input: Float[Tensor, "*batch L D"]) -> Float[Tensor, "*batch L Dk"]:
        """Return softmax(Q Kᵀ / √Dk) V: equation (1) of Vaswani et al., causal as in section 3.2.3.

        Args:
            input: The tokens, (*batch, L, D).

        Returns:
            The context of each token, (*batch, L, Dk).
        """
        query: Float[Tensor, "*batch L Dk"] = self.W_Q(input)
        key: Float[Tensor, "*batch L Dk"] = self.W_K(input)
        value: Float[Tensor, "*batch L Dk"] = self.W_V(input)
        scores: Float[Tensor, "*batch L L"] = query @ key.transpose(-2, -1)
        scaled: Float[Tensor, "*batch L L"] = scores / math.sqrt(query.shape[-1])
        logits: Float[Tensor, "*batch L L"] = (
            scaled if self.mask is None else scaled.masked_fill(~self.mask, self.mask_value)
        )
        weights: Float[Tensor, "*batch L L"] = logits.softmax(dim=-1)
        context: Float[Tensor, "*batch L Dk"] = self.dropout(weights) @ value
        return context


def batched(
    B: int,
    L: int,
    D: int,
    Dk: int,
    *,
    causal: bool = False,
    mask_value: float = -math.inf,
    dropout: float = 0.0,
    bias: bool = True,
) -> Case:
    """Each token attends to the tokens of its own sequence."""
    head = SingleHead(L, D, Dk, causal=causal, mask_value=mask_value, dropout=dropout, bias=bias)
    return head, (torch.randn(B, L, D),)


def unbatched(
    L: int,
    D: int,
    Dk: int,
    *,
    causal: bool = False,
    mask_value: float = -math.inf,
    dropout: float = 0.0,
    bias: bool = True,
) -> Case:
    """One sequence, without a batch axis."""
    head = SingleHead(L, D, Dk, causal=causal, mask_value=mask_value, dropout=dropout, bias=bias)
    return head, (torch.randn(L, D),)
