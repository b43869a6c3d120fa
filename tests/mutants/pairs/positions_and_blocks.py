"""AS302, AS409, AS410 and AS505 in further styles."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.pairs.as4_reference import attend, fused, merge

BLOCKS = (
    {"B": 3, "H": 5, "Dk": 6, "W": 4},
    {"B": 5, "H": 4, "Dk": 8, "W": 3},
    {"B": 6, "H": 7, "Dk": 8, "W": 4},
)
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 6},
    {"B": 3, "H": 2, "Lq": 9, "Lk": 11, "Dk": 5},
    {"B": 5, "H": 3, "Lq": 7, "Lk": 8, "Dk": 4},
)
PAIRS = [
    ("AS302", "halves_by_their_maxima", *CROSS),
    ("AS409", "gathered_neighbours", *BLOCKS),
    ("AS410", "sequence_in_sdpa", *BLOCKS),
    ("AS410", "regions_of_whole_windows", *BLOCKS),
    ("AS505", "one_side_longer", *BLOCKS),
]


def partial(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scores = q @ k.mT * q.shape[-1] ** -0.5
    most = torch.maximum(scores.amax(dim=-1, keepdim=True), scores.new_full((), -1e4))
    weights = torch.exp(scores - most)
    return weights @ v, weights.sum(dim=-1, keepdim=True), most


def halves(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk) to the halves of the keys, and put both together."""
    half = k.shape[2] // 2
    one, other = partial(q, k[:, :, :half], v[:, :, :half]), partial(q, k[:, :, half:], v[:, :, half:])
    most = torch.maximum(one[2], other[2])
    first, second = (one[2] - most).exp(), (other[2] - most).exp()
    return (one[0] * first + other[0] * second) / (one[1] * first + other[1] * second)


def halves_by_maxima(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk) to the halves of the keys, and put both together."""
    half = k.shape[2] // 2
    one, other = partial(q, k[:, :, :half], v[:, :, :half]), partial(q, k[:, :, half:], v[:, :, half:])
    most = torch.maximum(one[2], other[2])
    first, second = (one[2] - most).exp(), (other[2] - most).exp()
    return (one[0] * first + other[0] * second) / (one[1] + other[1])


def _three(function, B, H, Lq, Lk, Dk):
    return function, (torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)), {}


def wrong_halves_by_their_maxima(B, H, Lq, Lk, Dk):
    return _three(halves_by_maxima, B, H, Lq, Lk, Dk)


def right_halves_by_their_maxima(B, H, Lq, Lk, Dk):
    return _three(halves, B, H, Lq, Lk, Dk)


def reference_halves_by_their_maxima(function, q, k, v):
    return attend(q, k, v)


class Gathered(nn.Module):
    """Each token reads itself and those before it by an index into padded keys."""

    def __init__(self, width, n_heads, window):
        super().__init__()
        self.n_heads, self.window = n_heads, window
        self.qkv = nn.Linear(width, 3 * width, bias=False)

    def hidden(self, index):
        return index < self.window - 1

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        index = torch.arange(x.shape[1])[:, None] + torch.arange(self.window)
        k, v = (F.pad(t, (0, 0, self.window - 1, 0)) for t in (k, v))  # wrong: AS409 gathered_neighbours
        k, v = k[:, :, index], v[:, :, index]
        scores = torch.einsum("bhid,bhiwd->bhiw", q, k) / q.shape[-1] ** 0.5
        weights = scores.masked_fill(self.hidden(index), -torch.inf).softmax(dim=-1)
        return torch.einsum("bhiw,bhiwd->bihd", weights, v).flatten(2)


class GatheredWithPadding(Gathered):
    def hidden(self, index):
        return index < 0


def _gathered(cls, B, H, Dk, W):
    return cls(H * Dk, H, W), (torch.randn(B, 3 * W, H * Dk),), {}, ["causal", "window=W"]


def wrong_gathered_neighbours(B, H, Dk, W):
    return _gathered(GatheredWithPadding, B, H, Dk, W)


def right_gathered_neighbours(B, H, Dk, W):
    return _gathered(Gathered, B, H, Dk, W)


def reference_gathered_neighbours(module, x):
    at = torch.arange(x.shape[1])
    back = at[:, None] - at
    return merge(attend(*fused(x, module.qkv, module.n_heads), (back >= 0) & (back < module.window)))


class ShiftedSequence(nn.Module):
    """Windows of a rolled sequence; the last one holds both ends, which don't see each other."""

    def __init__(self, width, n_heads, window):
        super().__init__()
        self.n_heads, self.window, self.shift = n_heads, window, 1
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def ends(self, length):
        return torch.arange(length) >= length - self.shift

    def forward(self, x):
        windows = x.roll(-self.shift, 1).unflatten(1, (-1, self.window))
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(2, 3) for t in self.qkv(windows).chunk(3, dim=-1))
        part = self.ends(x.shape[1]).unflatten(0, (-1, self.window))
        keep = part[:, None, :, None] == part[:, None, None, :]
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.out(context.transpose(2, 3).flatten(1, 2).flatten(2)).roll(self.shift, 1)


class ShiftedByWindow(ShiftedSequence):
    def ends(self, length):
        return torch.arange(length) >= length - self.window


def _rolled(cls, B, H, Dk, W):
    return cls(H * Dk, H, W), (torch.randn(B, 3 * W, H * Dk),), {}


def wrong_sequence_in_sdpa(B, H, Dk, W):
    return _rolled(ShiftedByWindow, B, H, Dk, W)


def right_sequence_in_sdpa(B, H, Dk, W):
    return _rolled(ShiftedSequence, B, H, Dk, W)


def _apart(length, width, shift):
    cell = (torch.arange(length) - shift).div(width, rounding_mode="floor")
    return cell[:, None] == cell


def reference_sequence_in_sdpa(module, x):
    keep = _apart(x.shape[1], module.window, module.shift)
    return merge(attend(*fused(x, module.qkv, module.n_heads), keep), module.out)


class NumberedRegions(ShiftedSequence):
    """Regions are numbered as in Swin, and compared by their differences."""

    def __init__(self, width, n_heads, window):
        super().__init__(width, n_heads, window)
        self.shift = window // 2

    def begins(self):
        return -self.window, -self.shift

    def numbered(self, length):
        first, second = self.begins()
        regions = torch.zeros(length)
        for number, part in enumerate((slice(first), slice(first, second), slice(second, None))):
            regions[part] = number
        return regions

    def forward(self, x):
        B, L, D = x.shape
        windows = torch.roll(x, -self.shift, 1).view(B * L // self.window, self.window, D)
        q, k, v = self.qkv(windows).view(-1, self.window, 3, self.n_heads, D // self.n_heads).permute(2, 0, 3, 1, 4)
        regions = self.numbered(L).view(-1, self.window)
        mask = (regions[:, None, :] - regions[:, :, None]).ne(0) * -100.0
        scores = (q * (D // self.n_heads) ** -0.5) @ k.mT
        scores = scores.view(B, -1, self.n_heads, self.window, self.window) + mask[:, None]
        weights = scores.flatten(0, 1).softmax(dim=-1)
        out = self.out((weights @ v).transpose(1, 2).reshape(B, L, D))
        return torch.roll(out, self.shift, 1)


class NumberedByWindows(NumberedRegions):
    def begins(self):
        return -2 * self.window, -self.window


def wrong_regions_of_whole_windows(B, H, Dk, W):
    return _rolled(NumberedByWindows, B, H, Dk, W)


def right_regions_of_whole_windows(B, H, Dk, W):
    return _rolled(NumberedRegions, B, H, Dk, W)


reference_regions_of_whole_windows = reference_sequence_in_sdpa


def banded(q: Tensor, k: Tensor, v: Tensor, width: int) -> Tensor:
    """Attend in (B, L, H, Dk) to the keys less than `width` positions away."""
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    band = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 - width).tril(width - 1)
    return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(~band, -1e30).softmax(-1), v)


def banded_to_the_right(q: Tensor, k: Tensor, v: Tensor, width: int) -> Tensor:
    """Attend in (B, L, H, Dk) to the keys less than `width` positions away."""
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    band = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 - width).tril(width + 1)
    return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(~band, -1e30).softmax(-1), v)


def _banded(function, B, H, Dk, W):
    return function, (*(torch.randn(B, 3 * W, H, Dk) for _ in range(3)), W), {}, ["window=W"]


def wrong_one_side_longer(B, H, Dk, W):
    return _banded(banded_to_the_right, B, H, Dk, W)


def right_one_side_longer(B, H, Dk, W):
    return _banded(banded, B, H, Dk, W)


def reference_one_side_longer(function, q, k, v, width):
    at = torch.arange(q.shape[1])
    keep = (at[:, None] - at).abs() < width
    return attend(*(t.transpose(1, 2) for t in (q, k, v)), keep).transpose(1, 2)
