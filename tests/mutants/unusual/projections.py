"""Projections whose names say what they make in the usual order of products, or of tokens that compete."""

import math

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import turned
from tests.mutants.plain import attention, join, softmax, split

PLAIN_LATENT = ({"B": 2, "H": 4, "L": 7, "Dk": 5, "C": 3}, {"B": 5, "H": 3, "L": 9, "Dk": 8, "C": 6})
LATENT = ({"B": 2, "H": 4, "L": 7, "Dk": 5, "C": 3, "R": 8}, {"B": 5, "H": 3, "L": 9, "Dk": 8, "C": 6, "R": 2})
SLOTS = ({"B": 3, "L": 11, "K": 4, "D": 8}, {"B": 2, "L": 9, "K": 5, "D": 12})
UNUSUAL = [
    ("absorbed_keys_and_values", *LATENT),
    ("absorbed_latents", *PLAIN_LATENT),
    ("absorbed_weights", *PLAIN_LATENT),
    ("slots_that_compete", *SLOTS),
    ("slots_transposed", *SLOTS),
]


class Absorbed(nn.Module):
    """Queries are multiplied by what would make keys of the latents, and contexts by what would make values.

    A part of each query is rotated instead, as a key is that all heads share.
    """

    def __init__(self, heads, depth, latent, rotated):
        super().__init__()
        self.heads, self.depth, self.rotated = heads, depth, 2 * rotated
        self.q_proj = nn.Linear(heads * depth, heads * (depth + self.rotated), bias=False)
        self.kv_down = nn.Linear(heads * depth, latent + self.rotated, bias=False)
        self.k_up, self.v_up = (nn.Parameter(torch.randn(heads, latent, depth) / latent**0.5) for _ in range(2))
        self.o_proj = nn.Linear(heads * depth, heads * depth, bias=False)

    def rotate(self, t):
        pairs = torch.arange(self.rotated // 2, dtype=torch.float64) / (self.rotated // 2)
        angles = (torch.arange(t.shape[-2])[:, None] * 100.0**-pairs).to(t)
        one, other = t.chunk(2, dim=-1)
        return torch.cat((one * angles.cos() - other * angles.sin(), other * angles.cos() + one * angles.sin()), -1)

    def forward(self, x):
        latent, shared = self.kv_down(x).split((self.kv_down.out_features - self.rotated, self.rotated), dim=-1)
        q = self.q_proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        plain, other = q.split((self.depth, self.rotated), dim=-1)
        query = torch.cat((torch.einsum("bhld,hcd->bhlc", plain, self.k_up), self.rotate(other)), dim=-1)
        scores = torch.einsum("bhqc,bkc->bhqk", query, torch.cat((latent, self.rotate(shared)), dim=-1))
        weights = (scores / math.sqrt(self.depth + self.rotated)).softmax(dim=-1)
        context = torch.einsum("bhqk,bkc->bhqc", weights, latent)
        return self.o_proj(torch.einsum("bhqc,hcd->bqhd", context, self.v_up).flatten(2))


def case_absorbed_keys_and_values(B, H, L, Dk, C, R):
    return Absorbed(H, Dk, C, R), (torch.randn(B, L, H * Dk),), {}, ["scale=1/sqrt(Dk+2*R)"]


def reference_absorbed_keys_and_values(module, x):
    q, both = split(module.q_proj(x), module.heads), module.kv_down(x)[:, None]
    latent, at = both[..., : -module.rotated], torch.arange(x.shape[1])
    keys = latent @ module.k_up, turned(both[..., -module.rotated :], at, base=100.0).expand(-1, module.heads, -1, -1)
    queries = q[..., : module.depth], turned(q[..., module.depth :], at, base=100.0)
    return module.o_proj(join(attention(torch.cat(queries, -1), torch.cat(keys, -1), latent @ module.v_up)))


class AbsorbedLatents(nn.Module):
    """Queries are multiplied by what would make keys of the latents, and contexts by what would make values."""

    def __init__(self, heads, depth, latent):
        super().__init__()
        self.heads, self.depth = heads, depth
        self.q_proj, self.kv_down = nn.Linear(heads * depth, heads * depth), nn.Linear(heads * depth, latent)
        self.k_up, self.v_up = (nn.Parameter(torch.randn(heads, latent, depth) / latent**0.5) for _ in range(2))
        self.o_proj = nn.Linear(heads * depth, heads * depth)

    def forward(self, x):
        latent = self.kv_down(x)
        q = self.q_proj(x).unflatten(-1, (self.heads, -1))
        absorbed = torch.einsum("blhd,hcd->bhlc", q, self.k_up)
        scores = torch.einsum("bhqc,bkc->bhqk", absorbed, latent) * self.depth**-0.5
        context = torch.einsum("bhqk,bkc->bhqc", scores.softmax(dim=-1), latent)
        return self.o_proj(torch.einsum("bhqc,hcd->bqhd", context, self.v_up).flatten(2))


def case_absorbed_latents(B, H, L, Dk, C):
    return AbsorbedLatents(H, Dk, C), (torch.randn(B, L, H * Dk),), {}


def reference_absorbed_latents(module, x):
    q, latent = split(module.q_proj(x), module.heads), module.kv_down(x)[:, None]
    return module.o_proj(join(attention(q, latent @ module.k_up, latent @ module.v_up)))


class AbsorbedWeights(nn.Module):
    """The same with layers that also can make keys and values of the latents, whose weights are read."""

    def __init__(self, heads, depth, latent):
        super().__init__()
        self.heads, self.depth = heads, depth
        self.q_proj = nn.Linear(heads * depth, heads * depth, bias=False)
        self.kv_down, self.kv_norm = nn.Linear(heads * depth, latent, bias=False), nn.RMSNorm(latent)
        self.k_up, self.v_up = (nn.Linear(latent, heads * depth, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(heads * depth, heads * depth, bias=False)

    def forward(self, x):
        latent = self.kv_norm(self.kv_down(x)).unsqueeze(1)
        q = self.q_proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k_up, v_up = (up.weight.unflatten(0, (self.heads, -1)) for up in (self.k_up, self.v_up))
        scores = (q @ k_up) @ latent.mT / math.sqrt(self.depth)
        context = scores.softmax(dim=-1) @ latent
        return self.o_proj((context @ v_up.mT).transpose(1, 2).flatten(2))


def case_absorbed_weights(B, H, L, Dk, C):
    return AbsorbedWeights(H, Dk, C), (torch.randn(B, L, H * Dk),), {}


def reference_absorbed_weights(module, x):
    latent = module.kv_norm(module.kv_down(x))
    return module.o_proj(
        join(attention(*(split(t, module.heads) for t in (module.q_proj(x), module.k_up(latent), module.v_up(latent)))))
    )


class Slots(nn.Module):
    """Slots compete for the tokens, by a softmax over the slots, and take weighted means of them."""

    def __init__(self, count, width):
        super().__init__()
        self.slots = nn.Parameter(torch.randn(count, width))
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.norm_inputs, self.norm_slots = nn.LayerNorm(width), nn.LayerNorm(width)
        self.gru = nn.GRUCell(width, width)

    def forward(self, inputs):
        inputs = self.norm_inputs(inputs)
        k, v = self.to_k(inputs), self.to_v(inputs)
        slots = self.slots.expand(len(inputs), -1, -1)
        for _ in range(2):
            q = self.to_q(self.norm_slots(slots))
            attn = (k @ q.transpose(1, 2) * q.shape[-1] ** -0.5).softmax(dim=-1) + 1e-8
            updates = self.means(attn / attn.sum(dim=1, keepdim=True), v)
            slots = self.gru(updates.flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
        return slots

    def means(self, weights, v):
        return torch.einsum("bji,bjd->bid", weights, v)


class TransposedSlots(Slots):
    def means(self, weights, v):
        return weights.transpose(1, 2) @ v


def case_slots_that_compete(B, L, K, D):
    return Slots(K, D), (torch.randn(B, L, D),), {}


def reference_slots_that_compete(module, inputs):
    inputs = module.norm_inputs(inputs)
    every = []
    for tokens in inputs:
        k, v, slots = module.to_k(tokens), module.to_v(tokens), module.slots
        for _ in range(2):
            shares = softmax(k @ module.to_q(module.norm_slots(slots)).T / k.shape[-1] ** 0.5).T + 1e-8
            slots = module.gru(torch.stack([(share @ v) / share.sum() for share in shares]), slots)
        every.append(slots)
    return torch.stack(every)


def case_slots_transposed(B, L, K, D):
    return TransposedSlots(K, D), (torch.randn(B, L, D),), {}


reference_slots_transposed = reference_slots_that_compete
