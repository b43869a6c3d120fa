"""AS308 and AS309 in other styles: memory that nothing writes, and gradients of roots, logarithms and quotients."""

import math

import torch
from torch import Tensor, nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, project, visible

SIZES = ({"B": 2, "H": 4, "L": 7, "Dk": 5}, {"B": 5, "H": 3, "L": 9, "Dk": 4}, {"B": 4, "H": 5, "L": 11, "Dk": 8})
CACHED = (
    {"B": 4, "H": 5, "L": 6, "Lp": 9, "Dk": 7},
    {"B": 5, "H": 4, "L": 3, "Lp": 7, "Dk": 6},
    {"B": 6, "H": 7, "L": 5, "Lp": 8, "Dk": 4},
)
PAIRS = [
    ("AS308", "buffer_one_too_long", *CACHED),
    ("AS308", "first_row_of_shift", *SIZES),
    ("AS308", "second_half_of_odd_width", *({"B": 2, "H": 4, "L": 8, "Dk": n} for n in (5, 7, 3))),
    ("AS309", "root_of_padding", *SIZES),
    ("AS309", "distance_to_itself", *SIZES),
    ("AS309", "entropy_of_hidden", *SIZES),
    ("AS309", "angle_to_itself", *SIZES),
    ("AS309", "mean_of_no_token", *SIZES),
]


class Appended(nn.Module):
    """Copies the cache and the new keys and values into one buffer."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads, self.qkv = n_heads, nn.Linear(width, 3 * width)

    def buffer(self, past, new):
        return past.new_empty(past.shape[0], past.shape[1], past.shape[2] + new.shape[2], past.shape[3])

    def joined(self, past, new):
        both = self.buffer(past, new)
        both[:, :, : past.shape[2]] = past
        both[:, :, past.shape[2] : past.shape[2] + new.shape[2]] = new
        return both

    def forward(self, x, past_key, past_value):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        k, v = self.joined(past_key, k), self.joined(past_value, v)
        weights = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class AppendedWithGap(Appended):
    def buffer(self, past, new):
        length = past.shape[2] + new.shape[2] + 1
        return torch.empty(*past.shape[:2], length, past.shape[3], dtype=past.dtype)  # wrong: AS308 buffer_one_too_long


def _cached(cls, B, H, L, Lp, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(B, H, Lp, Dk), torch.randn(B, H, Lp, Dk)), {}


def wrong_buffer_one_too_long(B, H, L, Lp, Dk):
    return _cached(AppendedWithGap, B, H, L, Lp, Dk)


def right_buffer_one_too_long(B, H, L, Lp, Dk):
    return _cached(Appended, B, H, L, Lp, Dk)


def reference_buffer_one_too_long(module, x, past_key, past_value):
    q, k, v = fused(x, module.qkv, module.n_heads)
    return merge(attend(q, torch.cat((past_key, k), 2), torch.cat((past_value, v), 2)))


class Shifted(nn.Module):
    """Each token's value is joined with the value of the token before, of which the first one has none."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def before(self, v):
        shifted = torch.empty_like(v)
        shifted[:, :, 0] = 0
        shifted[:, :, 1:] = v[:, :, :-1]
        return shifted

    def forward(self, x):
        q, k, v = (one(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        context = nn.functional.scaled_dot_product_attention(q, k, v + self.before(v), is_causal=True)
        return context.transpose(1, 2).flatten(2)


class ShiftedIntoNothing(Shifted):
    def before(self, v):
        shifted = torch.empty_like(v)  # wrong: AS308 first_row_of_shift
        shifted[:, :, 1:] = v[:, :, :-1]
        return shifted


def _shifted(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_first_row_of_shift(B, H, L, Dk):
    return _shifted(ShiftedIntoNothing, B, H, L, Dk)


def right_first_row_of_shift(B, H, L, Dk):
    return _shifted(Shifted, B, H, L, Dk)


def reference_first_row_of_shift(module, x):
    q, k, v = (heads(x, one, module.n_heads) for one in (module.q, module.k, module.v))
    before = torch.cat((0 * v[:, :, :1], v[:, :, :-1]), 2)
    return merge(attend(q, k, v + before, visible(x.shape[1], x.shape[1])))


def grouped_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk), one half of the features of values at a time."""
    weights = torch.einsum("bhid,bhjd->bhij", q, k).mul(q.shape[-1] ** -0.5).softmax(dim=-1)
    out, half = v.new_empty(v.shape), v.shape[-1] // 2
    out[..., :half] = weights @ v[..., :half]
    out[..., half:] = weights @ v[..., half:]
    return out


def grouped_rows_of_even_width(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk), one half of the features of values at a time."""
    weights = torch.einsum("bhid,bhjd->bhij", q, k).mul(q.shape[-1] ** -0.5).softmax(dim=-1)
    out, half = v.new_empty(v.shape), v.shape[-1] // 2  # wrong: AS308 second_half_of_odd_width
    out[..., :half] = weights @ v[..., :half]
    out[..., half : 2 * half] = weights @ v[..., half : 2 * half]
    return out


def _three(function, B, H, L, Dk):
    return function, tuple(torch.randn(B, H, L, Dk) for _ in range(3)), {}


def wrong_second_half_of_odd_width(B, H, L, Dk):
    return _three(grouped_rows_of_even_width, B, H, L, Dk)


def right_second_half_of_odd_width(B, H, L, Dk):
    return _three(grouped_rows, B, H, L, Dk)


def reference_second_half_of_odd_width(function, q, k, v):
    return attend(q, k, v)


class Cosine(nn.Module):
    """Cosine attention, where padded tokens are zeros and stay so."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)

    def unit(self, t):
        return t / (t.square().sum(dim=-1, keepdim=True) + 1e-8).sqrt()

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        weights = torch.softmax(10 * self.unit(q) @ self.unit(k).mT, dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class CosineOfRoots(Cosine):
    def unit(self, t):
        norm = t.square().sum(dim=-1, keepdim=True).sqrt()  # wrong: AS309 root_of_padding
        return torch.where(norm > 0, t / norm.clamp(min=1e-4), torch.zeros_like(t))


def _zeros(cls, B, H, L, Dk):
    x = torch.randn(B, L, H * Dk)
    x[1, -2:] = 0
    return cls(H * Dk, H), (x,), {}


def wrong_root_of_padding(B, H, L, Dk):
    return _zeros(CosineOfRoots, B, H, L, Dk)


def right_root_of_padding(B, H, L, Dk):
    return _zeros(Cosine, B, H, L, Dk)


def reference_root_of_padding(module, x):
    q, k, v = fused(x, module.qkv, module.n_heads)
    q, k = (t / ((t * t).sum(-1, keepdim=True) + 1e-8) ** 0.5 for t in (q, k))
    return merge(attend(q, k, v, scale=10))


class Distances(nn.Module):
    """Weights fall with the distance between vectors, of which queries and keys share one."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.to_qk, self.to_v = nn.Linear(width, width), nn.Linear(width, width)

    def distance(self, squares):
        return (squares + 1e-6).sqrt()

    def forward(self, x):
        t, v = (one(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for one in (self.to_qk, self.to_v))
        squares = (t.unsqueeze(3) - t.unsqueeze(2)).square().sum(dim=-1)
        weights = torch.softmax(-self.distance(squares), dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class DistancesOfRoots(Distances):
    def distance(self, squares):
        return squares.sqrt()  # wrong: AS309 distance_to_itself


def _plain(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_distance_to_itself(B, H, L, Dk):
    return _plain(DistancesOfRoots, B, H, L, Dk)


def right_distance_to_itself(B, H, L, Dk):
    return _plain(Distances, B, H, L, Dk)


def reference_distance_to_itself(module, x):
    t, v = heads(x, module.to_qk, module.n_heads), heads(x, module.to_v, module.n_heads)
    squares = ((t[:, :, :, None] - t[:, :, None]) ** 2).sum(-1)
    weights = torch.exp(-((squares + 1e-6) ** 0.5))
    return merge(torch.einsum("bhij,bhjd->bhid", weights / weights.sum(-1, keepdim=True), v))


class Entropies(nn.Module):
    """Causal attention in which a context counts more, the more keys it comes from."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(width, 3 * width)

    def entropy(self, weights):
        return -(weights * weights.clamp(min=1e-12).log()).sum(dim=-1)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        context = (weights @ v) * self.entropy(weights).unsqueeze(-1)
        return context.transpose(1, 2).flatten(2)


class EntropiesOfLogarithms(Entropies):
    def entropy(self, weights):
        logarithms = weights.log()  # wrong: AS309 entropy_of_hidden
        return -torch.where(weights > 0, weights * logarithms, 0.0).sum(dim=-1)


def _entropies(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_entropy_of_hidden(B, H, L, Dk):
    return _entropies(EntropiesOfLogarithms, B, H, L, Dk)


def right_entropy_of_hidden(B, H, L, Dk):
    return _entropies(Entropies, B, H, L, Dk)


def reference_entropy_of_hidden(module, x):
    q, k, v = fused(x, module.qkv, module.n_heads)
    keep = visible(x.shape[1], x.shape[1])
    weights = torch.exp(torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5) * keep
    weights = weights / weights.sum(-1, keepdim=True)
    entropy = -(weights * torch.where(keep, weights, 1).log()).sum(-1, keepdim=True)
    return merge(torch.einsum("bhij,bhjd->bhid", weights, v) * entropy)


class Angles(nn.Module):
    """Weights fall with the angle between vectors, of which queries and keys share one."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.both, self.value = nn.Linear(width, width), nn.Linear(width, width)

    def angle(self, cosine):
        return torch.acos(cosine.clamp(-0.999, 0.999))

    def forward(self, x):
        t, v = (one(x).unflatten(-1, (self.n_heads, -1)) for one in (self.both, self.value))
        t = nn.functional.normalize(t, dim=-1)
        cosine = torch.einsum("bihd,bjhd->bhij", t, t)
        weights = torch.softmax(-self.angle(cosine), dim=-1)
        return torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)


class AnglesWithoutMargin(Angles):
    def angle(self, cosine):
        return torch.acos(cosine.clamp(-1, 1))  # wrong: AS309 angle_to_itself


def wrong_angle_to_itself(B, H, L, Dk):
    return _plain(AnglesWithoutMargin, B, H, L, Dk)


def right_angle_to_itself(B, H, L, Dk):
    return _plain(Angles, B, H, L, Dk)


def reference_angle_to_itself(module, x):
    t, v = heads(x, module.both, module.n_heads), heads(x, module.value, module.n_heads)
    t = t / (t * t).sum(-1, keepdim=True) ** 0.5
    weights = torch.exp(-torch.acos(torch.einsum("bhid,bhjd->bhij", t, t).clamp(-0.999, 0.999)))
    return merge(torch.einsum("bhij,bhjd->bhid", weights / weights.sum(-1, keepdim=True), v))


class Pooled(nn.Module):
    """Queries are means of the tokens of their segment; segments without tokens give zeros."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))

    def mean(self, total, count):
        return total / count.clamp(min=1)

    def forward(self, x, segments):
        member = (segments[:, None, :] == torch.arange(3)[:, None]).to(x.dtype)
        pooled = self.mean(member @ x, member.sum(dim=-1, keepdim=True))
        q, k, v = (
            one(t).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for one, t in ((self.q, pooled), (self.k, x), (self.v, x))
        )
        weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class PooledReplacingNan(Pooled):
    def mean(self, total, count):
        mean = total / count  # wrong: AS309 mean_of_no_token
        return torch.where(count > 0, mean, torch.zeros_like(mean))


def _segments(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.arange(B * L).view(B, L) % 2), {}


def wrong_mean_of_no_token(B, H, L, Dk):
    return _segments(PooledReplacingNan, B, H, L, Dk)


def right_mean_of_no_token(B, H, L, Dk):
    return _segments(Pooled, B, H, L, Dk)


def reference_mean_of_no_token(module, x, segments):
    means = []
    for one, of in zip(x, segments, strict=True):
        parts = [one[of == segment] for segment in range(3)]
        means.append(torch.stack([part.mean(0) if len(part) else torch.zeros_like(one[0]) for part in parts]))
    q, k, v = (
        torch.stack(project(t, one).chunk(module.n_heads, -1), 1)
        for one, t in ((module.q, torch.stack(means)), (module.k, x), (module.v, x))
    )
    return merge(attend(q, k, v))
