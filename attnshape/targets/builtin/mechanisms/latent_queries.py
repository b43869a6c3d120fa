"""Attention of latent queries: a few learned vectors attend to an input of any length, which they summarise.

Formula:
    Attention(Z, X) = Concat(softmax(Q_h K_hᵀ / √Dk) V_h) Wo,  Q = Z Wq,  K = X Wk,  V = X Wv,  with learned Z

Source:
    Jaegle et al., 2021, "Perceiver: General Perception with Iterative Attention", arXiv:2103.03206, section 3.1;
    equations (1) to (3) in appendix E of Perceiver IO, arXiv:2107.14795, without its norms and MLP
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor, nn

from attnshape.targets.builtin.cases import Case, head_width, padding_mask


class LatentQueries(nn.Module):
    """Cross-attention from learned latents to an input, whose width differs from theirs."""

    def __init__(self, D: int, H: int, Lz: int, Din: int) -> None:
        super().__init__()
        self.H, self.Dk, self.Lz = H, head_width(D, H), Lz
        self.latents = nn.Parameter(torch.randn(Lz, D))
        self.Wq = nn.Linear(D, D)
        self.Wk = nn.Linear(Din, D)
        self.Wv = nn.Linear(Din, D)
        self.Wo = nn.Linear(D, D)

    @jaxtyped(typechecker=beartype)
    def forward(self, memory: Float[Tensor, "B Lk Din"], mask: Bool[Tensor, "B Lk"]) -> Float[Tensor, "B Lz D"]:
        """Return the output for each latent: section 3.1 of Jaegle et al.

        Args:
            memory: The input, (B, Lk, Din).
            mask: True for the tokens of the input, False for its padding, (B, Lk).

        Returns:
            The output, (B, Lz, D).
        """
        B, Lk = memory.shape[:2]
        H, Dk, Lz = self.H, self.Dk, self.Lz
        key: Float[Tensor, "B H Lk Dk"] = self.Wk(memory).view(B, Lk, H, Dk).transpose(1, 2)
        value: Float[Tensor, "B H Lk Dk"] = self.Wv(memory).view(B, Lk, H, Dk).transpose(1, 2)
        query: Float[Tensor, "H Lz Dk"] = self.Wq(self.latents).view(Lz, H, Dk).transpose(0, 1)
        scores: Float[Tensor, "B H Lz Lk"] = query @ key.transpose(-2, -1) / math.sqrt(Dk)
        logits: Float[Tensor, "B H Lz Lk"] = scores.masked_fill(~mask[:, None, None], -math.inf)
        weights: Float[Tensor, "B H Lz Lk"] = logits.softmax(dim=-1)
        context: Float[Tensor, "B H Lz Dk"] = weights @ value
        concat: Float[Tensor, "B Lz D"] = context.transpose(1, 2).reshape(B, Lz, H * Dk)
        output: Float[Tensor, "B Lz D"] = self.Wo(concat)
        return output


def cross_attention(B: int, H: int, Lz: int, Lk: int, D: int, Din: int) -> Case:
    """Each latent attends to the tokens of a padded input."""
    claims = ("mask=keep", "scale=1/sqrt(Dk)")
    return LatentQueries(D, H, Lz, Din), (torch.randn(B, Lk, Din), padding_mask(B, Lk)), {}, claims
