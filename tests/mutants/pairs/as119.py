"""AS119: a transform back from frequencies returns one number fewer for odd lengths."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 3})
PAIRS = [
    ("AS119", "filtered_and_padded", *SELF),
    ("AS119", "lags_of_autocorrelation", *SELF),
    ("AS119", "filtered_values", *SELF),
]


def cosines(length):
    """The real and the imaginary part of the discrete transform as a matrix, entry by entry."""
    angles = torch.tensor(
        [[2 * math.pi * f * t / length for t in range(length)] for f in range(length)], dtype=torch.float64
    )
    return torch.complex(angles.cos(), -angles.sin())


def filtered(x, weights):
    """Multiply the frequencies of a signal along axis 1 by the same numbers for a frequency and its negative."""
    length = x.shape[1]
    matrix = cosines(length)
    of_each = torch.stack([weights[min(f, length - f)] for f in range(length)]).to(matrix.dtype)
    spectrum = torch.einsum("ft,btd->bfd", matrix, x.to(matrix.dtype)) * of_each[None, :, None]
    return (torch.einsum("ft,bfd->btd", matrix.conj(), spectrum) / length).real


class Filtered(nn.Module):
    """Attention to tokens that a filter of frequencies has smoothed."""

    def __init__(self, width, n_heads, length):
        super().__init__()
        self.n_heads = n_heads
        self.filter = nn.Parameter(torch.rand(length // 2 + 1) + 0.5)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def smooth(self, x):
        spectrum = torch.fft.rfft(x, dim=1) * self.filter[:, None]
        return torch.fft.irfft(spectrum, n=x.shape[1], dim=1)

    def forward(self, x):
        q, k, v = (
            t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(self.smooth(x)).chunk(3, dim=-1)
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class FilteredAndPadded(Filtered):
    def smooth(self, x):
        spectrum = torch.fft.rfft(x, dim=1) * self.filter[:, None]
        smooth = torch.fft.irfft(spectrum, dim=1)  # wrong: AS119 filtered_and_padded
        return F.pad(smooth, (0, 0, 0, x.shape[1] - smooth.shape[1]))


def _filtered(cls, B, H, L, Dk):
    return cls(H * Dk, H, L), (torch.randn(B, L, H * Dk),), {}


def wrong_filtered_and_padded(B, H, L, Dk):
    return _filtered(FilteredAndPadded, B, H, L, Dk)


def right_filtered_and_padded(B, H, L, Dk):
    return _filtered(Filtered, B, H, L, Dk)


def reference_filtered_and_padded(module, x):
    return merge(attend(*fused(filtered(x, module.filter), module.qkv, module.n_heads)), module.out)


def shifted(weights, v):
    """The sum of the values at all lags."""
    return sum(weights[..., lag, None, None] * v.roll(-lag, 2) for lag in range(weights.shape[-1]))


def autocorrelation(q, k, v):
    products = torch.fft.rfft(q, dim=2) * torch.fft.rfft(k, dim=2).conj()
    lags = torch.fft.irfft(products, q.shape[2], 2).mean(-1)
    return shifted(lags.softmax(-1), v)


def autocorrelation_of_even(q, k, v):
    products = torch.fft.rfft(q, dim=2) * torch.fft.rfft(k, dim=2).conj()
    lags = torch.fft.irfft(products, dim=2).mean(-1)  # wrong: AS119 lags_of_autocorrelation
    return shifted(lags.softmax(-1), v)


def wrong_lags_of_autocorrelation(B, H, L, Dk):
    return autocorrelation_of_even, tuple(torch.randn(3, B, H, L, Dk)), {}


def right_lags_of_autocorrelation(B, H, L, Dk):
    return autocorrelation, tuple(torch.randn(3, B, H, L, Dk)), {}


def reference_lags_of_autocorrelation(_, q, k, v):
    lags = torch.stack([(q.roll(-lag, 2) * k).sum(2).mean(-1) for lag in range(q.shape[2])], -1)
    return shifted(lags.exp() / lags.exp().sum(-1, keepdim=True), v)


def smoothed(values, **length):
    spectrum = torch.fft.rfftn(values, dim=(2,))
    spectrum = spectrum * torch.arange(1, spectrum.shape[2] + 1, dtype=values.dtype)[:, None].reciprocal()
    return torch.fft.irfftn(spectrum, dim=(2,), **length)  # wrong: AS119 filtered_values


def values_of_even(q, k, v):
    rows = smoothed(v)
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    return weights[..., : rows.shape[2]] @ rows


def values_of_length(q, k, v):
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ smoothed(v, s=(v.shape[2],))


def wrong_filtered_values(B, H, L, Dk):
    return values_of_even, tuple(torch.randn(3, B, H, L, Dk)), {}


def right_filtered_values(B, H, L, Dk):
    return values_of_length, tuple(torch.randn(3, B, H, L, Dk)), {}


def reference_filtered_values(_, q, k, v):
    weights = torch.tensor([1 / (one + 1) for one in range(v.shape[2] // 2 + 1)], dtype=torch.float64)
    return attend(q, k, filtered(v.flatten(0, 1), weights).view(v.shape))
