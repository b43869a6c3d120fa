"""Multi-head latent attention: keys and values are computed from one compressed vector for each token, which is cached.

Formula:
    Attention(X) = Concat(softmax((Q_h K_hᵀ + R(Q'_h) R(K')ᵀ) / √(Dk + Dr)) V_h) Wo,  C = X W_DKV,  C' = X W_DQ
    Q = C' W_UQ,  Q' = C' W_QR,  K = C W_UK,  K' = X W_KR, one for all heads,  V = C W_UV;  R rotates pairs of features

Source:
    DeepSeek-AI, 2024, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model",
    arXiv:2405.04434, section 2.1, equations (9) to (19), without the norms of the compressed vectors
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor, nn

from attnshape.targets.builtin.cases import Case, causal_mask, head_width
from attnshape.targets.builtin.mechanisms.partial_rotary import rotate_part

CACHED = ("latent", "turned_key")


class Latent(nn.Module):
    """Self-attention between queries and keys that have a compressed part and a rotated part."""

    def __init__(self, D: int, H: int, Dr: int, Dc: int, Dcq: int) -> None:
        super().__init__()
        self.H, self.Dk, self.Dr = H, head_width(D, H), Dr
        self.W_DQ = nn.Linear(D, Dcq, bias=False)
        self.W_UQ = nn.Linear(Dcq, D, bias=False)
        self.W_QR = nn.Linear(Dcq, H * Dr, bias=False)
        self.W_DKV = nn.Linear(D, Dc, bias=False)
        self.W_UK = nn.Linear(Dc, D, bias=False)
        self.W_UV = nn.Linear(Dc, D, bias=False)
        self.W_KR = nn.Linear(D, Dr, bias=False)
        self.Wo = nn.Linear(D, D, bias=False)

    @jaxtyped(typechecker=beartype)
    def forward(
        self, input: Float[Tensor, "B L D"], mask: Bool[Tensor, "L L"]
    ) -> tuple[Float[Tensor, "B L D"], Float[Tensor, "B L Dc"], Float[Tensor, "B L Dr"]]:
        """Return the output for each token, with what is cached: equations (9) to (19) of the DeepSeek-V2 report.

        Args:
            input: The tokens, (B, L, D).
            mask: True where a query may see a key, (L, L).

        Returns:
            The output, (B, L, D), the compressed keys and values, (B, L, Dc), and the rotated keys, (B, L, Dr).
        """
        B, L, D = input.shape
        H, Dk, Dr = self.H, self.Dk, self.Dr
        query_latent: Float[Tensor, "B L Dcq"] = self.W_DQ(input)
        query: Float[Tensor, "B H L Dk"] = self.W_UQ(query_latent).view(B, L, H, Dk).transpose(1, 2)
        plain: Float[Tensor, "B H L Dr"] = self.W_QR(query_latent).view(B, L, H, Dr).transpose(1, 2)
        turned_query: Float[Tensor, "B H L Dr"] = rotate_part(plain)
        latent: Float[Tensor, "B L Dc"] = self.W_DKV(input)
        key: Float[Tensor, "B H L Dk"] = self.W_UK(latent).view(B, L, H, Dk).transpose(1, 2)
        value: Float[Tensor, "B H L Dk"] = self.W_UV(latent).view(B, L, H, Dk).transpose(1, 2)
        turned_key: Float[Tensor, "B L Dr"] = rotate_part(self.W_KR(input))
        compressed: Float[Tensor, "B H L L"] = query @ key.transpose(-2, -1)
        rotated: Float[Tensor, "B H L L"] = turned_query @ turned_key.unsqueeze(1).transpose(-2, -1)
        scores: Float[Tensor, "B H L L"] = (compressed + rotated) / math.sqrt(Dk + Dr)
        logits: Float[Tensor, "B H L L"] = scores.masked_fill(~mask, -math.inf)
        weights: Float[Tensor, "B H L L"] = logits.softmax(dim=-1)
        context: Float[Tensor, "B H L Dk"] = weights @ value
        concat: Float[Tensor, "B L D"] = context.transpose(1, 2).reshape(B, L, D)
        output: Float[Tensor, "B L D"] = self.Wo(concat)
        return output, latent, turned_key


def self_attention(B: int, H: int, L: int, D: int, Dr: int, Dc: int, Dcq: int) -> Case:
    """Each token attends to itself and the tokens before it."""
    claims = ("causal", "mask=keep", "rope=interleaved", "scale=1/sqrt(Dk+Dr)")
    return Latent(D, H, Dr, Dc, Dcq), (torch.randn(B, L, D), causal_mask(L, L)), {}, claims
