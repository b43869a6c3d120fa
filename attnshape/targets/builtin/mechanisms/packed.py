"""Attention in packed sequences: several sequences follow each other on one axis, and don't see each other.

Formula:
    Attention(X) = Concat(softmax(Q_h K_hᵀ / √Dk + M) V_h) Wo,  Q = X Wq,  K = X Wk,  V = X Wv
    M_ij = 0 where j ≤ i in the same sequence, and -∞ elsewhere;  sequence n has the tokens from c_n to c_{n+1} - 1

Source:
    Krell et al., 2021, "Efficient Sequence Packing without Cross-contamination", arXiv:2107.02027, section 3.2;
    the heads attend by equation (1) of Vaswani et al., arXiv:1706.03762
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, Int, jaxtyped
from torch import Tensor, nn

from attnshape.targets.builtin.cases import Case, head_width

CACHED = ("key", "value")


class Packed(nn.Module):
    """Self-attention within each of the sequences that one axis of tokens holds."""

    def __init__(self, D: int, H: int) -> None:
        super().__init__()
        self.H, self.Dk = H, head_width(D, H)
        self.Wq = nn.Linear(D, D, bias=False)
        self.Wk = nn.Linear(D, D, bias=False)
        self.Wv = nn.Linear(D, D, bias=False)
        self.Wo = nn.Linear(D, D, bias=False)

    @jaxtyped(typechecker=beartype)
    def forward(self, input: Float[Tensor, "L D"], ends: Int[Tensor, " Ns"]) -> Float[Tensor, "L D"]:
        """Return the output for each token: section 3.2 of Krell et al.

        Args:
            input: The tokens of all sequences, (L, D).
            ends: Where each sequence ends, as the position behind its last token, (Ns,).

        Returns:
            The output, (L, D).
        """
        L, D = input.shape
        H, Dk = self.H, self.Dk
        query: Float[Tensor, "H L Dk"] = self.Wq(input).view(L, H, Dk).transpose(0, 1)
        key: Float[Tensor, "H L Dk"] = self.Wk(input).view(L, H, Dk).transpose(0, 1)
        value: Float[Tensor, "H L Dk"] = self.Wv(input).view(L, H, Dk).transpose(0, 1)
        position: Int[Tensor, " L"] = torch.arange(L, device=input.device)
        sequence: Int[Tensor, " L"] = (position.unsqueeze(1) >= ends).sum(dim=1)
        together: Bool[Tensor, "L L"] = sequence.unsqueeze(1) == sequence
        earlier: Bool[Tensor, "L L"] = position.unsqueeze(1) >= position
        scores: Float[Tensor, "H L L"] = query @ key.transpose(-2, -1) / math.sqrt(Dk)
        logits: Float[Tensor, "H L L"] = scores.masked_fill(~(together & earlier), -math.inf)
        weights: Float[Tensor, "H L L"] = logits.softmax(dim=-1)
        context: Float[Tensor, "H L Dk"] = weights @ value
        concat: Float[Tensor, "L D"] = context.transpose(0, 1).reshape(L, D)
        output: Float[Tensor, "L D"] = self.Wo(concat)
        return output


def self_attention(H: int, L: int, D: int, Ns: int) -> Case:
    """Each token attends to its own sequence, up to itself; a sequence has half of the tokens that are left for it."""
    ends = L - L // 2 ** torch.arange(1, Ns + 1)
    ends[-1] = L
    return Packed(D, H), (torch.randn(L, D), ends), {}, ("causal", "scale=1/sqrt(Dk)")
