"""Attention with a KV cache: keys and values of earlier tokens are kept, and new tokens attend to all of them.

Formula:
    Attention(X; K', V') = Concat(head_1, …, head_H) Wo,  head_h = softmax(Q_h K_hᵀ / √Dk) V_h
    Q = X Wq,  K = [K'; X Wk],  V = [V'; X Wv];  query i sees the keys up to Lp + i

Source:
    Shazeer, 2019, "Fast Transformer Decoding: One Write-Head is All You Need", arXiv:1911.02150, section 2.4;
    the heads attend by equation (1) of Vaswani et al., arXiv:1706.03762
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor, nn

from attnshape.targets.builtin.cases import Case, causal_mask, head_width

CACHED = ("key", "value")


class KVCache(nn.Module):
    """Self-attention that returns its keys and values, and takes those of earlier tokens."""

    def __init__(self, D: int, H: int) -> None:
        super().__init__()
        self.H, self.Dk = H, head_width(D, H)
        self.Wq = nn.Linear(D, D, bias=False)
        self.Wk = nn.Linear(D, D, bias=False)
        self.Wv = nn.Linear(D, D, bias=False)
        self.Wo = nn.Linear(D, D, bias=False)

    @jaxtyped(typechecker=beartype)
    def forward(
        self,
        input: Float[Tensor, "B Lq D"],
        mask: Bool[Tensor, "Lq Lk"],
        past_key: Float[Tensor, "B H Lp Dk"] | None = None,
        past_value: Float[Tensor, "B H Lp Dk"] | None = None,
    ) -> tuple[Float[Tensor, "B Lq D"], Float[Tensor, "B H Lk Dk"], Float[Tensor, "B H Lk Dk"]]:
        """Return the output for each new token, with the keys and values of all tokens so far.

        Args:
            input: The new tokens, (B, Lq, D).
            mask: True where a query may see a key, (Lq, Lk).
            past_key: The keys of the tokens before, (B, H, Lp, Dk); None if there are none.
            past_value: Their values, (B, H, Lp, Dk).

        Returns:
            The output, (B, Lq, D), the keys and the values, each (B, H, Lk, Dk) with Lk = Lp + Lq.
        """
        B, Lq, D = input.shape
        H, Dk = self.H, self.Dk
        query: Float[Tensor, "B H Lq Dk"] = self.Wq(input).view(B, Lq, H, Dk).transpose(1, 2)
        new_key: Float[Tensor, "B H Lq Dk"] = self.Wk(input).view(B, Lq, H, Dk).transpose(1, 2)
        new_value: Float[Tensor, "B H Lq Dk"] = self.Wv(input).view(B, Lq, H, Dk).transpose(1, 2)
        key: Float[Tensor, "B H Lk Dk"] = new_key if past_key is None else torch.cat((past_key, new_key), dim=2)
        value: Float[Tensor, "B H Lk Dk"] = (
            new_value if past_value is None else torch.cat((past_value, new_value), dim=2)
        )
        scores: Float[Tensor, "B H Lq Lk"] = query @ key.transpose(-2, -1) / math.sqrt(Dk)
        logits: Float[Tensor, "B H Lq Lk"] = scores.masked_fill(~mask, -math.inf)
        weights: Float[Tensor, "B H Lq Lk"] = logits.softmax(dim=-1)
        context: Float[Tensor, "B H Lq Dk"] = weights @ value
        concat: Float[Tensor, "B Lq D"] = context.transpose(1, 2).reshape(B, Lq, D)
        output: Float[Tensor, "B Lq D"] = self.Wo(concat)
        return output, key, value


def prefill(B: int, H: int, L: int, D: int) -> Case:
    """The first tokens fill an empty cache."""
    claims = ("causal", "mask=keep", "scale=1/sqrt(Dk)")
    return KVCache(D, H), (torch.randn(B, L, D), causal_mask(L, L)), {}, claims


def decode(B: int, H: int, Lp: int, Lq: int, D: int) -> Case:
    """New tokens attend to Lp cached tokens, and to themselves."""
    past = torch.randn(2, B, H, Lp, head_width(D, H))
    claims = ("causal", "mask=keep", "scale=1/sqrt(Dk)")
    return KVCache(D, H), (torch.randn(B, Lq, D), causal_mask(Lq, Lp + Lq), past[0], past[1]), {}, claims
