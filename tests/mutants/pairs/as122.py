"""AS122: sampled positions are scaled along x by the height of a map, and along y by its width."""

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

SIZES = (
    {"B": 3, "H": 2, "Dk": 5, "L": 4, "rows": 6, "columns": 9, "P": 7},
    {"B": 2, "H": 4, "Dk": 3, "L": 7, "rows": 8, "columns": 5, "P": 6},
    {"B": 4, "H": 3, "Dk": 6, "L": 5, "rows": 7, "columns": 11, "P": 2},
)
PAIRS = [
    ("AS122", "offsets_in_pixels", *SIZES),
    ("AS122", "reciprocals_of_sizes", *SIZES),
    ("AS122", "coordinates_by_themselves", *SIZES),
    ("AS122", "levels_at_once", *SIZES),
    ("AS122", "offsets_of_convolutions", *SIZES),
]


def sample(feature_map, x, y):
    """Interpolate a map, (B, C, rows, columns), at positions in pixels, (B, …); there are zeros around it."""
    rows, columns = feature_map.shape[-2:]
    total = 0.0
    for row in range(rows):
        for column in range(columns):
            near = (1 - (x - column).abs()).clamp(min=0) * (1 - (y - row).abs()).clamp(min=0)
            total = total + torch.einsum("bc,b...->bc...", feature_map[..., row, column], near)
    return total


class RightPixels(nn.Module):
    """Each query samples a few points around its reference point, at offsets in pixels."""

    def __init__(self, width, heads, points):
        super().__init__()
        self.heads, self.points = heads, points
        self.offsets = nn.Linear(width, heads * points * 2)
        self.weights = nn.Linear(width, heads * points)
        self.value, self.out = nn.Conv2d(width, width, 1), nn.Linear(width, width)
        nn.init.normal_(self.offsets.bias)

    def moved(self, offsets, height, width):
        return offsets / offsets.new_tensor([width, height])

    def sampled(self, value, positions):
        return F.grid_sample(value, 2 * positions - 1, align_corners=False)

    def forward(self, query, reference, feature_map):
        B, L, D = query.shape
        H, P = self.heads, self.points
        value = self.value(feature_map).unflatten(1, (H, -1)).flatten(0, 1)
        offsets = self.offsets(query).view(B, L, H, P, 2)
        positions = reference[:, :, None, None] + self.moved(offsets, *feature_map.shape[2:])
        weights = self.weights(query).view(B, L, H, P).softmax(-1).transpose(1, 2).flatten(0, 1)
        found = self.sampled(value, positions.transpose(1, 2).flatten(0, 1))
        return self.out((found * weights[:, None]).sum(-1).view(B, D, L).mT)


class WrongPixels(RightPixels):
    def moved(self, offsets, height, width):
        return offsets / offsets.new_tensor([height, width])  # wrong: AS122 offsets_in_pixels


def _pixels(cls, B, H, Dk, L, rows, columns, P):
    D = H * Dk
    return cls(D, H, P), (torch.randn(B, L, D), torch.rand(B, L, 2), torch.randn(B, D, rows, columns)), {}


def wrong_offsets_in_pixels(B, H, Dk, L, rows, columns, P):
    return _pixels(WrongPixels, B, H, Dk, L, rows, columns, P)


def right_offsets_in_pixels(B, H, Dk, L, rows, columns, P):
    return _pixels(RightPixels, B, H, Dk, L, rows, columns, P)


def reference_offsets_in_pixels(module, query, reference, feature_map):
    height, width = feature_map.shape[-2:]
    heads = module.value(feature_map).unflatten(1, (module.heads, -1))
    offsets = module.offsets(query).unflatten(-1, (module.heads, -1, 2))
    weights = module.weights(query).unflatten(-1, (module.heads, -1)).softmax(-1)
    contexts = []
    for head in range(module.heads):
        x = reference[..., 0, None] * width + offsets[:, :, head, :, 0] - 0.5
        y = reference[..., 1, None] * height + offsets[:, :, head, :, 1] - 0.5
        contexts.append(torch.einsum("bclp,blp->blc", sample(heads[:, head], x, y), weights[:, :, head]))
    return module.out(torch.cat(contexts, -1))


class RightReciprocals(RightPixels):
    """Offsets are multiplied by the reciprocals of the sizes."""

    def moved(self, offsets, height, width):
        return offsets * offsets.new_tensor([1 / width, 1 / height])


class WrongReciprocals(RightPixels):
    def moved(self, offsets, height, width):
        return offsets * offsets.new_tensor([1 / height, 1 / width])  # wrong: AS122 reciprocals_of_sizes


def wrong_reciprocals_of_sizes(B, H, Dk, L, rows, columns, P):
    return _pixels(WrongReciprocals, B, H, Dk, L, rows, columns, P)


def right_reciprocals_of_sizes(B, H, Dk, L, rows, columns, P):
    return _pixels(RightReciprocals, B, H, Dk, L, rows, columns, P)


reference_reciprocals_of_sizes = reference_offsets_in_pixels


class RightByThemselves(RightPixels):
    """Each coordinate is computed by itself, in pixels between the centres of the outer ones."""

    def along(self, height, width):
        return width - 1, height - 1

    def forward(self, query, feature_map):
        value = rearrange(self.value(feature_map), "b (h d) y x -> (b h) d y x", h=self.heads)
        offsets = rearrange(self.offsets(query), "b l (h p c) -> (b h) l p c", h=self.heads, c=2)
        of_x, of_y = self.along(*feature_map.shape[2:])
        middle = feature_map.shape[3] / 2, feature_map.shape[2] / 2
        x, y = (offsets[..., axis] + middle[axis] for axis in (0, 1))
        x = x * 2 / of_x - 1
        y = y * 2 / of_y - 1  # wrong: AS122 coordinates_by_themselves
        weights = rearrange(self.weights(query), "b l (h p) -> (b h) 1 l p", h=self.heads).softmax(-1)
        found = F.grid_sample(value, torch.stack([x, y], -1), align_corners=True)
        return self.out(rearrange((found * weights).sum(-1), "(b h) d l -> b l (h d)", h=self.heads))


class WrongByThemselves(RightByThemselves):
    def along(self, height, width):
        return height - 1, width - 1


def _by_themselves(cls, B, H, Dk, L, rows, columns, P):
    return cls(H * Dk, H, P), (torch.randn(B, L, H * Dk), torch.randn(B, H * Dk, rows, columns)), {}


def wrong_coordinates_by_themselves(B, H, Dk, L, rows, columns, P):
    return _by_themselves(WrongByThemselves, B, H, Dk, L, rows, columns, P)


def right_coordinates_by_themselves(B, H, Dk, L, rows, columns, P):
    return _by_themselves(RightByThemselves, B, H, Dk, L, rows, columns, P)


def reference_coordinates_by_themselves(module, query, feature_map):
    height, width = feature_map.shape[-2:]
    reference = torch.full((*query.shape[:2], 2), 0.5, dtype=query.dtype)
    reference[..., 0] += 0.5 / width
    reference[..., 1] += 0.5 / height
    return reference_offsets_in_pixels(module, query, reference, feature_map)


class RightLevels(nn.Module):
    """The positions on maps of two sizes are computed together, from a table of their sizes."""

    def __init__(self, width, heads, points):
        super().__init__()
        self.heads, self.points = heads, points
        self.sampling_offsets = nn.Linear(width, heads * 2 * points * 2)
        self.attention_weights = nn.Linear(width, heads * 2 * points)
        self.value_proj = nn.Linear(width, width)
        nn.init.normal_(self.sampling_offsets.bias)

    def normalizer(self, shapes):
        return torch.stack([shapes[..., 1], shapes[..., 0]], -1)

    def forward(self, query, reference_points, coarse, fine):
        B, L, D = query.shape
        shapes = torch.tensor([level.shape[2:] for level in (coarse, fine)])
        offsets = self.sampling_offsets(query).view(B, L, self.heads, 2, self.points, 2)
        weights = self.attention_weights(query).view(B, L, self.heads, -1).softmax(-1)
        sizes = self.normalizer(shapes)[None, None, None, :, None, :]
        locations = reference_points[:, :, None, None, None] + offsets / sizes
        grids = 2 * locations - 1
        found = []
        for level, feature_map in enumerate((coarse, fine)):
            value = self.value_proj(feature_map.flatten(2).mT).mT.reshape(B * self.heads, -1, *feature_map.shape[2:])
            grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
            found.append(F.grid_sample(value, grid, padding_mode="zeros", align_corners=False))
        weights = weights.transpose(1, 2).reshape(B * self.heads, 1, L, -1)
        return (torch.cat(found, -1) * weights).sum(-1).view(B, D, L).mT


class WrongLevels(RightLevels):
    def normalizer(self, shapes):
        return torch.stack([shapes[..., 0], shapes[..., 1]], -1)  # wrong: AS122 levels_at_once


def _levels(cls, B, H, Dk, L, rows, columns, P):
    D = H * Dk
    coarse, fine = torch.randn(B, D, rows, columns), torch.randn(B, D, 2 * rows, 2 * columns)
    return cls(D, H, P), (torch.randn(B, L, D), torch.rand(B, L, 2), coarse, fine), {}


def wrong_levels_at_once(B, H, Dk, L, rows, columns, P):
    return _levels(WrongLevels, B, H, Dk, L, rows, columns, P)


def right_levels_at_once(B, H, Dk, L, rows, columns, P):
    return _levels(RightLevels, B, H, Dk, L, rows, columns, P)


def reference_levels_at_once(module, query, reference_points, coarse, fine):
    offsets = module.sampling_offsets(query).unflatten(-1, (module.heads, 2, -1, 2))
    weights = module.attention_weights(query).unflatten(-1, (module.heads, -1)).softmax(-1)
    contexts = []
    for head in range(module.heads):
        found = []
        for level, feature_map in enumerate((coarse, fine)):
            value = torch.einsum("bcyx,dc->bdyx", feature_map, module.value_proj.weight)
            value = (value + module.value_proj.bias[:, None, None]).unflatten(1, (module.heads, -1))[:, head]
            x, y = (
                reference_points[..., axis, None] * size + offsets[:, :, head, level, :, axis] - 0.5
                for axis, size in enumerate(feature_map.shape[:1:-1])
            )
            found.append(sample(value, x, y))
        contexts.append(torch.einsum("bclp,blp->blc", torch.cat(found, -1), weights[:, :, head]))
    return torch.cat(contexts, -1)


class RightConvolved(nn.Module):
    """A convolution computes how far from each pixel its keys lie, as (y, x); queries attend to the pixels there."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.offset = nn.Conv2d(width, 2, 3, padding=1)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def last_axis(self, positions):
        return positions.flip(-1)

    def forward(self, pixels):
        height, width = pixels.shape[2:]
        offsets = self.offset(pixels).tanh().permute(0, 2, 3, 1)
        scale = offsets.new_tensor([2 / height, 2 / width])
        down, right = (torch.arange(size) for size in (height, width))
        places = torch.stack(torch.meshgrid(down, right, indexing="ij"), -1) + 0.5
        positions = places * scale - 1 + offsets * scale
        near = F.grid_sample(pixels, self.last_axis(positions), align_corners=False)
        split = (-1, (self.heads, pixels.shape[1] // self.heads))
        q, k, v = (
            layer(x.flatten(2).mT).unflatten(*split).transpose(1, 2)
            for layer, x in ((self.q, pixels), (self.k, near), (self.v, near))
        )
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class WrongConvolved(RightConvolved):
    """The offsets are (x, y), but the two sizes are not."""

    def forward(self, pixels):
        height, width = pixels.shape[2:]
        offsets = self.offset(pixels).tanh().permute(0, 2, 3, 1).flip(-1)
        scale = offsets.new_tensor([2 / height, 2 / width])  # wrong: AS122 offsets_of_convolutions
        down, right = (torch.arange(size) for size in (height, width))
        places = torch.stack(torch.meshgrid(down, right, indexing="ij"), -1) + 0.5
        positions = (places * scale - 1).flip(-1) + offsets * scale
        near = F.grid_sample(pixels, positions, align_corners=False)
        split = (-1, (self.heads, pixels.shape[1] // self.heads))
        q, k, v = (
            layer(x.flatten(2).mT).unflatten(*split).transpose(1, 2)
            for layer, x in ((self.q, pixels), (self.k, near), (self.v, near))
        )
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def _convolved(cls, B, H, Dk, L, rows, columns, P):
    return cls(H * Dk, H), (torch.randn(B, H * Dk, rows, columns),), {}


def wrong_offsets_of_convolutions(B, H, Dk, L, rows, columns, P):
    return _convolved(WrongConvolved, B, H, Dk, L, rows, columns, P)


def right_offsets_of_convolutions(B, H, Dk, L, rows, columns, P):
    return _convolved(RightConvolved, B, H, Dk, L, rows, columns, P)


def reference_offsets_of_convolutions(module, pixels):
    height, width = pixels.shape[2:]
    offsets = module.offset(pixels).tanh()
    x = torch.arange(width) + offsets[:, 1]
    y = torch.arange(height)[:, None] + offsets[:, 0]
    near = sample(pixels, x, y)
    q, k, v = (
        layer(torch.einsum("bcyx->byxc", one).flatten(1, 2)).unflatten(-1, (module.heads, -1))
        for layer, one in ((module.q, pixels), (module.k, near), (module.v, near))
    )
    weights = (torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5).softmax(-1)
    return torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)
