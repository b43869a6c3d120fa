"""Multiplicative attention: a query's score for a key is their dot product, direct or through a learned matrix.

Formula:
    score(h_t, h_s) = h_tᵀ h_s (dot)  or  h_tᵀ W_a h_s (general),  a_t = softmax_s(score),  c_t = Σ_s a_t(s) h_s

Source:
    Luong, Pham and Manning, 2015, "Effective Approaches to Attention-based Neural Machine Translation",
    arXiv:1508.04025, equations (7) and (8)
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor, nn

from attnshape.targets.builtin.cases import Case, attention_mask


@jaxtyped(typechecker=beartype)
def dot_attention(
    input: Float[Tensor, "B Lq D"],
    memory: Float[Tensor, "B Lk D"],
    mask: Bool[Tensor, "... #Lq #Lk"] | None = None,
    *,
    mask_value: float = -math.inf,
) -> Float[Tensor, "B Lq D"]:
    """Return the contexts under the score h_tᵀ h_s: equations (7) and (8) of Luong et al., "dot".

    Args:
        input: The decoder states h_t, (B, Lq, D).
        memory: The encoder states h_s, (B, Lk, D).
        mask: True where a query may see a key; broadcasts to the scores. None hides nothing.
        mask_value: The score of a hidden key.

    Returns:
        The context of each decoder state, (B, Lq, D).
    """
    scores: Float[Tensor, "B Lq Lk"] = input @ memory.transpose(-2, -1)
    logits: Float[Tensor, "B Lq Lk"] = scores if mask is None else scores.masked_fill(~mask, mask_value)
    weights: Float[Tensor, "B Lq Lk"] = logits.softmax(dim=-1)
    context: Float[Tensor, "B Lq D"] = weights @ memory
    return context


class GeneralAttention(nn.Module):
    """Attention under a learned score, so that the memory can have another width, Dv, than the input."""

    def __init__(self, D: int, Dv: int, *, mask_value: float = -math.inf) -> None:
        super().__init__()
        self.mask_value = mask_value
        self.W_a = nn.Linear(Dv, D, bias=False)

    @jaxtyped(typechecker=beartype)
    def forward(
        self,
        input: Float[Tensor, "B Lq D"],
        memory: Float[Tensor, "B Lk Dv"],
        mask: Bool[Tensor, "... #Lq #Lk"] | None = None,
    ) -> Float[Tensor, "B Lq Dv"]:
        """Return the contexts under the score h_tᵀ W_a h_s: equations (7) and (8) of Luong et al., "general".

        Args:
            input: The decoder states h_t, (B, Lq, D).
            memory: The encoder states h_s, (B, Lk, Dv).
            mask: True where a query may see a key; broadcasts to the scores. None hides nothing.

        Returns:
            The context of each decoder state, (B, Lq, Dv).
        """
        key: Float[Tensor, "B Lk D"] = self.W_a(memory)
        scores: Float[Tensor, "B Lq Lk"] = input @ key.transpose(-2, -1)
        logits: Float[Tensor, "B Lq Lk"] = scores if mask is None else scores.masked_fill(~mask, self.mask_value)
        weights: Float[Tensor, "B Lq Lk"] = logits.softmax(dim=-1)
        context: Float[Tensor, "B Lq Dv"] = weights @ memory
        return context


def dot(
    B: int, Lq: int, Lk: int, D: int, *, causal: bool = False, padding: bool = False, mask_value: float = -math.inf
) -> Case:
    """Scores are dot products; input and memory are equally wide."""
    mask = attention_mask(B, Lq, Lk, causal=causal, padding=padding)
    return dot_attention, (torch.randn(B, Lq, D), torch.randn(B, Lk, D), mask), {"mask_value": mask_value}


def general(
    B: int,
    Lq: int,
    Lk: int,
    D: int,
    Dv: int,
    *,
    causal: bool = False,
    padding: bool = False,
    mask_value: float = -math.inf,
) -> Case:
    """Scores go through a learned matrix; the memory has a width of its own."""
    mask = attention_mask(B, Lq, Lk, causal=causal, padding=padding)
    attention = GeneralAttention(D, Dv, mask_value=mask_value)
    return attention, (torch.randn(B, Lq, D), torch.randn(B, Lk, Dv), mask)
