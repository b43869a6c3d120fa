"""Sparse attention: an indexer scores all earlier tokens cheaply, and each query attends to the Ls best of them.

Formula:
    Attention(X) = Concat(softmax(Q_h K_hᵀ / √Dk + S) V_h) Wo,  Q = X Wq,  K = X Wk,  V = X Wv
    S_ts = 0 where I_ts is among the Ls largest of I_t with s ≤ t, else -∞;  I_ts = Σ_j w_tj ReLU(q_tj · k_s)

Source:
    DeepSeek-AI, 2025, "DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models", arXiv:2512.02556,
    section 2.1, equations (1) and (2)
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, Int, jaxtyped
from torch import Tensor, nn

from attnshape.targets.builtin.cases import Case, causal_mask, head_width

CACHED = ("key", "value")


class Sparse(nn.Module):
    """Self-attention to the keys that an indexer selects, the same for all heads."""

    def __init__(self, D: int, H: int, Ls: int, Hi: int, Di: int) -> None:
        super().__init__()
        self.H, self.Dk, self.Ls, self.Hi, self.Di = H, head_width(D, H), Ls, Hi, Di
        self.Wq = nn.Linear(D, D, bias=False)
        self.Wk = nn.Linear(D, D, bias=False)
        self.Wv = nn.Linear(D, D, bias=False)
        self.Wo = nn.Linear(D, D, bias=False)
        self.index_query = nn.Linear(D, Hi * Di, bias=False)
        self.index_key = nn.Linear(D, Di, bias=False)
        self.index_weight = nn.Linear(D, Hi, bias=False)

    @jaxtyped(typechecker=beartype)
    def select(self, input: Float[Tensor, "B L D"], mask: Bool[Tensor, "L L"]) -> Bool[Tensor, "B L L"]:
        """Return True where a query selects a key: equation (1) of the DeepSeek-V3.2 report, and its top-k.

        Args:
            input: The tokens, (B, L, D).
            mask: True where a query may select a key, (L, L).

        Returns:
            The selected keys, (B, L, L).
        """
        B, L = input.shape[:2]
        Ls, Hi, Di = self.Ls, self.Hi, self.Di
        query: Float[Tensor, "B Hi L Di"] = self.index_query(input).view(B, L, Hi, Di).transpose(1, 2)
        key: Float[Tensor, "B 1 L Di"] = self.index_key(input).unsqueeze(1)
        gate: Float[Tensor, "B Hi L 1"] = self.index_weight(input).transpose(1, 2).unsqueeze(-1)
        index: Float[Tensor, "B L L"] = (gate * (query @ key.transpose(-2, -1)).relu()).sum(dim=1)
        best: Int[Tensor, "B L Ls"] = index.masked_fill(~mask, -math.inf).topk(Ls, dim=-1).indices
        return torch.zeros_like(index, dtype=torch.bool).scatter(-1, best, True) & mask

    @jaxtyped(typechecker=beartype)
    def forward(self, input: Float[Tensor, "B L D"], mask: Bool[Tensor, "L L"]) -> Float[Tensor, "B L D"]:
        """Return the output for each token: equation (2) of the DeepSeek-V3.2 report.

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
        selected: Bool[Tensor, "B 1 L L"] = self.select(input, mask).unsqueeze(1)
        logits: Float[Tensor, "B H L L"] = scores.masked_fill(~selected, -math.inf)
        weights: Float[Tensor, "B H L L"] = logits.softmax(dim=-1)
        context: Float[Tensor, "B H L Dk"] = weights @ value
        concat: Float[Tensor, "B L D"] = context.transpose(1, 2).reshape(B, L, D)
        output: Float[Tensor, "B L D"] = self.Wo(concat)
        return output


def self_attention(B: int, H: int, L: int, D: int, Ls: int, Hi: int, Di: int) -> Case:
    """Each token attends to at most Ls tokens among itself and those before it."""
    claims = ("causal", "scale=1/sqrt(Dk)")
    return Sparse(D, H, Ls, Hi, Di), (torch.randn(B, L, D), causal_mask(L, L)), {}, claims
