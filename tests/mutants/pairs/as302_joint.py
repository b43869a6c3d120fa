"""AS302: one context sums values by several rows of weights, each of which sums to one by itself."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import heads, merge, project

SIZES = (
    {"B": 2, "H": 5, "Lq": 7, "Lk": 9, "Dk": 4},
    {"B": 3, "H": 7, "Lq": 5, "Lk": 8, "Dk": 6},
    {"B": 5, "H": 3, "Lq": 4, "Lk": 7, "Dk": 6},
)
PAIRS = [
    ("AS302", "points_of_each_level", *SIZES),
    ("AS302", "level_by_level", *SIZES),
    ("AS302", "first_of_each_memory", *SIZES),
    ("AS302", "before_and_after", *SIZES),
    ("AS302", "stacked_levels", *SIZES),
    ("AS302", "each_block_of_keys", *SIZES),
]
LEVELS, POINTS = 3, 4


def distribution(logits):
    """... levels points, all of them together."""
    exponentials = (logits - logits.amax((-2, -1), keepdim=True)).exp()
    return exponentials / exponentials.sum((-2, -1), keepdim=True)


class OnMaps(nn.Module):
    """Samples maps of several levels at points around a reference."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.offsets = nn.Linear(width, n_heads * LEVELS * POINTS * 2)
        self.weights = nn.Linear(width, n_heads * LEVELS * POINTS)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def normalised(self, x):
        return self.weights(x).view(*x.shape[:2], self.n_heads, -1).softmax(dim=-1).unflatten(-1, (LEVELS, POINTS))

    def forward(self, x, reference, maps):
        n_batch, length = x.shape[:2]
        offsets = self.offsets(x).view(n_batch, length, self.n_heads, LEVELS, POINTS, 2)
        places = (reference[:, :, None, None, None] + 0.1 * offsets.tanh()).transpose(1, 2).flatten(0, 1)
        sampled = []
        for level, image in enumerate(maps):
            values = self.value(image.permute(0, 2, 3, 1)).unflatten(-1, (self.n_heads, -1))
            values = values.permute(0, 3, 4, 1, 2).flatten(0, 1)
            sampled.append(F.grid_sample(values, 2 * places[:, :, level] - 1, align_corners=False))
        weights = self.normalised(x).transpose(1, 2).flatten(0, 1).unsqueeze(1)
        context = (torch.stack(sampled, dim=-2) * weights).sum((-2, -1))
        return self.out(context.reshape(n_batch, -1, length).transpose(1, 2))


class OnMapsByLevel(OnMaps):
    def normalised(self, x):
        logits = self.weights(x).view(*x.shape[:2], self.n_heads, LEVELS, -1)  # wrong: AS302 points_of_each_level
        return logits.softmax(dim=-1)


def _on_maps(cls, B, H, Lq, Lk, Dk):
    maps = [torch.randn(B, H * Dk, Lk, 6 + level) for level in range(LEVELS)]
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.rand(B, Lq, 2), maps), {}


def wrong_points_of_each_level(B, H, Lq, Lk, Dk):
    return _on_maps(OnMapsByLevel, B, H, Lq, Lk, Dk)


def right_points_of_each_level(B, H, Lq, Lk, Dk):
    return _on_maps(OnMaps, B, H, Lq, Lk, Dk)


def bilinear(image, place):
    """... H W and (x, y) in [0, 1]: the number between the centres of pixels, 0 outside."""
    height, width = image.shape[-2:]
    x, y = place[0] * width - 0.5, place[1] * height - 0.5
    left, top = x.floor(), y.floor()
    total = torch.zeros(image.shape[:-2], dtype=image.dtype)
    for column, by_x in ((left, 1 - (x - left)), (left + 1, x - left)):
        for row, by_y in ((top, 1 - (y - top)), (top + 1, y - top)):
            if 0 <= column < width and 0 <= row < height:
                total = total + by_x * by_y * image[..., int(row), int(column)]
    return total


def reference_points_of_each_level(module, x, reference, maps):
    n_heads = module.n_heads
    weights = distribution(project(x, module.weights).unflatten(-1, (n_heads, LEVELS, POINTS)))
    offsets = project(x, module.offsets).unflatten(-1, (n_heads, LEVELS, POINTS, 2)).tanh() * 0.1
    out = torch.zeros(*x.shape[:2], n_heads, x.shape[-1] // n_heads, dtype=x.dtype)
    for level, image in enumerate(maps):
        values = project(image.movedim(1, -1), module.value).unflatten(-1, (n_heads, -1)).movedim((1, 2), (-2, -1))
        for b, q, h, p in torch.cartesian_prod(*(torch.arange(n) for n in (*x.shape[:2], n_heads, POINTS))).tolist():
            place = reference[b, q] + offsets[b, q, h, level, p]
            out[b, q, h] += weights[b, q, h, level, p] * bilinear(values[b, h], place)
    return project(out.flatten(2), module.out)


class LevelByLevel(nn.Module):
    """Reads some tokens of each level, whose places only depend on the query's own."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.mixing, self.value = nn.Linear(width, n_heads * LEVELS * POINTS), nn.Linear(width, width)

    def weights(self, x):
        logits = self.mixing(x).unflatten(-1, (self.n_heads, LEVELS * POINTS))
        return logits.softmax(-1).chunk(LEVELS, dim=-1)

    def forward(self, x, *levels):
        out = torch.zeros_like(x).unflatten(-1, (self.n_heads, -1))
        for tokens, weights in zip(levels, self.weights(x), strict=True):
            places = (torch.arange(x.shape[1])[:, None] + torch.arange(POINTS)) % tokens.shape[1]
            values = self.value(tokens).unflatten(-1, (self.n_heads, -1))[:, places]
            out = out + torch.einsum("bqhp,bqphd->bqhd", weights, values)
        return out.flatten(-2)


class EachLevel(LevelByLevel):
    def weights(self, x):
        logits = self.mixing(x).unflatten(-1, (self.n_heads, LEVELS * POINTS))
        return [part.softmax(-1) for part in logits.chunk(LEVELS, dim=-1)]  # wrong: AS302 level_by_level


def _by_level(cls, B, H, Lq, Lk, Dk):
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), *(torch.randn(B, Lk + n, H * Dk) for n in range(LEVELS))), {}


def wrong_level_by_level(B, H, Lq, Lk, Dk):
    return _by_level(EachLevel, B, H, Lq, Lk, Dk)


def right_level_by_level(B, H, Lq, Lk, Dk):
    return _by_level(LevelByLevel, B, H, Lq, Lk, Dk)


def reference_level_by_level(module, x, *levels):
    weights = distribution(project(x, module.mixing).unflatten(-1, (module.n_heads, LEVELS, POINTS)))
    values = [project(tokens, module.value).unflatten(-1, (module.n_heads, -1)) for tokens in levels]
    return torch.stack(
        [
            sum(
                weights[:, query, :, level, point, None] * values[level][:, (query + point) % levels[level].shape[1]]
                for level in range(LEVELS)
                for point in range(POINTS)
            )
            for query in range(x.shape[1])
        ],
        dim=1,
    ).flatten(2)


def first_tokens(query, memory, projection):
    """Mix the first tokens of several memories: B Lq D, and B levels Lk D."""
    weights = F.softmax(F.linear(query, projection), dim=-1).unflatten(-1, (LEVELS, POINTS))
    return _mixed(query, memory, weights)


def first_by_level(query, memory, projection):
    """Mix the first tokens of several memories: B Lq D, and B levels Lk D."""
    logits = F.linear(query, projection)
    weights = F.softmax(logits.unflatten(-1, (LEVELS, POINTS)), dim=-1)  # wrong: AS302 first_of_each_memory
    return _mixed(query, memory, weights)


def _mixed(query, memory, weights):
    return torch.einsum("bqlp,blpd->bqd", weights, memory[:, :, :POINTS])


def _first_tokens(function, B, H, Lq, Lk, Dk):
    projection = torch.randn(LEVELS * POINTS, H * Dk)
    return function, (torch.randn(B, Lq, H * Dk), torch.randn(B, LEVELS, Lk, H * Dk), projection), {}


def wrong_first_of_each_memory(B, H, Lq, Lk, Dk):
    return _first_tokens(first_by_level, B, H, Lq, Lk, Dk)


def right_first_of_each_memory(B, H, Lq, Lk, Dk):
    return _first_tokens(first_tokens, B, H, Lq, Lk, Dk)


def reference_first_of_each_memory(_, query, memory, projection):
    weights = distribution(torch.einsum("bqi,oi->bqo", query, projection).unflatten(-1, (LEVELS, POINTS)))
    return torch.einsum("bqk,bkd->bqd", weights.flatten(2), memory[:, :, :POINTS].flatten(1, 2))


class Beside(nn.Module):
    """Weighs the tokens before and after each one, as many on each side."""

    def __init__(self, width):
        super().__init__()
        self.logits, self.value = nn.Linear(width, 2 * POINTS), nn.Linear(width, width)

    def weights(self, x):
        return torch.softmax(self.logits(x), dim=2)

    def forward(self, x):
        values, weights = self.value(x), self.weights(x).tensor_split(2, dim=2)
        context = 0
        for side, own in zip((-1, 1), weights, strict=True):
            for step in range(POINTS):
                context = context + own[..., step : step + 1] * values.roll(-side * (step + 1), dims=1)
        return context


class BesideBySides(Beside):
    def weights(self, x):
        logits = self.logits(x).reshape(*x.shape[:2], 2, POINTS)  # wrong: AS302 before_and_after
        return torch.softmax(logits, dim=3).flatten(2)


def wrong_before_and_after(B, H, Lq, Lk, Dk):
    return BesideBySides(H * Dk), (torch.randn(B, Lk, H * Dk),), {}


def right_before_and_after(B, H, Lq, Lk, Dk):
    return Beside(H * Dk), (torch.randn(B, Lk, H * Dk),), {}


def reference_before_and_after(module, x):
    weights = distribution(project(x, module.logits).unflatten(-1, (2, POINTS)))
    values, length = project(x, module.value), x.shape[1]
    steps = torch.arange(1, POINTS + 1)
    places = (torch.arange(length)[:, None, None] + torch.stack([-steps, steps])) % length
    return torch.einsum("blsp,blspd->bld", weights, values[:, places])


class Stacked(nn.Module):
    """Pools each level at the query's place, with one weight for each number of tokens."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.to_weights, self.to_values = nn.Linear(width, n_heads * LEVELS * 2, bias=False), nn.Linear(width, width)

    def normalise(self, logits):
        return logits.flatten(3).softmax(-1).unflatten(-1, (LEVELS, 2))

    def forward(self, x):
        weights = self.normalise(self.to_weights(x).unflatten(-1, (self.n_heads, LEVELS, 2)))
        values = self.to_values(x).unflatten(-1, (self.n_heads, -1))
        contexts = []
        for level in range(LEVELS):
            near, far = values.roll(level, 1), values.roll(-level - 1, 1)
            contexts.append((weights[..., level, :, None] * torch.stack([near, far], dim=3)).sum(3))
        return torch.stack(contexts).sum(0).flatten(2)


class StackedByLevel(Stacked):
    def normalise(self, logits):
        return logits.softmax(dim=-1)  # wrong: AS302 stacked_levels


def _stacked(cls, B, H, Lk, Dk):
    return cls(H * Dk, H), (torch.randn(B, Lk, H * Dk),), {}


def wrong_stacked_levels(B, H, Lq, Lk, Dk):
    return _stacked(StackedByLevel, B, H, Lk, Dk)


def right_stacked_levels(B, H, Lq, Lk, Dk):
    return _stacked(Stacked, B, H, Lk, Dk)


def reference_stacked_levels(module, x):
    weights = distribution(project(x, module.to_weights).unflatten(-1, (module.n_heads, LEVELS, 2)))
    values, length = project(x, module.to_values).unflatten(-1, (module.n_heads, -1)), x.shape[1]
    levels = torch.arange(LEVELS)
    places = (torch.arange(length)[:, None, None] + torch.stack([-levels, levels + 1], -1)) % length
    return torch.einsum("bqhlp,bqlphd->bqhd", weights, values[:, places]).flatten(2)


class Blocks(nn.Module):
    """Attends to several blocks of memory at once."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def weights(self, scores):
        return scores.flatten(-2).softmax(-1).view_as(scores)

    def forward(self, x, blocks):
        q = self.q(x).unflatten(-1, (self.n_heads, -1)) / (x.shape[-1] // self.n_heads) ** 0.5
        k, v = (linear(blocks).unflatten(-1, (self.n_heads, -1)) for linear in (self.k, self.v))
        weights = self.weights(torch.einsum("bqhd,bnkhd->bhqnk", q, k))
        return self.o(torch.einsum("bhqnk,bnkhd->bqhd", weights, v).flatten(-2))


class BlockByBlock(Blocks):
    def weights(self, scores):
        return scores.softmax(-1)  # wrong: AS302 each_block_of_keys


def _blocks(cls, B, H, Lq, Lk, Dk):
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, LEVELS, Lk, H * Dk)), {}


def wrong_each_block_of_keys(B, H, Lq, Lk, Dk):
    return _blocks(BlockByBlock, B, H, Lq, Lk, Dk)


def right_each_block_of_keys(B, H, Lq, Lk, Dk):
    return _blocks(Blocks, B, H, Lq, Lk, Dk)


def reference_each_block_of_keys(module, x, blocks):
    memory = blocks.flatten(1, 2)
    q, k, v = (
        heads(t, linear, module.n_heads) for t, linear in ((x, module.q), (memory, module.k), (memory, module.v))
    )
    exponentials = (torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5).exp()
    weights = exponentials / exponentials.sum(-1, keepdim=True)
    return merge(torch.einsum("bhqk,bhkd->bhqd", weights, v), module.o)
