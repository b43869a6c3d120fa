"""AS302: one softmax runs over the weights of several heads, each of which sums values by its own."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import project
from tests.mutants.pairs.as302_joint import bilinear

SIZES = (
    {"B": 2, "H": 5, "Lq": 7, "Lk": 9, "Dk": 4},
    {"B": 3, "H": 7, "Lq": 5, "Lk": 8, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 7, "Lk": 9, "Dk": 6},
)
PAIRS = [
    ("AS302", "points_of_every_head", *SIZES),
    ("AS302", "kernels_of_every_head", *SIZES),
    ("AS302", "offsets_of_every_head", *SIZES),
    ("AS302", "slots_of_every_head", *SIZES),
]
POINTS = 3


def of_each_head(logits, n_heads):
    """... H points: the weights of each head's points, which sum to one."""
    exponentials = logits.unflatten(-1, (n_heads, POINTS)).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


class Sampling(nn.Module):
    """Samples a map at points beside a reference, other ones in each head."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.offsets, self.weights = nn.Linear(width, n_heads * POINTS * 2), nn.Linear(width, n_heads * POINTS)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def of_points(self, x):
        return self.weights(x).view(*x.shape[:2], self.n_heads, POINTS).softmax(-1)

    def forward(self, x, reference, image):
        n_batch, length = x.shape[:2]
        values = self.value(image.permute(0, 2, 3, 1)).unflatten(-1, (self.n_heads, -1))
        values = values.permute(0, 3, 4, 1, 2).flatten(0, 1)
        offsets = self.offsets(x).view(n_batch, length, self.n_heads, POINTS, 2)
        places = (reference[:, :, None, None] + 0.1 * offsets.tanh()).transpose(1, 2).flatten(0, 1)
        sampled = F.grid_sample(values, 2 * places - 1, align_corners=False)
        weights = self.of_points(x).transpose(1, 2).flatten(0, 1).unsqueeze(1)
        context = (sampled * weights).sum(-1)
        return self.out(context.reshape(n_batch, -1, length).transpose(1, 2))


class SamplingTogether(Sampling):
    def of_points(self, x):
        flat = F.softmax(self.weights(x), dim=-1)  # wrong: AS302 points_of_every_head
        return flat.view(*x.shape[:2], self.n_heads, POINTS)


def _sampling(cls, B, H, Lq, Lk, Dk):
    inputs = torch.randn(B, Lq, H * Dk), torch.rand(B, Lq, 2), torch.randn(B, H * Dk, Lk, Lk + 2)
    return cls(H * Dk, H), inputs, {}


def wrong_points_of_every_head(B, H, Lq, Lk, Dk):
    return _sampling(SamplingTogether, B, H, Lq, Lk, Dk)


def right_points_of_every_head(B, H, Lq, Lk, Dk):
    return _sampling(Sampling, B, H, Lq, Lk, Dk)


def reference_points_of_every_head(module, x, reference, image):
    n_heads = module.n_heads
    weights = of_each_head(project(x, module.weights), n_heads)
    offsets = project(x, module.offsets).unflatten(-1, (n_heads, POINTS, 2)).tanh() * 0.1
    values = project(image.movedim(1, -1), module.value).unflatten(-1, (n_heads, -1)).movedim((1, 2), (-2, -1))
    out = torch.zeros(*x.shape[:2], n_heads, x.shape[-1] // n_heads, dtype=x.dtype)
    for b, q, h, p in torch.cartesian_prod(*(torch.arange(n) for n in (*x.shape[:2], n_heads, POINTS))).tolist():
        out[b, q, h] += weights[b, q, h, p] * bilinear(values[b, h], reference[b, q] + offsets[b, q, h, p])
    return project(out.flatten(2), module.out)


def dynamic_convolution(x, kernel):
    """Weigh each token and those before it by kernels that it makes: B L D, and H*points D."""
    return _convolved(x, F.linear(x, kernel).unflatten(-1, (-1, POINTS)).softmax(dim=-1))


def dynamic_convolution_together(x, kernel):
    """Weigh each token and those before it by kernels that it makes: B L D, and H*points D."""
    kernels = F.linear(x, kernel).softmax(dim=-1)  # wrong: AS302 kernels_of_every_head
    return _convolved(x, kernels.unflatten(-1, (-1, POINTS)))


def _convolved(x, kernels):
    windows = F.pad(x, (0, 0, POINTS - 1, 0)).unfold(1, POINTS, 1).unflatten(2, (kernels.shape[2], -1))
    return torch.einsum("blhp,blhdp->blhd", kernels, windows).flatten(2)


def _convolution(function, B, H, Lk, Dk):
    return function, (torch.randn(B, Lk, H * Dk), torch.randn(H * POINTS, H * Dk)), {}


def wrong_kernels_of_every_head(B, H, Lq, Lk, Dk):
    return _convolution(dynamic_convolution_together, B, H, Lk, Dk)


def right_kernels_of_every_head(B, H, Lq, Lk, Dk):
    return _convolution(dynamic_convolution, B, H, Lk, Dk)


def reference_kernels_of_every_head(_, x, kernel):
    n_heads = kernel.shape[0] // POINTS
    weights = of_each_head(torch.einsum("bli,oi->blo", x, kernel), n_heads)
    values = x.unflatten(-1, (n_heads, -1))
    out = torch.zeros_like(values)
    for token in range(x.shape[1]):
        for point in range(POINTS):
            if (place := token + point - POINTS + 1) >= 0:
                out[:, token] += weights[:, token, :, point, None] * values[:, place]
    return out.flatten(2)


class Beside(nn.Module):
    """Sums tokens at fixed distances, with other weights in each head."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.mix, self.v, self.o = nn.Linear(width, n_heads * POINTS), nn.Linear(width, width), nn.Linear(width, width)

    def weights(self, x):
        logits = self.mix(x).reshape(*x.shape[:-1], self.n_heads, POINTS)
        return torch.softmax(logits, -1)

    def forward(self, x):
        values = self.v(x).reshape(*x.shape[:-1], self.n_heads, -1)
        weights = self.weights(x)
        context = sum(weights[..., p, None] * values.roll(p, dims=1) for p in range(POINTS))
        return self.o(context.reshape(x.shape))


class BesideTogether(Beside):
    def weights(self, x):
        logits = self.mix(x)
        logits = logits - logits.amax(-1, keepdim=True)
        weights = logits.exp() / logits.exp().sum(-1, keepdim=True)  # wrong: AS302 offsets_of_every_head
        return weights.reshape(*x.shape[:-1], self.n_heads, POINTS)


def wrong_offsets_of_every_head(B, H, Lq, Lk, Dk):
    return BesideTogether(H * Dk, H), (torch.randn(B, Lk, H * Dk),), {}


def right_offsets_of_every_head(B, H, Lq, Lk, Dk):
    return Beside(H * Dk, H), (torch.randn(B, Lk, H * Dk),), {}


def reference_offsets_of_every_head(module, x):
    weights = of_each_head(project(x, module.mix), module.n_heads)
    values = project(x, module.v).unflatten(-1, (module.n_heads, -1))
    places = (torch.arange(x.shape[1])[:, None] - torch.arange(POINTS)) % x.shape[1]
    return project(torch.einsum("blhp,blphd->blhd", weights, values[:, places]).flatten(2), module.o)


class Slots(nn.Module):
    """Reads a memory of a few slots by weights that a layer gives for each head."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.gate = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, n_heads * POINTS))

    def forward(self, x, slots):
        logits = self.gate(x).unflatten(-1, (self.n_heads, POINTS)).transpose(1, 2)
        return self.read(logits.softmax(dim=-1), slots)

    def read(self, weights, slots):
        values = slots.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        return (weights @ values).transpose(1, 2).flatten(2)


class SlotsTogether(Slots):
    def forward(self, x, slots):
        weights = nn.Softmax(dim=-1)(self.gate(x))  # wrong: AS302 slots_of_every_head
        return self.read(weights.unflatten(-1, (self.n_heads, POINTS)).transpose(1, 2), slots)


def _slots(cls, B, H, Lq, Dk):
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, POINTS, H * Dk)), {}


def wrong_slots_of_every_head(B, H, Lq, Lk, Dk):
    return _slots(SlotsTogether, B, H, Lq, Dk)


def right_slots_of_every_head(B, H, Lq, Lk, Dk):
    return _slots(Slots, B, H, Lq, Dk)


def reference_slots_of_every_head(module, x, slots):
    first, _, last = module.gate
    weights = of_each_head(project(project(x, first).tanh(), last), module.n_heads)
    return torch.einsum("bqhp,bphd->bqhd", weights, slots.unflatten(-1, (module.n_heads, -1))).flatten(2)
