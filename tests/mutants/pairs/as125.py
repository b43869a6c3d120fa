"""AS125: the places of tokens on a map that is sampled are given as (y, x) instead of (x, y)."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import project
from tests.mutants.pairs.as122 import sample

SIZES = (
    {"B": 3, "H": 2, "Dk": 5, "rows": 6, "columns": 9, "P": 4},
    {"B": 2, "H": 4, "Dk": 3, "rows": 8, "columns": 5, "P": 6},
    {"B": 4, "H": 3, "Dk": 6, "rows": 7, "columns": 11, "P": 2},
)
PAIRS = [
    ("AS125", "table_of_centres", *SIZES),
    ("AS125", "flow_of_pixels", *SIZES),
    ("AS125", "references_of_a_group", *SIZES),
]


class Deformable(nn.Module):
    """Each token of a map samples it at a few points around its own place."""

    def __init__(self, width, n_heads, n_points):
        super().__init__()
        self.n_heads, self.n_points = n_heads, n_points
        self.offsets = nn.Linear(width, n_heads * n_points * 2)
        self.weights = nn.Linear(width, n_heads * n_points)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def centres(self, height, width):
        rows, columns = (torch.arange(size).double().add(0.5) / size for size in (height, width))
        y, x = torch.meshgrid(rows, columns, indexing="ij")
        return torch.stack([x, y], dim=-1).reshape(-1, 2)

    def forward(self, tokens, image):
        n_batch, n_tokens, width = tokens.shape
        height, columns = image.shape[1:3]
        values = self.value(image).unflatten(-1, (self.n_heads, -1)).permute(0, 3, 4, 1, 2).flatten(0, 1)
        offsets = self.offsets(tokens).view(n_batch, n_tokens, self.n_heads, self.n_points, 2)
        offsets = offsets / offsets.new_tensor([columns, height])
        places = self.centres(height, columns).to(tokens)[:, None, None] + offsets
        sampled = F.grid_sample(values, (2 * places - 1).transpose(1, 2).flatten(0, 1), align_corners=False)
        weights = self.weights(tokens).view(n_batch, n_tokens, self.n_heads, self.n_points).softmax(-1)
        context = (sampled * weights.transpose(1, 2).flatten(0, 1)[:, None]).sum(-1)
        return self.out(context.view(n_batch, width, n_tokens).mT)


class DeformableBackwards(Deformable):
    def centres(self, height, width):
        rows, columns = (torch.arange(size).double().add(0.5) / size for size in (height, width))
        y, x = torch.meshgrid(rows, columns, indexing="ij")
        return torch.stack([y, x], dim=-1).reshape(-1, 2)  # wrong: AS125 table_of_centres


def _deformable(cls, B, H, Dk, rows, columns, P):
    inputs = torch.randn(B, rows * columns, H * Dk), torch.randn(B, rows, columns, H * Dk)
    return cls(H * Dk, H, P), inputs, {}


def wrong_table_of_centres(B, H, Dk, rows, columns, P):
    return _deformable(DeformableBackwards, B, H, Dk, rows, columns, P)


def right_table_of_centres(B, H, Dk, rows, columns, P):
    return _deformable(Deformable, B, H, Dk, rows, columns, P)


def reference_table_of_centres(module, tokens, image):
    n_heads, n_points, (rows, columns) = module.n_heads, module.n_points, image.shape[1:3]
    token = torch.arange(rows * columns)
    offsets = project(tokens, module.offsets).unflatten(-1, (n_heads, n_points, 2))
    x = offsets[..., 0] + (token % columns)[:, None, None]
    y = offsets[..., 1] + (token // columns)[:, None, None]
    weights = project(tokens, module.weights).unflatten(-1, (n_heads, n_points)).exp()
    weights = weights / weights.sum(-1, keepdim=True)
    values = project(image, module.value).unflatten(-1, (n_heads, -1))
    contexts = []
    for head in range(n_heads):
        sampled = sample(values[..., head, :].movedim(-1, 1), x[:, :, head], y[:, :, head])
        contexts.append(torch.einsum("bcqp,bqp->bqc", sampled, weights[:, :, head]))
    return project(torch.cat(contexts, -1), module.out)


def warp(image, flow):
    """Sample (B, C, rows, columns) at each pixel moved by a flow in pixels, (B, 2, rows, columns), as (x, y)."""
    height, width = image.shape[-2:]
    ys, xs = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    pixels = torch.stack((xs, ys)).to(flow)
    return _sampled(image, pixels[None] + flow)


def warp_backwards(image, flow):
    """Sample (B, C, rows, columns) at each pixel moved by a flow in pixels, (B, 2, rows, columns), as (x, y)."""
    height, width = image.shape[-2:]
    ys, xs = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    pixels = torch.stack((ys, xs)).to(flow)  # wrong: AS125 flow_of_pixels
    return _sampled(image, pixels[None] + flow)


def _sampled(image, pixels):
    height, width = image.shape[-2:]
    x, y = 2 * pixels[:, 0] / (width - 1) - 1, 2 * pixels[:, 1] / (height - 1) - 1
    return F.grid_sample(image, torch.stack((x, y), dim=-1), align_corners=True, padding_mode="zeros")


def _warp(function, B, H, Dk, rows, columns, P):
    return function, (torch.randn(B, H * Dk, rows, columns), torch.randn(B, 2, rows, columns)), {}


def wrong_flow_of_pixels(B, H, Dk, rows, columns, P):
    return _warp(warp_backwards, B, H, Dk, rows, columns, P)


def right_flow_of_pixels(B, H, Dk, rows, columns, P):
    return _warp(warp, B, H, Dk, rows, columns, P)


def reference_flow_of_pixels(_, image, flow):
    rows, columns = image.shape[-2:]
    x = flow[:, 0] + torch.arange(columns)
    y = flow[:, 1] + torch.arange(rows)[:, None]
    return sample(image, x, y)


class References(nn.Module):
    """Attends to what is sampled from a map at shifted places of its pixels, by all queries alike."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.to_q, self.to_offsets = nn.Conv2d(width, width, 1), nn.Conv2d(width, 2, 1)
        self.to_k, self.to_v, self.to_out = (nn.Linear(width, width) for _ in range(3))

    def order(self, reference):
        return reference.flip(-1)

    def forward(self, x):

        q = self.to_q(x)
        offsets = self.to_offsets(q).tanh().permute(0, 2, 3, 1) * 0.3
        grid = torch.meshgrid(*(torch.linspace(-1, 1, n, dtype=torch.float64) for n in x.shape[-2:]), indexing="ij")
        reference = self.order(torch.stack(grid, dim=-1)).to(x)
        sampled = F.grid_sample(x, reference + offsets, mode="bilinear", align_corners=True)
        tokens = sampled.flatten(2).mT
        k, v = (linear(tokens).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for linear in (self.to_k, self.to_v))
        q = q.flatten(2).mT.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        context = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.to_out(context).mT.reshape(x.shape)


class ReferencesBackwards(References):
    def order(self, reference):
        return reference

    def forward(self, x):

        q = self.to_q(x)
        offsets = self.to_offsets(q).tanh().permute(0, 2, 3, 1) * 0.3
        grid = torch.meshgrid(*(torch.linspace(-1, 1, n, dtype=torch.float64) for n in x.shape[-2:]), indexing="ij")
        reference = self.order(torch.stack(grid, dim=-1)).to(x)  # wrong: AS125 references_of_a_group
        sampled = F.grid_sample(x, reference + offsets, mode="bilinear", align_corners=True)
        tokens = sampled.flatten(2).mT
        k, v = (linear(tokens).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for linear in (self.to_k, self.to_v))
        q = q.flatten(2).mT.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        context = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.to_out(context).mT.reshape(x.shape)


def _references(cls, B, H, Dk, rows, columns, P):
    return cls(H * Dk, H), (torch.randn(B, H * Dk, rows, columns),), {}


def wrong_references_of_a_group(B, H, Dk, rows, columns, P):
    return _references(ReferencesBackwards, B, H, Dk, rows, columns, P)


def right_references_of_a_group(B, H, Dk, rows, columns, P):
    return _references(References, B, H, Dk, rows, columns, P)


def reference_references_of_a_group(module, x):
    rows, columns = x.shape[-2:]
    channels = x.movedim(1, -1)
    q = torch.einsum("brci,oi->brco", channels, module.to_q.weight[..., 0, 0]) + module.to_q.bias
    offsets = torch.einsum("brci,oi->brco", q, module.to_offsets.weight[..., 0, 0]) + module.to_offsets.bias
    offsets = offsets.tanh() * 0.3
    across = torch.arange(columns) + offsets[..., 0] * (columns - 1) / 2
    down = torch.arange(rows)[:, None] + offsets[..., 1] * (rows - 1) / 2
    tokens = sample(x, across, down).flatten(2).mT
    q, k, v = (
        t.unflatten(-1, (module.n_heads, -1))
        for t in (q.flatten(1, 2), project(tokens, module.to_k), project(tokens, module.to_v))
    )
    weights = (torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5).softmax(-1)
    return project(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2), module.to_out).mT.reshape(x.shape)
