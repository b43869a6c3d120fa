"""Multi-head attention as a list of single heads, whose contexts are joined with `torch.cat`.

Formula:
    MultiHead(Q, K, V) = Concat(head_1, …, head_H) Wo
    head_h = softmax(Q_h K_hᵀ / √Dk) V_h,  Q_h = input Wq_h,  K_h = memory Wk_h,  V_h = memory Wv_h,  Dk = D/H

Source:
    Vaswani et al., 2017, "Attention Is All You Need", arXiv:1706.03762, section 3.2.2 and equation (1)
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor, nn

from attnshape.targets.builtin.cases import Case, attention_mask, head_width


class Head(nn.Module):
    """One attention head with its own projections."""

    def __init__(self, D: int, Dk: int, *, mask_value: float, dropout: float, bias: bool) -> None:
        super().__init__()
        self.mask_value = mask_value
        self.Wq = nn.Linear(D, Dk, bias=bias)
        self.Wk = nn.Linear(D, Dk, bias=bias)
        self.Wv = nn.Linear(D, Dk, bias=bias)
        self.dropout = nn.Dropout(dropout)

    @jaxtyped(typechecker=beartype)
    def forward(
        self,
        input: Float[Tensor, "B Lq D"],
        memory: Float[Tensor, "B Lk D"],
        mask: Bool[Tensor, "... #Lq #Lk"] | None = None,
    ) -> Float[Tensor, "B Lq Dk"]:
        """Return the head's context: equation (1) of Vaswani et al.

        Args:
            input: The tokens that the queries come from, (B, Lq, D).
            memory: The tokens that the keys and values come from, (B, Lk, D).
            mask: True where a query may see a key; broadcasts to the scores. None hides nothing.

        Returns:
            The context, (B, Lq, Dk).
        """
        query: Float[Tensor, "B Lq Dk"] = self.Wq(input)
        key: Float[Tensor, "B Lk Dk"] = self.Wk(memory)
        value: Float[Tensor, "B Lk Dk"] = self.Wv(memory)
        scores: Float[Tensor, "B Lq Lk"] = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        logits: Float[Tensor, "B Lq Lk"] = scores if mask is None else scores.masked_fill(~mask, self.mask_value)
        weights: Float[Tensor, "B Lq Lk"] = logits.softmax(dim=-1)
        context: Float[Tensor, "B Lq Dk"] = self.dropout(weights) @ value
        return context


class MultiHeadConcat(nn.Module):
    """Multi-head attention from an input to a memory, which is the same tensor in self-attention."""

    def __init__(
        self,
        D: int,
        H: int,
        *,
        mask_value: float = -math.inf,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        Dk = head_width(D, H)
        self.heads = nn.ModuleList(Head(D, Dk, mask_value=mask_value, dropout=dropout, bias=bias) for _ in range(H))
        self.Wo = nn.Linear(D, D, bias=bias)

    @jaxtyped(typechecker=beartype)
    def forward(
        self,
        input: Float[Tensor, "B Lq D"],
        memory: Float[Tensor, "B Lk D"],
        mask: Bool[Tensor, "... #Lq #Lk"] | None = None,
    ) -> Float[Tensor, "B Lq D"]:
        """Return the output for each token of the input: section 3.2.2 of Vaswani et al.

        Args:
            input: The tokens that the queries come from, (B, Lq, D).
            memory: The tokens that the keys and values come from, (B, Lk, D).
            mask: True where a query may see a key; broadcasts to the scores. None hides nothing.

        Returns:
            The output, (B, Lq, D).
        """
        concat: Float[Tensor, "B Lq D"] = torch.cat([head(input, memory, mask) for head in self.heads], dim=-1)
        output: Float[Tensor, "B Lq D"] = self.Wo(concat)
        return output


def self_attention(
    B: int,
    H: int,
    L: int,
    D: int,
    *,
    causal: bool = False,
    padding: bool = False,
    mask_value: float = -math.inf,
    dropout: float = 0.0,
    bias: bool = True,
) -> Case:
    """Each token attends to the tokens of its own sequence."""
    attention = MultiHeadConcat(D, H, mask_value=mask_value, dropout=dropout, bias=bias)
    input = torch.randn(B, L, D)
    return attention, (input, input, attention_mask(B, L, L, causal=causal, padding=padding))


def cross_attention(
    B: int,
    H: int,
    Lq: int,
    Lk: int,
    D: int,
    *,
    causal: bool = False,
    padding: bool = False,
    mask_value: float = -math.inf,
    dropout: float = 0.0,
    bias: bool = True,
) -> Case:
    """Each token of one sequence attends to the tokens of another."""
    attention = MultiHeadConcat(D, H, mask_value=mask_value, dropout=dropout, bias=bias)
    mask = attention_mask(B, Lq, Lk, causal=causal, padding=padding)
    return attention, (torch.randn(B, Lq, D), torch.randn(B, Lk, D), mask)
