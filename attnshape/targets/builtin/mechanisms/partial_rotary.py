"""Partial rotary position embedding: Dr features of each head are rotated, the other Dk carry no position.

Formula:
    Attention(X) = Concat(softmax(Q_h K_hᵀ / √(Dk + Dr)) V_h) Wo,  V = X Wv
    Q = [X Wq; R(X Wqr)],  K = [X Wk; R(X Wkr)],  where R rotates pairs of features as in rotary-interleaved

Source:
    Black et al., 2022, "GPT-NeoX-20B: An Open-Source Autoregressive Language Model", arXiv:2204.06745, section 2.1.1;
    the rotation is equation (34) of Su et al., arXiv:2104.09864
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor, nn

from attnshape.targets.builtin.cases import Case, causal_mask, head_width

CACHED = ("key", "value")
BASE = 10_000.0


@jaxtyped(typechecker=beartype)
def rotate_part(x: Float[Tensor, "*batch L Dr"]) -> Float[Tensor, "*batch L Dr"]:
    """Rotate each pair of features (2i, 2i + 1) by its position's angle: equation (34) of Su et al.

    Args:
        x: The rotated part of queries or keys, (*batch, L, Dr); Dr is even.

    Returns:
        The rotated part, (*batch, L, Dr).
    """
    L, Dr = x.shape[-2:]
    position: Float[Tensor, " L"] = torch.arange(L, dtype=x.dtype, device=x.device)
    frequency: Float[Tensor, " Dr//2"] = BASE ** (-torch.arange(0, Dr, 2, dtype=x.dtype, device=x.device) / Dr)
    angle: Float[Tensor, "L Dr//2"] = torch.outer(position, frequency)
    even: Float[Tensor, "*batch L Dr//2"] = x[..., 0::2]
    odd: Float[Tensor, "*batch L Dr//2"] = x[..., 1::2]
    turned_even: Float[Tensor, "*batch L Dr//2"] = even * angle.cos() - odd * angle.sin()
    turned_odd: Float[Tensor, "*batch L Dr//2"] = odd * angle.cos() + even * angle.sin()
    return torch.stack((turned_even, turned_odd), dim=-1).flatten(-2)


class PartialRotary(nn.Module):
    """Self-attention of which only a part of each head depends on positions."""

    def __init__(self, D: int, H: int, Dr: int) -> None:
        super().__init__()
        self.H, self.Dk, self.Dr = H, head_width(D, H), Dr
        self.Wqr = nn.Linear(D, H * Dr, bias=False)
        self.Wkr = nn.Linear(D, H * Dr, bias=False)
        self.Wq = nn.Linear(D, D, bias=False)
        self.Wk = nn.Linear(D, D, bias=False)
        self.Wv = nn.Linear(D, D, bias=False)
        self.Wo = nn.Linear(D, D, bias=False)

    @jaxtyped(typechecker=beartype)
    def forward(self, input: Float[Tensor, "B L D"], mask: Bool[Tensor, "L L"]) -> Float[Tensor, "B L D"]:
        """Return the output for each token: section 2.1.1 of Black et al.

        Args:
            input: The tokens, (B, L, D).
            mask: True where a query may see a key, (L, L).

        Returns:
            The output, (B, L, D).
        """
        B, L, D = input.shape
        H, Dk, Dr = self.H, self.Dk, self.Dr
        turned_query: Float[Tensor, "B H L Dr"] = rotate_part(self.Wqr(input).view(B, L, H, Dr).transpose(1, 2))
        turned_key: Float[Tensor, "B H L Dr"] = rotate_part(self.Wkr(input).view(B, L, H, Dr).transpose(1, 2))
        plain_query: Float[Tensor, "B H L Dk"] = self.Wq(input).view(B, L, H, Dk).transpose(1, 2)
        plain_key: Float[Tensor, "B H L Dk"] = self.Wk(input).view(B, L, H, Dk).transpose(1, 2)
        value: Float[Tensor, "B H L Dk"] = self.Wv(input).view(B, L, H, Dk).transpose(1, 2)
        query: Float[Tensor, "B H L Dk+Dr"] = torch.cat((plain_query, turned_query), dim=-1)
        key: Float[Tensor, "B H L Dk+Dr"] = torch.cat((plain_key, turned_key), dim=-1)
        scores: Float[Tensor, "B H L L"] = query @ key.transpose(-2, -1) / math.sqrt(Dk + Dr)
        logits: Float[Tensor, "B H L L"] = scores.masked_fill(~mask, -math.inf)
        weights: Float[Tensor, "B H L L"] = logits.softmax(dim=-1)
        context: Float[Tensor, "B H L Dk"] = weights @ value
        concat: Float[Tensor, "B L D"] = context.transpose(1, 2).reshape(B, L, D)
        output: Float[Tensor, "B L D"] = self.Wo(concat)
        return output


def self_attention(B: int, H: int, L: int, D: int, Dr: int) -> Case:
    """Each token attends to itself and the tokens before it."""
    claims = ("causal", "mask=keep", "rope=interleaved", "scale=1/sqrt(Dk)")
    return PartialRotary(D, H, Dr), (torch.randn(B, L, D), causal_mask(L, L)), {}, claims
