"""AS407 without a softmax of scores: sums take in what a mask hides."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.mutants.pairs.as4_reference import merge
from tests.mutants.pairs.as501_results import Base, plain

SIZES = (
    {"B": 4, "H": 5, "L": 9, "Dk": 6},
    {"B": 5, "H": 3, "L": 11, "Dk": 7},
    {"B": 6, "H": 2, "L": 8, "Dk": 5},
)
PAIRS = [
    ("AS407", "sigmoid_of_padding", *SIZES),
    ("AS407", "sums_of_padding", *SIZES),
    ("AS407", "squares_of_padding", *SIZES),
    ("AS407", "padding_in_the_denominator", *SIZES),
]


def _mask(B, L):
    return torch.arange(L) < (L - torch.arange(B) % (L - 1))[:, None]


class Masked(Base):
    """`attend` gets the mask too, (B, L), true for keys to keep."""

    def forward(self, x, mask):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(self.attend(q, k, v, mask).transpose(1, 2).flatten(2))


def _case(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), _mask(B, L)), {}, ["mask=keep"]


class Sigmoid(Masked):
    def hidden(self, mask):
        return ~mask[:, None, None, :]

    def attend(self, q, k, v, mask):
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        return scores.masked_fill(self.hidden(mask), -torch.inf).sigmoid() @ v


class SigmoidOfPadding(Sigmoid):
    def hidden(self, mask):
        return ~mask[:, None, :, None]


def wrong_sigmoid_of_padding(B, H, L, Dk):
    return _case(SigmoidOfPadding, B, H, L, Dk)


def right_sigmoid_of_padding(B, H, L, Dk):
    return _case(Sigmoid, B, H, L, Dk)


def weighed(module, x, mask, weigh):
    """Return the result where the weights of kept keys are a function of the plain scores."""
    q, k, v = (
        torch.stack(part.chunk(module.heads, -1), 1)
        for part in (torch.einsum("bli,oi->blo", x, module.qkv.weight) + module.qkv.bias).chunk(3, -1)
    )
    return merge(torch.einsum("bhqk,bhkd->bhqd", weigh(q, k) * mask[:, None, None], v), module.out)


def reference_sigmoid_of_padding(module, x, mask):
    return weighed(module, x, mask, lambda q, k: 1 / (1 + torch.exp(-plain(q, k) * q.shape[-1] ** -0.5)))


class Sums(Masked):
    """Linear attention: padded keys are zeros."""

    def keys(self, k, mask):
        return torch.where(mask[:, None, :, None], F.elu(k) + 1, 0)

    def attend(self, q, k, v, mask):
        q, k = F.elu(q) + 1, self.keys(k, mask)
        state = torch.einsum("bhjd,bhje->bhde", k, v)
        return torch.einsum("bhid,bhde->bhie", q, state) / (q @ k.sum(dim=2).unsqueeze(-1))


class SumsOfPadding(Sums):
    def keys(self, k, mask):
        return F.elu(torch.where(mask[:, None, :, None], k, 0)) + 1


class PaddingInDenominator(Sums):
    def attend(self, q, k, v, mask):
        q, kept, k = F.elu(q) + 1, self.keys(k, mask), F.elu(k) + 1
        state = torch.einsum("bhjd,bhje->bhde", kept, v)
        return torch.einsum("bhid,bhde->bhie", q, state) / (q @ k.sum(dim=2).unsqueeze(-1))


def wrong_sums_of_padding(B, H, L, Dk):
    return _case(SumsOfPadding, B, H, L, Dk)


def wrong_padding_in_the_denominator(B, H, L, Dk):
    return _case(PaddingInDenominator, B, H, L, Dk)


def right_sums_of_padding(B, H, L, Dk):
    return _case(Sums, B, H, L, Dk)


def reference_sums_of_padding(module, x, mask):
    def weigh(q: Tensor, k: Tensor) -> Tensor:
        products = plain(*(torch.where(t > 0, t + 1, t.exp()) for t in (q, k)))
        return products / (products * mask[:, None, None]).sum(-1, keepdim=True)

    return weighed(module, x, mask, weigh)


right_padding_in_the_denominator = right_sums_of_padding
reference_padding_in_the_denominator = reference_sums_of_padding


class Squares(Masked):
    def values(self, v, mask):
        return v * mask[:, None, :, None]

    def attend(self, q, k, v, mask):
        weights = (q @ k.mT * q.shape[-1] ** -0.5).relu().square()
        return torch.einsum("bhij,bhjd->bhid", weights, self.values(v, mask))


class SquaresOfPadding(Squares):
    def values(self, v, mask):
        return v * mask.roll(1, 1)[:, None, :, None]


def wrong_squares_of_padding(B, H, L, Dk):
    return _case(SquaresOfPadding, B, H, L, Dk)


def right_squares_of_padding(B, H, L, Dk):
    return _case(Squares, B, H, L, Dk)


def reference_squares_of_padding(module, x, mask):
    return weighed(module, x, mask, lambda q, k: plain(q, k).clamp(min=0) ** 2 / q.shape[-1])
