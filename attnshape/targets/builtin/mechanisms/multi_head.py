"""Multi-head attention: H heads attend side by side, each to its own slice of the width.

Formula:
    MultiHead(Q, K, V) = Concat(head_1, …, head_H) Wo
    head_h = softmax(Q_h K_hᵀ / √Dk) V_h,  Q = input Wq,  K = memory Wk,  V = memory Wv,  Dk = D/H

Source:
    Vaswani et al., 2017, "Attention Is All You Need", arXiv:1706.03762, section 3.2.2 and equation (1)
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor, nn

from attnshape.targets.builtin.cases import Case, attention_mask, head_width

CACHED = ("key", "value")


class MultiHead(nn.Module):
    """Multi-head attention from an input to a memory, which is the same tensor in self-attention."""

    def __init__(self, D: int, H: int, *, bias: bool = True, dropout: float = 0.0, mask_value: float = -math.inf):
        super().__init__()
        self.H = H
        self.Dk = head_width(D, H)
        self.mask_value = mask_value
        self.Wq = nn.Linear(D, D, bias=bias)
        self.Wk = nn.Linear(D, D, bias=bias)
        self.Wv = nn.Linear(D, D, bias=bias)
        self.Wo = nn.Linear(D, D, bias=bias)
        self.dropout = nn.Dropout(dropout)

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
        B, Lq, D = input.shape
        Lk, H, Dk = memory.shape[1], self.H, self.Dk
        query: Float[Tensor, "B H Lq Dk"] = self.Wq(input).view(B, Lq, H, Dk).transpose(1, 2)
        key: Float[Tensor, "B H Lk Dk"] = self.Wk(memory).view(B, Lk, H, Dk).transpose(1, 2)
        value: Float[Tensor, "B H Lk Dk"] = self.Wv(memory).view(B, Lk, H, Dk).transpose(1, 2)
        scores: Float[Tensor, "B H Lq Lk"] = query @ key.transpose(-2, -1) / math.sqrt(Dk)
        logits: Float[Tensor, "B H Lq Lk"] = scores if mask is None else scores.masked_fill(~mask, self.mask_value)
        weights: Float[Tensor, "B H Lq Lk"] = logits.softmax(dim=-1)
        context: Float[Tensor, "B H Lq Dk"] = self.dropout(weights) @ value
        concat: Float[Tensor, "B Lq D"] = context.transpose(1, 2).contiguous().view(B, Lq, D)
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
    attention = MultiHead(D, H, bias=bias, dropout=dropout, mask_value=mask_value)
    input = torch.randn(B, L, D)
    return attention, (input, input, attention_mask(B, L, L, causal=causal, padding=padding, heads=True))


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
    attention = MultiHead(D, H, bias=bias, dropout=dropout, mask_value=mask_value)
    mask = attention_mask(B, Lq, Lk, causal=causal, padding=padding, heads=True)
    return attention, (torch.randn(B, Lq, D), torch.randn(B, Lk, D), mask)
