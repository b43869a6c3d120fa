"""Positional information: biases, rotations and learned positions."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, causal, join, multihead, softmax, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 10}, {"B": 5, "H": 2, "L": 9, "Dk": 6})
PAST = ({"B": 2, "H": 4, "Lp": 6, "L": 3, "Dk": 10}, {"B": 5, "H": 2, "Lp": 4, "L": 8, "Dk": 6})
GRIDS = ({"B": 7, "H": 6, "Dk": 5, "W": 4, "Nh": 2, "Nw": 3}, {"B": 5, "H": 8, "Dk": 7, "W": 3, "Nh": 2, "Nw": 4})
HEADS = ({"B": 2, "H": 6, "L": 5, "Dk": 10}, {"B": 3, "H": 5, "L": 9, "Dk": 8})
DRAFTS = (
    {"B": 2, "H": 4, "L": 3, "Lq": 5, "Lp": 6, "Dk": 10},
    {"B": 5, "H": 2, "L": 4, "Lq": 7, "Lp": 8, "Dk": 6},
)
UNUSUAL = [
    ("bucketed_bias", *SIZES),
    ("relative_shift", *SIZES),
    ("waves_of_absolute_distances", *SIZES),
    ("rolled_and_rolled_back", *SIZES),
    ("linear_biases", *SIZES),
    ("rotated_halves", *SIZES),
    ("rotated_pairs", *SIZES),
    ("partly_rotated", *SIZES),
    ("rotated_with_cache", *PAST),
    ("draft_rejected", *DRAFTS),
    ("learned_positions", *SIZES),
    ("rotated_and_scaled", *SIZES),
    ("hotter_with_position", *SIZES),
    ("rotated_in_a_grid", *SIZES),
    ("gated_by_position", *SIZES),
    ("any_tables", *SIZES),
    ("some_heads_biased", *SIZES),
    ("only_earlier_penalised", *SIZES),
    ("relative_in_a_grid", *SIZES),
    ("absolute_scores", *SIZES),
    ("slopes_made_up_for", *SIZES),
    ("table_of_fixed_length", *SIZES),
    ("query_beside_rotated_memory", *SIZES),
    ("as_many_windows_as_heads", *GRIDS),
    ("norms_of_their_own", *SIZES),
    ("flatter_slopes", *HEADS),
    ("learned_slopes", *SIZES),
    ("as_many_rows_as_heads", *SIZES),
]


class Base(nn.Module):
    """Takes `logits` and `place` from the variant."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads, self.depth = heads, depth
        self.qkv = nn.Linear(heads * depth, 3 * heads * depth)
        self.proj = nn.Linear(heads * depth, heads * depth)

    def place(self, q, k):
        return q, k

    def logits(self, q, k):
        return q @ k.mT * self.depth**-0.5

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, self.depth)).permute(2, 0, 3, 1, 4)
        weights = self.logits(*self.place(q, k)).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


def _case(module, B, H, L, Dk, claims=()):
    return module(H, Dk), (torch.randn(B, L, H * Dk),), {}, list(claims)


def parts(module, x):
    return (split(t, module.heads) for t in module.qkv(x).chunk(3, dim=-1))


class BucketedBias(Base):
    """A bias per head and bucket: near distances have one bucket each, far ones share logarithmic ones. No scale."""

    def __init__(self, heads, depth):
        super().__init__(heads, depth)
        self.table = nn.Embedding(8, heads)

    def bucket(self, distance):
        later, distance = (distance > 0).long() * 4, distance.abs()
        far = 2 + (torch.log(distance.clamp(min=1) / 2) / math.log(4) * 2).long()
        return later + torch.where(distance < 2, distance, far.clamp(max=3))

    def logits(self, q, k):
        distance = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
        return q @ k.mT + self.table(self.bucket(distance)).permute(2, 0, 1)


def case_bucketed_bias(B, H, L, Dk):
    return _case(BucketedBias, B, H, L, Dk, ["scale=1"])


def reference_bucketed_bias(module, x):
    n = x.shape[1]
    rows = [[module.table(module.bucket(torch.tensor(j - i))) for j in range(n)] for i in range(n)]
    bias = torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)
    return module.proj(multihead(*module.qkv(x).chunk(3, dim=-1), module.heads, scale=1.0, bias=bias))


class RelativeShift(Base):
    """Queries meet encoded distances; rows are shifted by padding and viewing. Causal."""

    def __init__(self, heads, depth):
        super().__init__(heads, depth)
        self.r = nn.Linear(heads * depth, heads * depth, bias=False)
        self.u, self.w = nn.Parameter(torch.randn(heads, 1, depth)), nn.Parameter(torch.randn(heads, 1, depth))

    def distances(self, n, like):
        rates = 10000 ** -(torch.arange(0, self.heads * self.depth, 2).to(like) / (self.heads * self.depth))
        angles = torch.arange(n - 1, -1, -1).to(like)[:, None] * rates
        waves = torch.cat((angles.sin(), angles.cos()), dim=-1)[:, : self.heads * self.depth]
        return self.r(waves).view(n, self.heads, self.depth).transpose(0, 1)

    def shift(self, x):
        b, h, n, m = x.shape
        return F.pad(x, (1, 0)).view(b, h, m + 1, n)[:, :, 1:].reshape(b, h, n, m)

    def logits(self, q, k):
        n = q.shape[2]
        by_distance = self.shift((q + self.w) @ self.distances(n, q).mT)
        scores = ((q + self.u) @ k.mT + by_distance) * self.depth**-0.5
        return scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)


def case_relative_shift(B, H, L, Dk):
    return _case(RelativeShift, B, H, L, Dk, ["causal"])


def reference_relative_shift(module, x):
    n = x.shape[1]
    q, k, v = parts(module, x)
    far = module.distances(n, x)
    scores = torch.einsum("bhid,bhjd->bhij", q + module.u, k)
    for i in range(n):
        for j in range(i + 1):
            scores[:, :, i, j] += ((q + module.w)[:, :, i] * far[:, n - 1 - (i - j)]).sum(-1)
    weights = softmax(torch.where(causal(n, n), scores / math.sqrt(module.depth), -torch.inf))
    return module.proj(join(torch.einsum("bhij,bhjd->bhid", weights, v)))


class AbsoluteDistances(Base):
    """Sines of how far a key is, on whichever side, by a product with one vector for each of 2L - 1 distances."""

    def logits(self, q, k):
        n = q.shape[2]
        far = torch.arange(1 - n, n).to(q).abs()[:, None] / torch.arange(1, self.depth + 1).to(q)
        by_distance = F.pad(q @ far.sin().mT, (1, 0)).view(*q.shape[:2], 2 * n, n)[:, :, 1:]
        return (q @ k.mT + by_distance.reshape(*q.shape[:2], n, 2 * n - 1)[..., :n]) * self.depth**-0.5


def case_waves_of_absolute_distances(B, H, L, Dk):
    return _case(AbsoluteDistances, B, H, L, Dk, [])


def reference_waves_of_absolute_distances(module, x):
    n = x.shape[1]
    q, k, v = parts(module, x)
    far = torch.tensor([[abs(i - j) for j in range(n)] for i in range(n)]).to(x)
    waves = torch.sin(far[..., None] / torch.arange(1, module.depth + 1))
    scores = torch.einsum("bhid,bhjd->bhij", q, k) + torch.einsum("bhid,ijd->bhij", q, waves)
    return module.proj(join(softmax(scores / math.sqrt(module.depth)) @ v))


class RolledAndRolledBack(RelativeShift):
    """The queries of the product with distances are one row up, and its rows are rolled down again."""

    def logits(self, q, k):
        n = q.shape[2]
        above = (q + self.w).roll(-1, dims=2) @ self.distances(n, q).mT
        index = (n - 1 - torch.arange(n)[:, None] + torch.arange(n)).clamp(max=n - 1)
        by_distance = above.roll(1, dims=2).gather(-1, index.expand_as(above))
        scores = ((q + self.u) @ k.mT + by_distance) * self.depth**-0.5
        return scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)


def case_rolled_and_rolled_back(B, H, L, Dk):
    return _case(RolledAndRolledBack, B, H, L, Dk, ["causal"])


reference_rolled_and_rolled_back = reference_relative_shift


class LinearBiases(Base):
    """Scores decrease with distance, with one slope per head; causal."""

    def slopes(self, like):
        return torch.exp2(-8 * torch.arange(1, self.heads + 1).to(like) / self.heads)

    def logits(self, q, k):
        n = k.shape[2]
        behind = torch.arange(n) - torch.arange(n)[:, None]
        scores = q @ k.mT / math.sqrt(self.depth) + self.slopes(q)[:, None, None] * behind
        return scores.masked_fill(behind > 0, -torch.inf)


def case_linear_biases(B, H, L, Dk):
    return _case(LinearBiases, B, H, L, Dk, ["causal", "alibi"])


def reference_linear_biases(module, x):
    n = x.shape[1]
    distances = torch.tensor([[float(j - i) for j in range(n)] for i in range(n)], dtype=x.dtype)
    bias = torch.stack([2 ** (-8 * (h + 1) / module.heads) * distances for h in range(module.heads)])
    q, k, v = module.qkv(x).chunk(3, dim=-1)
    return module.proj(multihead(q, k, v, module.heads, bias=bias, keep=causal(n, n)))


def angles(positions, depth, like):
    rates = 10000 ** -(torch.arange(0, depth, 2).to(like) / depth)
    return positions.to(like)[:, None] * rates


class RotatedHalves(Base):
    """The first half of a head is rotated with the second. An odd width leaves its last number."""

    def rotate(self, x, positions):
        even = x.shape[-1] // 2 * 2
        x, rest = x[..., :even], x[..., even:]
        turn = torch.cat([angles(positions, even, x)] * 2, dim=-1)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((x * turn.cos() + torch.cat((-second, first), dim=-1) * turn.sin(), rest), dim=-1)

    def place(self, q, k):
        positions = torch.arange(q.shape[-2])
        return self.rotate(q, positions), self.rotate(k, positions)


class DraftRejected(RotatedHalves):
    """All tokens of a draft but the first two are dropped from the cache, and others follow at their positions."""

    def __init__(self, width, heads, depth):
        super().__init__(heads, depth)
        self.qkv = nn.Linear(width, 3 * heads * depth, bias=False)

    def step(self, x, keys, values):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, self.depth)).permute(2, 0, 3, 1, 4)
        seen, count = keys.shape[2], x.shape[1]
        positions = torch.arange(seen, seen + count)
        keys, values = torch.cat((keys, self.rotate(k, positions)), 2), torch.cat((values, v), 2)
        keep = torch.ones(count, seen + count, dtype=torch.bool).tril(seen)
        context = F.scaled_dot_product_attention(self.rotate(q, positions), keys, values, attn_mask=keep)
        return self.proj(context.transpose(1, 2).flatten(2)), keys, values

    def forward(self, prompt, draft, following):
        none = prompt.new_zeros(prompt.shape[0], self.heads, 0, self.depth)
        first, keys, values = self.step(prompt, none, none)
        second, keys, values = self.step(draft, keys, values)
        rejected = draft.shape[1] - 2
        third, _, _ = self.step(following, keys[:, :, :-rejected], values[:, :, :-rejected])
        return torch.cat((first, second[:, :2], third), dim=1)


def case_draft_rejected(B, H, L, Lq, Lp, Dk):
    width = Dk - 1
    inputs = (torch.randn(B, Lp, width), torch.randn(B, Lq, width), torch.randn(B, L, width))
    return DraftRejected(width, H, Dk), inputs, {}, ["rope=half"]


def reference_draft_rejected(module, prompt, draft, following):
    x = torch.cat((prompt, draft[:, :2], following), dim=1)
    q, k, v = (split(t, module.heads) for t in module.qkv(x).chunk(3, dim=-1))
    depth, count = module.depth, x.shape[1]
    q, k = (turned(t, halves(depth), depth) for t in (q, k))
    return module.proj(join(attention(q, k, v, keep=causal(count, count))))


class RotatedPairs(RotatedHalves):
    """Neighbouring numbers are rotated as one complex number."""

    def rotate(self, x, positions):
        even = x.shape[-1] // 2 * 2
        pairs = torch.view_as_complex(x[..., :even].unflatten(-1, (-1, 2)).contiguous())
        turn = angles(positions, even, x)
        turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(turn), turn)).flatten(-2)
        return torch.cat((turned, x[..., even:]), dim=-1)


class PartlyRotated(RotatedHalves):
    """Only a part of each head is rotated."""

    def rotate(self, x, positions):
        part = x.shape[-1] // 4 * 2
        return torch.cat((super().rotate(x[..., :part], positions), x[..., part:]), dim=-1)


def case_rotated_halves(B, H, L, Dk):
    return _case(RotatedHalves, B, H, L, Dk, ["rope=half"])


def case_rotated_pairs(B, H, L, Dk):
    return _case(RotatedPairs, B, H, L, Dk, ["rope=interleaved"])


def case_partly_rotated(B, H, L, Dk):
    return _case(PartlyRotated, B, H, L, Dk)


def turned(x, pairs, depth, start=0):
    """Rotate the number pairs (i, j) of (B, H, L, Dk), one by one."""
    out = x.clone()
    for place in range(x.shape[2]):
        for index, (i, j) in enumerate(pairs):
            angle = (start + place) * 10000 ** (-2 * index / depth)
            a, b = x[:, :, place, i], x[:, :, place, j]
            out[:, :, place, i] = a * math.cos(angle) - b * math.sin(angle)
            out[:, :, place, j] = b * math.cos(angle) + a * math.sin(angle)
    return out


def halves(depth):
    return [(i, i + depth // 2) for i in range(depth // 2)]


def reference_rotated_halves(module, x):
    q, k, v = parts(module, x)
    even = module.depth // 2 * 2
    return module.proj(join(attention(*(turned(t, halves(even), even) for t in (q, k)), v)))


def reference_rotated_pairs(module, x):
    q, k, v = parts(module, x)
    even = module.depth // 2 * 2
    pairs = [(i, i + 1) for i in range(0, even, 2)]
    return module.proj(join(attention(*(turned(t, pairs, even) for t in (q, k)), v)))


def reference_partly_rotated(module, x):
    q, k, v = parts(module, x)
    part = module.depth // 4 * 2
    return module.proj(join(attention(*(turned(t, halves(part), part) for t in (q, k)), v)))


class RotatedWithCache(RotatedHalves):
    """The cache holds rotated keys; new keys are rotated by their positions."""

    def forward(self, x, past_key, past_value):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, self.depth)).permute(2, 0, 3, 1, 4)
        old, new = past_key.shape[2], q.shape[2]
        positions = torch.arange(old, old + new)
        q, k = self.rotate(q, positions), torch.cat((past_key, self.rotate(k, positions)), dim=2)
        hidden = torch.ones(new, old + new, dtype=torch.bool).triu(old + 1)
        weights = self.logits(q, k).masked_fill(hidden, -torch.inf).softmax(dim=-1)
        return self.proj((weights @ torch.cat((past_value, v), dim=2)).transpose(1, 2).flatten(2)), k


def case_rotated_with_cache(B, H, Lp, L, Dk):
    inputs = torch.randn(B, L, H * Dk), *torch.randn(2, B, H, Lp, Dk)
    return RotatedWithCache(H, Dk), inputs, {}, ["causal", "rope=half"]


def reference_rotated_with_cache(module, x, past_key, past_value):
    q, k, v = parts(module, x)
    old, even = past_key.shape[2], module.depth // 2 * 2
    q, k = (turned(t, halves(even), even, start=old) for t in (q, k))
    k, v = torch.cat((past_key, k), dim=2), torch.cat((past_value, v), dim=2)
    return module.proj(join(attention(q, k, v, keep=causal(q.shape[2], k.shape[2]))))


class LearnedPositions(Base):
    """A learned vector per position is added to queries and keys, but not to values."""

    def __init__(self, heads, depth, length):
        super().__init__(heads, depth)
        self.position = nn.Parameter(torch.randn(heads, length, depth))

    def place(self, q, k):
        return q + self.position, k + self.position


def case_learned_positions(B, H, L, Dk):
    return LearnedPositions(H, Dk, L), (torch.randn(B, L, H * Dk),), {}


def reference_learned_positions(module, x):
    q, k, v = parts(module, x)
    return module.proj(join(attention(q + module.position, k + module.position, v)))


class RotatedAndScaled(RotatedHalves):
    """Rotated queries grow and keys shrink with their position, each pair of features by its own factor. Causal."""

    def place(self, q, k):
        positions = torch.arange(q.shape[-2])
        even = q.shape[-1] // 2 * 2
        rates = (torch.arange(0, even, 2).to(q) / even + 0.4) / 1.4
        rest = q.new_ones(len(positions), q.shape[-1] - even)
        factors = torch.cat([rates ** (positions.to(q)[:, None] / 4)] * 2 + [rest], dim=-1)
        return self.rotate(q, positions) * factors, self.rotate(k, positions) / factors

    def logits(self, q, k):
        return super().logits(q, k).masked_fill(torch.ones(q.shape[2], k.shape[2]).triu(1) > 0, -torch.inf)


def case_rotated_and_scaled(B, H, L, Dk):
    return _case(RotatedAndScaled, B, H, L, Dk)


class HotterWithPosition(RotatedHalves):
    """Rotated queries are multiplied by a factor that grows with the logarithm of their position."""

    def place(self, q, k):
        q, k = super().place(q, k)
        return q * (1 + torch.arange(q.shape[-2]).to(q).log1p())[:, None], k


def case_hotter_with_position(B, H, L, Dk):
    return _case(HotterWithPosition, B, H, L, Dk)


class RotatedInAGrid(RotatedHalves):
    """Half of the features are rotated by the row of a grid, half by its column."""

    def place(self, q, k):
        positions = torch.arange(q.shape[-2])
        q, k = (
            torch.cat(
                [self.rotate(*pair) for pair in zip(x.chunk(2, -1), (positions // 3, positions % 3), strict=True)], -1
            )
            for x in (q, k)
        )
        return q, k


def case_rotated_in_a_grid(B, H, L, Dk):
    return _case(RotatedInAGrid, B, H, L, Dk)


class GatedByPosition(Base):
    """Every position multiplies the features of its query and of its key by numbers of its own."""

    def __init__(self, heads, depth, length):
        super().__init__(heads, depth)
        self.gate = nn.Parameter(torch.randn(length, depth))

    def place(self, q, k):
        return q * self.gate, k * self.gate


def case_gated_by_position(B, H, L, Dk):
    return GatedByPosition(H, Dk, L), (torch.randn(B, L, H * Dk),), {}


def case_any_tables(B, H, L, Dk):
    """The caller gives the tables, and these are no cosines and sines."""

    def turn(x, cos, sin):
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    def attend(q, k, v, cos, sin):
        return F.scaled_dot_product_attention(turn(q, cos, sin), turn(k, cos, sin), v)

    return attend, (*torch.randn(3, B, H, L, Dk), *torch.randn(2, L, Dk)), {}


class SomeHeadsBiased(Base):
    """Scores of every second head fall with the distance; the other heads have no bias."""

    def logits(self, q, k):
        slopes = torch.arange(self.heads) % 2 / (torch.arange(self.heads) + 1)
        distance = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
        return super().logits(q, k) - slopes.to(q)[:, None, None] * distance.abs()


def case_some_heads_biased(B, H, L, Dk):
    return _case(SomeHeadsBiased, B, H, L, Dk)


class OnlyEarlierPenalised(Base):
    """Scores of earlier keys fall with their distance; those of later ones are what they are. It is a notice."""

    def logits(self, q, k):
        behind = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
        return super().logits(q, k) - 0.25 * behind.clamp(min=0)


def case_only_earlier_penalised(B, H, L, Dk):
    return _case(OnlyEarlierPenalised, B, H, L, Dk)


class RelativeInAGrid(Base):
    """Queries meet a vector for each offset in a grid of three columns, and pick those of their keys."""

    def __init__(self, heads, depth, length):
        super().__init__(heads, depth)
        self.rows = (length + 2) // 3
        self.vectors = nn.Parameter(torch.randn((2 * self.rows - 1) * 5, depth))

    def logits(self, q, k):
        place = torch.arange(q.shape[2])
        down, right = (t[None] - t[:, None] for t in (place // 3, place % 3))
        index = (down + self.rows - 1) * 5 + right + 2
        places = (q @ self.vectors.T).gather(-1, index.expand(*q.shape[:3], -1))
        return (q @ k.mT + places) * self.depth**-0.5


def case_relative_in_a_grid(B, H, L, Dk):
    return RelativeInAGrid(H, Dk, L), (torch.randn(B, L, H * Dk),), {}


def reference_relative_in_a_grid(module, x):
    q, k, v = parts(module, x)
    scores = torch.einsum("bhid,bhjd->bhij", q, k)
    for i in range(x.shape[1]):
        for j in range(x.shape[1]):
            row = (j // 3 - i // 3 + module.rows - 1) * 5 + j % 3 - i % 3 + 2
            scores[:, :, i, j] += (q[:, :, i] * module.vectors[row]).sum(-1)
    weights = softmax(scores / math.sqrt(module.depth))
    return module.proj(join(torch.einsum("bhij,bhjd->bhid", weights, v)))


class AbsoluteScores(Base):
    """Queries meet a vector for each position of a key, cut from a longer table."""

    def __init__(self, heads, depth, length):
        super().__init__(heads, depth)
        self.register_buffer("vectors", torch.randn(length + 8, depth))

    def logits(self, q, k):
        return (q @ k.mT + (q @ self.vectors.type_as(q).T)[..., : k.shape[2]]) * self.depth**-0.5


def case_absolute_scores(B, H, L, Dk):
    return AbsoluteScores(H, Dk, L), (torch.randn(B, L, H * Dk),), {}


def reference_absolute_scores(module, x):
    q, k, v = parts(module, x)
    return module.proj(join(attention(q, k + module.vectors[: x.shape[1]], v)))


class SlopesMadeUpFor(Base):
    """Linear biases are multiplied by what the scores are divided by afterwards."""

    def logits(self, q, k):
        n, scale = k.shape[2], math.sqrt(self.depth)
        slopes = 2.0 ** (-8 * torch.arange(1, self.heads + 1).to(q) / self.heads) * scale
        behind = torch.arange(n) - torch.arange(n)[:, None]
        return ((q @ k.mT + slopes[:, None, None] * behind) / scale).masked_fill(behind > 0, -torch.inf)


def case_slopes_made_up_for(B, H, L, Dk):
    return _case(SlopesMadeUpFor, B, H, L, Dk, ["causal", "alibi"])


def reference_slopes_made_up_for(module, x):
    return reference_linear_biases(module, x)


class FlatterSlopes(LinearBiases):
    """The slopes are the square roots of those that the paper's code has for any number of heads."""

    def slopes(self, like):
        power = 2 ** math.ceil(math.log2(self.heads))
        every = torch.exp2(-4 * torch.arange(1, power + 1).to(like) / power)
        return every if power == self.heads else torch.cat((every[1::2], every[::2]))[: self.heads]


def case_flatter_slopes(B, H, L, Dk):
    return _case(FlatterSlopes, B, H, L, Dk, ["causal", "alibi"])


class LearnedSlopes(LinearBiases):
    """The slopes are parameters, which training makes any positive numbers."""

    def __init__(self, heads, depth):
        super().__init__(heads, depth)
        self.rates = nn.Parameter(torch.rand(heads))

    def slopes(self, like):
        return F.softplus(self.rates)


def case_learned_slopes(B, H, L, Dk):
    return _case(LearnedSlopes, B, H, L, Dk, ["causal", "alibi"])


class TableOfFixedLength(Base):
    """The caller gives a bias for each of up to 71 positions on both sides: 143 rows, a multiple of 11 and of 13."""

    def forward(self, x, table):
        q, k, v = parts(self, x)
        place = torch.arange(x.shape[1])
        bias = table[(place - place[:, None]).clamp(-71, 71) + 71].permute(2, 0, 1)
        return self.proj(join((self.logits(q, k) + bias).softmax(-1) @ v))


def case_table_of_fixed_length(B, H, L, Dk):
    return TableOfFixedLength(H, Dk), (torch.randn(B, L, H * Dk), torch.randn(143, H)), {}


def reference_table_of_fixed_length(module, x, table):
    q, k, v = parts(module, x)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(module.depth)
    for i in range(x.shape[1]):
        for j in range(x.shape[1]):
            scores[:, :, i, j] += table[j - i + 71]
    return module.proj(join(torch.einsum("bhij,bhjd->bhid", softmax(scores), v)))


class Reader(nn.Module):
    """The memory attends to itself; then one query, at position 0 of its own sequence, reads it."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads = heads
        width = heads * depth
        self.own, self.query, self.key_value = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
        )

    def rotated(self, x):
        half = x.shape[-1] // 2
        angle = torch.arange(x.shape[-2]).to(x)[:, None] * 10000 ** (-torch.arange(half).to(x) / half)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), dim=-1)

    def attend(self, q, k, v):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(self.rotated(q), self.rotated(k), v).transpose(1, 2).flatten(2)

    def forward(self, query, memory):
        memory = memory + self.attend(*self.own(memory).chunk(3, dim=-1))
        return self.attend(self.query(query), *self.key_value(memory).chunk(2, dim=-1))


def case_query_beside_rotated_memory(B, H, L, Dk):
    return Reader(H, Dk), (torch.randn(B, 1, H * Dk), torch.randn(B, L, H * Dk)), {}, ["rope=half"]


class Windows(nn.Module):
    """Shifted windows of a map, with a mask for each window."""

    def __init__(self, heads, depth, window, grid):
        super().__init__()
        self.heads, self.window, self.grid, self.shift = heads, window, grid, window // 2
        self.qkv = nn.Linear(heads * depth, 3 * heads * depth)
        rows, columns = (torch.arange(window * count) for count in grid)
        regions = self.region(rows)[:, None] * 3 + self.region(columns)
        regions = self.parted(regions[None, :, :, None]).squeeze(-1)
        self.register_buffer("mask", torch.where(regions[:, None] != regions[:, :, None], -torch.inf, 0.0))

    def region(self, positions):
        length = len(positions)
        return (positions >= length - self.window).long() + (positions >= length - self.shift).long()

    def parted(self, x):
        B, _, _, C = x.shape
        rows, columns = self.grid
        windows = x.view(B, rows, self.window, columns, self.window, C).transpose(2, 3)
        return windows.reshape(B * rows * columns, self.window * self.window, C)

    def forward(self, x):
        B, height, width, _ = x.shape
        windows = self.parted(x.roll((-self.shift, -self.shift), (1, 2)))
        q, k, v = self.qkv(windows).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT * q.shape[-1] ** -0.5).unflatten(0, (B, -1)) + self.mask[None, :, None]
        context = (scores.softmax(dim=-1).flatten(0, 1) @ v).transpose(1, 2).flatten(2)
        rows, columns = self.grid
        context = context.view(B, rows, columns, self.window, self.window, -1).transpose(2, 3)
        return context.reshape(B, height, width, -1).roll((self.shift, self.shift), (1, 2))


def case_as_many_windows_as_heads(B, H, Dk, W, Nh, Nw):
    return Windows(H, Dk, W, (Nh, Nw)), (torch.randn(B, W * Nh, W * Nw, H * Dk),), {}, []


class Normed(RotatedHalves):
    """Queries and keys are normalised with gains of their own, as after training, then rotated."""

    def __init__(self, heads, depth):
        super().__init__(heads, depth)
        self.query_norm, self.key_norm = nn.RMSNorm(depth), nn.RMSNorm(depth)
        for norm in (self.query_norm, self.key_norm):
            nn.init.uniform_(norm.weight, 0.5, 2.0)

    def place(self, q, k):
        return super().place(self.query_norm(q), self.key_norm(k))


def case_norms_of_their_own(B, H, L, Dk):
    return _case(Normed, B, H, L, Dk, ["rope=half"])


class StackedTables(Base):
    """Cosines and sines are the first two rows of an argument that has others, for the layers after this one."""

    def forward(self, x, tables):
        self.tables = tables
        return super().forward(x)

    def place(self, q, k):
        return self.rotated(q), self.rotated(k)

    def rotated(self, x):
        even, odd = x.unflatten(-1, (-1, 2)).unbind(dim=-1)
        return x * self.tables[0] + torch.stack((-odd, even), dim=-1).flatten(-2) * self.tables[1]


def case_as_many_rows_as_heads(B, H, L, Dk):
    return StackedTables(H, Dk), (torch.randn(B, L, H * Dk), torch.randn(H, Dk)), {}, []


def reference_as_many_rows_as_heads(module, x, tables):
    q, k, v = (t.unflatten(-1, (module.heads, -1)) for t in module.qkv(x).chunk(3, dim=-1))
    swap = torch.arange(module.depth).view(-1, 2).flip(-1).flatten()
    signs = torch.tensor([-1.0, 1.0]).repeat(module.depth // 2).to(x)
    q, k = (t * tables[0] + t[..., swap] * signs * tables[1] for t in (q, k))
    return module.proj(multihead(q.flatten(2), k.flatten(2), v.flatten(2), module.heads))
