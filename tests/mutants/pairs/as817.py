"""AS817: a projection makes something else than its name says."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, merge

SELF = ({"B": 2, "H": 3, "L": 7, "Dk": 5}, {"B": 3, "H": 2, "L": 5, "Dk": 8}, {"B": 4, "H": 5, "L": 6, "Dk": 3})
PAIRS = [
    ("AS817", "adapter_of_values", *SELF),
    (
        "AS817",
        "memory_exchanged",
        {"B": 2, "H": 3, "Lq": 5, "Lk": 7, "Dk": 4},
        {"B": 3, "H": 2, "Lq": 7, "Lk": 4, "Dk": 5},
        {"B": 4, "H": 5, "Lq": 3, "Lk": 6, "Dk": 7},
    ),
    (
        "AS817",
        "grouped_exchanged",
        {"B": 2, "Hkv": 3, "G": 4, "L": 7, "Dk": 5},
        {"B": 5, "Hkv": 2, "G": 3, "L": 6, "Dk": 7},
        {"B": 3, "Hkv": 4, "G": 2, "L": 5, "Dk": 8},
    ),
    ("AS817", "heads_of_their_own", *SELF),
]


class Adapter(nn.Module):
    """A low-rank update of a frozen projection."""

    def __init__(self, width, rank):
        super().__init__()
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)

    def forward(self, x):
        return self.up(self.down(x))


class Adapted(nn.Module):
    """Queries and values of a fused projection have adapters."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.width = heads, width
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.lora_q, self.lora_v = Adapter(width, 4), Adapter(width, 4)

    def forward(self, x):
        update = x.new_zeros(*x.shape[:-1], 3 * self.width)
        update[..., : self.width] = self.lora_q(x)
        self.add(update, x)
        q, k, v = (self.qkv(x) + update).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        context = F.scaled_dot_product_attention(q, k, v)
        return self.out(context.transpose(1, 2).flatten(2))

    def add(self, update, x):
        update[..., 2 * self.width :] = self.lora_v(x)


class AdaptedKeys(Adapted):
    def add(self, update, x):
        update[..., self.width : 2 * self.width] = self.lora_v(x)  # wrong: AS817 adapter_of_values


def _adapted(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_adapter_of_values(B, H, L, Dk):
    return _adapted(AdaptedKeys, B, H, L, Dk)


def right_adapter_of_values(B, H, L, Dk):
    return _adapted(Adapted, B, H, L, Dk)


def reference_adapter_of_values(module, x):
    D = module.width
    rows = module.qkv.weight.clone()
    rows[:D] += module.lora_q.up.weight @ module.lora_q.down.weight
    rows[2 * D :] += module.lora_v.up.weight @ module.lora_v.down.weight
    parts = (
        torch.einsum("bli,hdi->bhld", x, part.unflatten(0, (module.heads, -1)))
        + bias.unflatten(0, (module.heads, -1))[None, :, None]
        for part, bias in zip(rows.split(D), module.qkv.bias.split(D), strict=True)
    )
    return merge(attend(*parts), module.out)


class Memory(nn.Module):
    """Attention to a memory, in einsum, with matrices as parameters."""

    def __init__(self, width, heads):
        super().__init__()
        size = width // heads
        self.Wq, self.Wk, self.Wv = (nn.Parameter(torch.randn(heads, width, size) / width**0.5) for _ in range(3))

    def both(self):
        return self.Wk, self.Wv

    def forward(self, x, memory):
        first, second = self.both()
        q = torch.einsum("bqm,hmd->bhqd", x, self.Wq)
        k = torch.einsum("bkm,hmd->bhkd", memory, first)
        return self.weigh(q, k, memory, second).transpose(1, 2).flatten(2)

    def weigh(self, q, k, memory, matrix):
        weights = (torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])).softmax(dim=-1)
        return torch.einsum("bhqk,bhkd->bhqd", weights, torch.einsum("bkm,hmd->bhkd", memory, matrix))


class MemoryExchanged(Memory):
    def forward(self, x, memory):
        second, first = self.both()
        q = torch.einsum("bqm,hmd->bhqd", x, self.Wq)
        k = torch.einsum("bkm,hmd->bhkd", memory, first)  # wrong: AS817 memory_exchanged
        return self.weigh(q, k, memory, second).transpose(1, 2).flatten(2)


def _memory(cls, B, H, Lq, Lk, Dk):
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def wrong_memory_exchanged(B, H, Lq, Lk, Dk):
    return _memory(MemoryExchanged, B, H, Lq, Lk, Dk)


def right_memory_exchanged(B, H, Lq, Lk, Dk):
    return _memory(Memory, B, H, Lq, Lk, Dk)


def reference_memory_exchanged(module, x, memory):
    q, k, v = (
        torch.stack([one @ matrix for matrix in weights], dim=1)
        for one, weights in ((x, module.Wq), (memory, module.Wk), (memory, module.Wv))
    )
    return merge(attend(q, k, v))


class Grouped(nn.Module):
    """Query heads in groups."""

    def __init__(self, heads, groups, size):
        super().__init__()
        self.heads, self.groups = heads, groups
        width = heads * groups * size
        self.to_q, self.to_out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.to_k, self.to_v = (nn.Linear(width, heads * size, bias=False) for _ in range(2))

    def memory(self, x):
        return self.to_k(x), self.to_v(x)

    def forward(self, x):
        q = self.to_q(x).unflatten(-1, (self.heads, self.groups, -1)).permute(0, 2, 3, 1, 4)
        k, v = (t.unflatten(-1, (self.heads, 1, -1)).permute(0, 2, 3, 1, 4) for t in self.memory(x))
        weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
        return self.to_out((weights @ v).permute(0, 3, 1, 2, 4).flatten(2))


class GroupedExchanged(Grouped):
    def memory(self, x):
        return self.to_v(x), self.to_k(x)  # wrong: AS817 grouped_exchanged


def _grouped(cls, B, Hkv, G, L, Dk):
    return cls(Hkv, G, Dk), (torch.randn(B, L, Hkv * G * Dk),), {}


def wrong_grouped_exchanged(B, Hkv, G, L, Dk):
    return _grouped(GroupedExchanged, B, Hkv, G, L, Dk)


def right_grouped_exchanged(B, Hkv, G, L, Dk):
    return _grouped(Grouped, B, Hkv, G, L, Dk)


def reference_grouped_exchanged(module, x):
    q, k, v = (x @ linear.weight.T for linear in (module.to_q, module.to_k, module.to_v))
    size = k.shape[-1] // module.heads
    joined = []
    for head in range(module.heads * module.groups):
        own = head // module.groups
        one, other, third = q[..., head * size :][..., :size], k[..., own * size :][..., :size], v[..., own * size :]
        joined.append(attend(one[:, None], other[:, None], third[:, None, :, :size])[:, 0])
    return torch.cat(joined, dim=-1) @ module.to_out.weight.T


class Head(nn.Module):
    """One head of a list."""

    def __init__(self, width, size):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, size, bias=False) for _ in range(3))

    def forward(self, x):
        q, k = self.query(x), self.key(x)
        return ((q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5).softmax(-1) @ self.value(x)


class TurnedHead(Head):
    def forward(self, x):
        k, v = self.query(x), self.value(x)
        q = self.key(x)  # wrong: AS817 heads_of_their_own
        return ((q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5).softmax(-1) @ v


class Heads(nn.Module):
    def __init__(self, head, width, heads):
        super().__init__()
        self.heads = nn.ModuleList(head(width, width // heads) for _ in range(heads))

    def forward(self, x):
        return torch.cat([head(x) for head in self.heads], dim=-1)


def wrong_heads_of_their_own(B, H, L, Dk):
    return Heads(TurnedHead, H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_heads_of_their_own(B, H, L, Dk):
    return Heads(Head, H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_heads_of_their_own(module, x):
    each = []
    for head in module.heads:
        q, k, v = (torch.einsum("bli,di->bld", x, one.weight)[:, None] for one in (head.query, head.key, head.value))
        each.append(attend(q, k, v)[:, 0])
    return torch.cat(each, dim=-1)
