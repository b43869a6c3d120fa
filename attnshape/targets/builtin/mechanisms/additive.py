"""Additive attention: a small network with one hidden layer scores each pair of query and key.

Formula:
    e_ij = v_aᵀ tanh(W_a s_i + U_a h_j),  α_ij = softmax_j(e_ij),  c_i = Σ_j α_ij h_j

Source:
    Bahdanau, Cho and Bengio, 2014, "Neural Machine Translation by Jointly Learning to Align and Translate",
    arXiv:1409.0473, equations (5) and (6), and the alignment model of appendix A.1.2
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor, nn

from attnshape.targets.builtin.cases import Case, attention_mask


class Additive(nn.Module):
    """Attention of decoder states (the input) to encoder states (the memory); Dk is the hidden layer's width."""

    def __init__(self, D: int, Dk: int, *, mask_value: float = -math.inf) -> None:
        super().__init__()
        self.mask_value = mask_value
        self.W_a = nn.Linear(D, Dk, bias=False)
        self.U_a = nn.Linear(D, Dk, bias=False)
        self.v_a = nn.Linear(Dk, 1, bias=False)

    @jaxtyped(typechecker=beartype)
    def forward(
        self,
        input: Float[Tensor, "B Lq D"],
        memory: Float[Tensor, "B Lk D"],
        mask: Bool[Tensor, "... #Lq #Lk"] | None = None,
    ) -> Float[Tensor, "B Lq D"]:
        """Return the contexts c_i = Σ_j α_ij h_j: equations (5) and (6) of Bahdanau et al.

        Args:
            input: The decoder states s, (B, Lq, D).
            memory: The encoder states h, (B, Lk, D).
            mask: True where a query may see a key; broadcasts to the scores. None hides nothing.

        Returns:
            The context of each decoder state, (B, Lq, D).
        """
        query: Float[Tensor, "B Lq Dk"] = self.W_a(input)
        key: Float[Tensor, "B Lk Dk"] = self.U_a(memory)
        hidden: Float[Tensor, "B Lq Lk Dk"] = torch.tanh(query.unsqueeze(2) + key.unsqueeze(1))
        scores: Float[Tensor, "B Lq Lk"] = self.v_a(hidden).squeeze(-1)
        logits: Float[Tensor, "B Lq Lk"] = scores if mask is None else scores.masked_fill(~mask, self.mask_value)
        weights: Float[Tensor, "B Lq Lk"] = logits.softmax(dim=-1)
        context: Float[Tensor, "B Lq D"] = weights @ memory
        return context


def cross_attention(
    B: int,
    Lq: int,
    Lk: int,
    D: int,
    Dk: int,
    *,
    causal: bool = False,
    padding: bool = False,
    mask_value: float = -math.inf,
) -> Case:
    """Each token of one sequence attends to the tokens of another."""
    mask = attention_mask(B, Lq, Lk, causal=causal, padding=padding)
    return Additive(D, Dk, mask_value=mask_value), (torch.randn(B, Lq, D), torch.randn(B, Lk, D), mask)
