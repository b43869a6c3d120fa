"""Attention sinks: each head has a learned score that takes part in the softmax, and no value.

Formula:
    Attention(X) = Concat(W_h V_h) Wo,  [W_h; w] = softmax([Q_h K_hᵀ / √Dk; s_h]),  Q = X Wq,  K = X Wk,  V = X Wv

Source:
    OpenAI, 2025, "gpt-oss-120b & gpt-oss-20b Model Card", arXiv:2508.10925, section 2.2; with s_h = 0 it is
    equation (2) of Xiao et al., 2023, "Efficient Streaming Language Models with Attention Sinks", arXiv:2309.17453
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor, nn

from attnshape.targets.builtin.cases import Case, causal_mask, head_width

CACHED = ("key", "value")


class Sinks(nn.Module):
    """Self-attention whose weights may sum to less than one: the sink takes the rest."""

    def __init__(self, D: int, H: int) -> None:
        super().__init__()
        self.H, self.Dk = H, head_width(D, H)
        self.Wq = nn.Linear(D, D, bias=False)
        self.Wk = nn.Linear(D, D, bias=False)
        self.Wv = nn.Linear(D, D, bias=False)
        self.Wo = nn.Linear(D, D, bias=False)
        self.sinks = nn.Parameter(torch.randn(H))

    @jaxtyped(typechecker=beartype)
    def forward(self, input: Float[Tensor, "B L D"], mask: Bool[Tensor, "L L"]) -> Float[Tensor, "B L D"]:
        """Return the output for each token: section 2.2 of the gpt-oss model card.

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
        masked: Float[Tensor, "B H L L"] = scores.masked_fill(~mask, -math.inf)
        sinks: Float[Tensor, "B H L 1"] = self.sinks.view(H, 1, 1).expand(B, H, L, 1)
        logits: Float[Tensor, "B H L L+1"] = torch.cat((masked, sinks), dim=-1)
        weights: Float[Tensor, "B H L L"] = logits.softmax(dim=-1)[..., :L]
        context: Float[Tensor, "B H L Dk"] = weights @ value
        concat: Float[Tensor, "B L D"] = context.transpose(1, 2).reshape(B, L, D)
        output: Float[Tensor, "B L D"] = self.Wo(concat)
        return output


def self_attention(B: int, H: int, L: int, D: int) -> Case:
    """Each token attends to itself and the tokens before it."""
    claims = ("causal", "mask=keep", "scale=1/sqrt(Dk)")
    return Sinks(D, H), (torch.randn(B, L, D), causal_mask(L, L)), {}, claims
