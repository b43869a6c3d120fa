"""Differential attention: each head subtracts the weights of a second softmax, so that common noise cancels.

Formula:
    Attention(X) = Concat(head_1, …, head_H) Wo,  Q = X Wq,  K = X Wk,  V = X Wv
    head_h = (1 - λ₀) RMSNorm((softmax(Q_1 K_1ᵀ / √d) - λ softmax(Q_2 K_2ᵀ / √d)) V_h)
    λ = exp(λ_q1 · λ_k1) - exp(λ_q2 · λ_k2) + λ₀,  λ₀ = 0.8,  d = Dk/2

Source:
    Ye et al., 2024, "Differential Transformer", arXiv:2410.05258, section 2.1, equations (1) to (3)
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor, nn

from attnshape.targets.builtin.cases import Case, causal_mask, head_width

CACHED = ("key", "value")
LAMBDA_INIT = 0.8


class Differential(nn.Module):
    """Self-attention of heads with two queries, two keys, and one value that is as wide as both."""

    def __init__(self, D: int, H: int) -> None:
        super().__init__()
        self.H, self.Dk = H, head_width(D, H)
        self.Wq = nn.Linear(D, D, bias=False)
        self.Wk = nn.Linear(D, D, bias=False)
        self.Wv = nn.Linear(D, D, bias=False)
        self.Wo = nn.Linear(D, D, bias=False)
        self.lambda_query = nn.Parameter(0.1 * torch.randn(2, self.Dk // 2))
        self.lambda_key = nn.Parameter(0.1 * torch.randn(2, self.Dk // 2))
        self.norm = nn.RMSNorm(self.Dk, eps=1e-5)

    @jaxtyped(typechecker=beartype)
    def forward(self, input: Float[Tensor, "B L D"], mask: Bool[Tensor, "L L"]) -> Float[Tensor, "B L D"]:
        """Return the output for each token: equations (1) to (3) of Ye et al.

        Args:
            input: The tokens, (B, L, D); Dk = D/H is even.
            mask: True where a query may see a key, (L, L).

        Returns:
            The output, (B, L, D).
        """
        B, L, D = input.shape
        H, Dk = self.H, self.Dk
        value: Float[Tensor, "B H L Dk"] = self.Wv(input).view(B, L, H, Dk).transpose(1, 2)
        query: Float[Tensor, "B H 2 L Dk//2"] = self.Wq(input).view(B, L, H, 2, Dk // 2).permute(0, 2, 3, 1, 4)
        key: Float[Tensor, "B H 2 L Dk//2"] = self.Wk(input).view(B, L, H, 2, Dk // 2).permute(0, 2, 3, 1, 4)
        scores: Float[Tensor, "B H 2 L L"] = query @ key.transpose(-2, -1) / math.sqrt(Dk // 2)
        logits: Float[Tensor, "B H 2 L L"] = scores.masked_fill(~mask, -math.inf)
        weights: Float[Tensor, "B H 2 L L"] = logits.softmax(dim=-1)
        factor: Float[Tensor, " 2"] = (self.lambda_query * self.lambda_key).sum(dim=-1).exp()
        noise: Float[Tensor, "B H L L"] = (factor[0] - factor[1] + LAMBDA_INIT) * weights[:, :, 1]
        context: Float[Tensor, "B H L Dk"] = (weights[:, :, 0] - noise) @ value
        normed: Float[Tensor, "B H L Dk"] = (1 - LAMBDA_INIT) * self.norm(context)
        output: Float[Tensor, "B L D"] = self.Wo(normed.transpose(1, 2).reshape(B, L, D))
        return output


def self_attention(B: int, H: int, L: int, D: int) -> Case:
    """Each token attends to itself and the tokens before it."""
    claims = ("causal", "mask=keep", "scale=1/sqrt(Dk)")
    return Differential(D, H), (torch.randn(B, L, D), causal_mask(L, L)), {}, claims
