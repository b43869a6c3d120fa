"""AS703: one call decodes step by step, each key overwrites the oldest slot, and is rotated by its slot."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, turned, visible

SIZES = (
    {"B": 4, "H": 5, "L": 11, "W": 3, "Dk": 6},
    {"B": 5, "H": 3, "L": 9, "W": 4, "Dk": 8},
    {"B": 6, "H": 7, "L": 13, "W": 5, "Dk": 4},
)
PAIRS = [
    ("AS703", "keys_by_slot", *SIZES),
    ("AS703", "newest_first", *SIZES),
    ("AS703", "list_of_slots", *SIZES),
]


def turn(x, position):
    """Feature i is paired with feature i + Dk/2."""
    dim = x.shape[-1]
    angle = position * 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class RightRing(nn.Module):
    """Slots are written in place."""

    def __init__(self, width, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def place_of_key(self, step):
        return step

    def forward(self, x):
        B, L, D = x.shape
        keys = x.new_zeros(B, self.heads, self.window, D // self.heads)
        values = torch.zeros_like(keys)
        outputs = []
        for step in range(L):
            q, k, v = (
                t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for t in self.qkv(x[:, step : step + 1]).chunk(3, dim=-1)
            )
            q, k = turn(q, step), turn(k, self.place_of_key(step))
            slot = step % self.window
            keys[:, :, slot] = k[:, :, 0]
            values[:, :, slot] = v[:, :, 0]
            n = min(step + 1, self.window)
            out = F.scaled_dot_product_attention(q, keys[:, :, :n], values[:, :, :n])
            outputs.append(out.transpose(1, 2).flatten(2))
        return self.out(torch.cat(outputs, dim=1))


class RingBySlot(RightRing):
    def place_of_key(self, step):
        return step % self.window  # wrong: AS703 keys_by_slot


class RightNewestFirst(nn.Module):
    """The newest key comes first, and the last one falls out."""

    def __init__(self, dim, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)

    def place(self, step):
        return step

    def forward(self, x):
        recent_k = recent_v = x.new_zeros(x.shape[0], self.heads, 0, x.shape[2] // self.heads)
        outputs = []
        for step, token in enumerate(x.unbind(1)):
            q, k, v = (p(token).unflatten(-1, (self.heads, 1, -1)) for p in (self.q_proj, self.k_proj, self.v_proj))
            recent_k = torch.cat((turn(k, self.place(step)), recent_k), dim=2)[:, :, : self.window]
            recent_v = torch.cat((v, recent_v), dim=2)[:, :, : self.window]
            scores = turn(q, step) @ recent_k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            outputs.append(self.o_proj((scores.softmax(dim=-1) @ recent_v).flatten(1)))
        return torch.stack(outputs, dim=1)


class NewestFirstBySlot(RightNewestFirst):
    def place(self, step):
        return min(step, self.window - 1)  # wrong: AS703 newest_first


class RightSlots(RightNewestFirst):
    """The slots are a list."""

    def forward(self, x):
        slots, outputs = [], []
        for step, token in enumerate(x.unbind(1)):
            q, k, v = (p(token).unflatten(-1, (self.heads, -1)) for p in (self.q_proj, self.k_proj, self.v_proj))
            entry = (turn(k, self.place(step)), v)
            if len(slots) < self.window:
                slots.append(entry)
            else:
                slots[step % self.window] = entry
            keys, values = (torch.stack(part, dim=2) for part in zip(*slots, strict=True))
            sim = torch.einsum("bhd,bhnd->bhn", turn(q, step), keys) * q.shape[-1] ** -0.5
            outputs.append(torch.einsum("bhn,bhnd->bhd", sim.softmax(dim=-1), values).flatten(1))
        return self.o_proj(torch.stack(outputs, dim=1))


class SlotsBySlot(RightSlots):
    def place(self, step):
        return step % self.window  # wrong: AS703 list_of_slots


def _case(cls, B, H, L, W, Dk):
    return cls(H * Dk, H, W), (torch.randn(B, L, H * Dk),), {}, ["causal", "window=W", "rope=half"]


def wrong_keys_by_slot(B, H, L, W, Dk):
    return _case(RingBySlot, B, H, L, W, Dk)


def right_keys_by_slot(B, H, L, W, Dk):
    return _case(RightRing, B, H, L, W, Dk)


def reference_keys_by_slot(module, x):
    place, L = torch.arange(x.shape[1]), x.shape[1]
    q, k, v = fused(x, module.qkv, module.heads)
    near = visible(L, L) & (place[:, None] - place < module.window)
    return merge(attend(turned(q, place), turned(k, place), v, near), module.out)


def wrong_newest_first(B, H, L, W, Dk):
    return _case(NewestFirstBySlot, B, H, L, W, Dk)


def right_newest_first(B, H, L, W, Dk):
    return _case(RightNewestFirst, B, H, L, W, Dk)


def reference_newest_first(module, x):
    place, L = torch.arange(x.shape[1]), x.shape[1]
    q, k, v = (heads(x, p, module.heads) for p in (module.q_proj, module.k_proj, module.v_proj))
    near = visible(L, L) & (place[:, None] - place < module.window)
    return merge(attend(turned(q, place), turned(k, place), v, near), module.o_proj)


def wrong_list_of_slots(B, H, L, W, Dk):
    return _case(SlotsBySlot, B, H, L, W, Dk)


def right_list_of_slots(B, H, L, W, Dk):
    return _case(RightSlots, B, H, L, W, Dk)


reference_list_of_slots = reference_newest_first
