"""Queries and keys that are rotated in other features, or by other angles, without a claim."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, turned, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 8}, {"B": 5, "H": 4, "L": 9, "Dk": 12}, {"B": 6, "H": 3, "L": 5, "Dk": 16})
PAIRS = [
    ("AS704", "key_parts_exchanged", *SELF),
    ("AS704", "written_to_other_features", *SELF),
    ("AS704", "turned_at_the_end", *SELF),
    ("AS703", "opposite_directions", *SELF),
    ("AS703", "bases_that_differ", *SELF),
    ("AS703", "reversed_frequencies", *SELF),
]


def table(length, width, base=10000.0):
    """L width/2: the angles of each position."""
    frequencies = base ** -(torch.arange(0, width, 2).double() / width)
    return torch.outer(torch.arange(length).double(), frequencies)


def spin(x, angles, sign=1):
    """Rotates halves of the features."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos().to(x), sign * angles.sin().to(x)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class RightPartial(nn.Module):
    """Rotates half of the features of each head."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def with_positions(self, q, k):
        part = q.shape[-1] // 4 * 2
        angles = table(q.shape[-2], part)
        (q_turned, q_rest), (k_turned, k_rest) = ((x[..., :part], x[..., part:]) for x in (q, k))
        q_turned, k_turned = spin(q_turned, angles), spin(k_turned, angles)
        query = torch.cat((q_turned, q_rest), dim=-1)
        key = torch.cat((k_turned, k_rest), dim=-1)
        return query, key

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = self.with_positions(q, k)
        context = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(context.transpose(1, 2).flatten(2))


class WrongPartial(RightPartial):
    def with_positions(self, q, k):
        part = q.shape[-1] // 4 * 2
        angles = table(q.shape[-2], part)
        (q_turned, q_rest), (k_turned, k_rest) = ((x[..., :part], x[..., part:]) for x in (q, k))
        q_turned, k_turned = spin(q_turned, angles), spin(k_turned, angles)
        query = torch.cat((q_turned, q_rest), dim=-1)
        key = torch.cat((k_rest, k_turned), dim=-1)  # wrong: AS704 key_parts_exchanged
        return query, key


def _key_parts_exchanged(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_key_parts_exchanged(B, H, L, Dk):
    return _key_parts_exchanged(WrongPartial, B, H, L, Dk)


def right_key_parts_exchanged(B, H, L, Dk):
    return _key_parts_exchanged(RightPartial, B, H, L, Dk)


def _partly(x):
    part = x.shape[-1] // 4 * 2
    return torch.cat((turned(x[..., :part], torch.arange(x.shape[-2])), x[..., part:]), -1)


def reference_key_parts_exchanged(module, x):
    q, k, v = fused(x, module.qkv, module.n_heads)
    return merge(attend(_partly(q), _partly(k), v, visible(x.shape[1], x.shape[1])), module.out)


class RightWritten(nn.Module):
    """Writes the rotated features over the others in place."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv = (nn.Linear(width, width, bias=False) for _ in range(3))

    def turn(self, q, k, part):
        angles = table(q.size(2), part)
        q, k = q.clone(), k.clone()
        q[..., :part] = spin(q[..., :part], angles)
        k[..., :part] = spin(k[..., :part], angles)
        return q, k

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = self.turn(q, k, q.size(-1) // 4 * 2)
        weights = (q @ k.transpose(-2, -1) / q.size(-1) ** 0.5).softmax(dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class WrongWritten(RightWritten):
    def turn(self, q, k, part):
        angles = table(q.size(2), part)
        q, k = q.clone(), k.clone()
        q[..., :part] = spin(q[..., :part], angles)
        k[..., -part:] = spin(k[..., -part:], angles)  # wrong: AS704 written_to_other_features
        return q, k


def _written_to_other_features(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_written_to_other_features(B, H, L, Dk):
    return _written_to_other_features(WrongWritten, B, H, L, Dk)


def right_written_to_other_features(B, H, L, Dk):
    return _written_to_other_features(RightWritten, B, H, L, Dk)


def reference_written_to_other_features(module, x):
    q, k, v = (heads(x, one, module.n_heads) for one in (module.wq, module.wk, module.wv))
    return merge(attend(_partly(q), _partly(k), v))


def padded(angles, before, after):
    """Angles of 0 leave features as they are."""
    return F.pad(angles, (before, after))


def attend_turned(x, weight, n_heads):
    """A table of angles for all pairs of features, of which half are 0."""
    q, k, v = torch.einsum("bli,chdi->cbhld", x, weight.unflatten(0, (3, n_heads, -1)))
    width = q.shape[-1]
    angles = table(x.shape[1], width // 4 * 2)
    for_queries = padded(angles, 0, width // 2 - width // 4)
    for_keys = padded(angles, 0, width // 2 - width // 4)
    return joined(q, k, v, for_queries, for_keys)


def attend_turned_at_the_end(x, weight, n_heads):
    """A table of angles for all pairs of features, of which half are 0."""
    q, k, v = torch.einsum("bli,chdi->cbhld", x, weight.unflatten(0, (3, n_heads, -1)))
    width = q.shape[-1]
    angles = table(x.shape[1], width // 4 * 2)
    for_queries = padded(angles, 0, width // 2 - width // 4)
    for_keys = padded(angles, width // 2 - width // 4, 0)
    return joined(q, k, v, for_queries, for_keys)


def joined(q, k, v, for_queries, for_keys):
    def turn(x, angles):
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles).to(pairs.dtype)).flatten(-2)

    query = turn(q, for_queries)
    key = turn(k, for_keys)  # wrong: AS704 turned_at_the_end
    scores = torch.einsum("bhid,bhjd->bhij", query, key) * q.shape[-1] ** -0.5
    return torch.einsum("bhij,bhjd->bihd", scores.softmax(-1), v).flatten(2)


def _turned_at_the_end(function, B, H, L, Dk):
    return function, (torch.randn(B, L, H * Dk), torch.randn(3 * H * Dk, H * Dk) / (H * Dk) ** 0.5, H), {}


def wrong_turned_at_the_end(B, H, L, Dk):
    return _turned_at_the_end(attend_turned_at_the_end, B, H, L, Dk)


def right_turned_at_the_end(B, H, L, Dk):
    return _turned_at_the_end(attend_turned, B, H, L, Dk)


def reference_turned_at_the_end(_, x, weight, n_heads):
    q, k, v = torch.einsum("bli,chdi->cbhld", x, weight.unflatten(0, (3, n_heads, -1)))
    part = q.shape[-1] // 4 * 2

    def partly(one):
        return torch.cat((turned(one[..., :part], torch.arange(x.shape[1]), "interleaved"), one[..., part:]), -1)

    return merge(attend(partly(q), partly(k), v))


class RightTurned(nn.Module):
    """Rotates all features of queries and keys by their positions."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.in_proj, self.out_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def turn(self, q, k):
        angles = table(q.shape[-2], q.shape[-1])
        q = spin(q, angles)
        k = spin(k, angles)
        return q, k

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.in_proj(x).chunk(3, dim=-1))
        q, k = self.turn(q, k)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
        return self.out_proj(torch.einsum("bhij,bhjd->bihd", scores.softmax(dim=-1), v).flatten(2))


class WrongSign(RightTurned):
    def turn(self, q, k):
        angles = table(q.shape[-2], q.shape[-1])
        q = spin(q, angles)
        k = spin(k, angles, sign=-1)  # wrong: AS703 opposite_directions
        return q, k


class WrongBase(RightTurned):
    def turn(self, q, k):
        q = spin(q, table(q.shape[-2], q.shape[-1]))
        k = spin(k, table(k.shape[-2], k.shape[-1], base=100.0))  # wrong: AS703 bases_that_differ
        return q, k


class WrongFrequencies(RightTurned):
    def turn(self, q, k):
        angles = table(q.shape[-2], q.shape[-1])
        q = spin(q, angles)
        k = spin(k, angles.flip(-1))  # wrong: AS703 reversed_frequencies
        return q, k


def _turned(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_opposite_directions(B, H, L, Dk):
    return _turned(WrongSign, B, H, L, Dk)


def wrong_bases_that_differ(B, H, L, Dk):
    return _turned(WrongBase, B, H, L, Dk)


def wrong_reversed_frequencies(B, H, L, Dk):
    return _turned(WrongFrequencies, B, H, L, Dk)


def right_opposite_directions(B, H, L, Dk):
    return _turned(RightTurned, B, H, L, Dk)


right_bases_that_differ = right_reversed_frequencies = right_opposite_directions


def reference_opposite_directions(module, x):
    q, k, v = fused(x, module.in_proj, module.n_heads)
    place = torch.arange(x.shape[1])
    return merge(attend(turned(q, place), turned(k, place), v), module.out_proj)


reference_bases_that_differ = reference_reversed_frequencies = reference_opposite_directions
