"""Shifted-window attention: the tokens of a map attend within square windows, which every other layer shifts by a half.

Formula:
    Attention(X) = Concat(softmax(Q_h K_hᵀ / √Dk + b_h + M) V_h) Wo,  within each window of W × W tokens
    b_h at (i, j) = table[row of i - row of j, column of i - column of j, h]
    M is -∞ between tokens that are in one window only because the map was rolled, and 0 elsewhere

Source:
    Liu et al., 2021, "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows", arXiv:2103.14030,
    section 3.2, equation (4) and figure 4
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, Int, jaxtyped
from torch import Tensor, nn

from attnshape.targets.builtin.cases import Case, head_width, shift_mask


class ShiftedWindow(nn.Module):
    """Self-attention within the windows of a map that is rolled before, and rolled back afterwards."""

    def __init__(self, D: int, H: int, W: int, shift: int) -> None:
        super().__init__()
        self.H, self.Dk, self.W, self.shift = H, head_width(D, H), W, shift
        self.Wq = nn.Linear(D, D)
        self.Wk = nn.Linear(D, D)
        self.Wv = nn.Linear(D, D)
        self.Wo = nn.Linear(D, D)
        self.table = nn.Parameter(torch.randn(H, 2 * W - 1, 2 * W - 1))

    @jaxtyped(typechecker=beartype)
    def forward(
        self, input: Float[Tensor, "B height width D"], mask: Bool[Tensor, "Nh Nw tokens tokens"] | None = None
    ) -> Float[Tensor, "B height width D"]:
        """Return the output for each token of a map: equation (4) of Liu et al.

        Args:
            input: The tokens of the map, (B, Nh*W, Nw*W, D).
            mask: True where a query may see a key of its window, (Nh, Nw, W*W, W*W). None hides nothing.

        Returns:
            The output, (B, Nh*W, Nw*W, D).
        """
        B, D = input.shape[0], input.shape[-1]
        H, Dk, W = self.H, self.Dk, self.W
        Nh, Nw = input.shape[1] // W, input.shape[2] // W
        place: Int[Tensor, " W"] = torch.arange(W, device=input.device)
        row: Int[Tensor, " W*W"] = place.repeat_interleave(W)
        column: Int[Tensor, " W*W"] = place.repeat(W)
        row_offset: Int[Tensor, "W*W W*W"] = row.unsqueeze(1) - row + W - 1
        column_offset: Int[Tensor, "W*W W*W"] = column.unsqueeze(1) - column + W - 1
        bias: Float[Tensor, "H W*W W*W"] = self.table[:, row_offset, column_offset]
        windows: Float[Tensor, "B Nh Nw W W D"] = (
            input.roll((-self.shift, -self.shift), dims=(1, 2)).view(B, Nh, W, Nw, W, D).transpose(2, 3)
        )
        query: Float[Tensor, "B Nh Nw H W*W Dk"] = self.Wq(windows).view(B, Nh, Nw, W * W, H, Dk).transpose(3, 4)
        key: Float[Tensor, "B Nh Nw H W*W Dk"] = self.Wk(windows).view(B, Nh, Nw, W * W, H, Dk).transpose(3, 4)
        value: Float[Tensor, "B Nh Nw H W*W Dk"] = self.Wv(windows).view(B, Nh, Nw, W * W, H, Dk).transpose(3, 4)
        scores: Float[Tensor, "B Nh Nw H W*W W*W"] = query @ key.transpose(-2, -1) / math.sqrt(Dk) + bias
        logits: Float[Tensor, "B Nh Nw H W*W W*W"] = (
            scores if mask is None else scores.masked_fill(~mask.unsqueeze(2), -math.inf)
        )
        weights: Float[Tensor, "B Nh Nw H W*W W*W"] = logits.softmax(dim=-1)
        context: Float[Tensor, "B Nh Nw H W*W Dk"] = weights @ value
        concat: Float[Tensor, "B Nh Nw W W D"] = context.transpose(3, 4).reshape(B, Nh, Nw, W, W, D)
        unrolled: Float[Tensor, "B W*Nh W*Nw D"] = (
            concat.transpose(2, 3).reshape(B, Nh * W, Nw * W, D).roll((self.shift, self.shift), dims=(1, 2))
        )
        output: Float[Tensor, "B W*Nh W*Nw D"] = self.Wo(unrolled)
        return output


def shifted(B: int, H: int, D: int, W: int, Nh: int, Nw: int) -> Case:
    """The windows are shifted by half their side."""
    attention, mask = ShiftedWindow(D, H, W, W // 2), shift_mask(W, Nh, Nw)
    return attention, (torch.randn(B, Nh * W, Nw * W, D), mask), {}, ("scale=1/sqrt(Dk)",)


def regular(B: int, H: int, D: int, W: int, Nh: int, Nw: int) -> Case:
    """The windows begin at a corner of the map."""
    return ShiftedWindow(D, H, W, 0), (torch.randn(B, Nh * W, Nw * W, D),), {}, ("scale=1/sqrt(Dk)",)
