"""Rotations by positions that aren't those of a row of tokens in one call, or that a cache keeps in another order."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.unusual.positions import RotatedHalves

SIZES = ({"B": 2, "H": 4, "L": 11, "Dk": 12}, {"B": 5, "H": 3, "L": 9, "Dk": 8})
RINGS = ({"B": 2, "H": 3, "L": 9, "Dk": 12, "W": 4}, {"B": 5, "H": 4, "L": 7, "Dk": 8, "W": 3})
PREFIXES = ({"B": 5, "H": 3, "Lp": 4, "L": 7, "Dk": 10}, {"B": 7, "H": 5, "Lp": 6, "L": 3, "Dk": 8})
UNUSUAL = [
    ("summary_before_a_grid", *SIZES),
    ("registers_without_position", *SIZES),
    ("caption_without_position", *SIZES),
    ("numbered_again", *SIZES),
    ("keys_in_a_ring", *RINGS),
    ("prefix_in_parts_of_the_batch", *PREFIXES),
]


class SummaryBeforeAGrid(RotatedHalves):
    """A learned token without position, then tokens in rows of three: half of a head has the row, half the column."""

    def __init__(self, heads, depth):
        super().__init__(heads, depth)
        self.summary = nn.Parameter(torch.randn(heads * depth))

    def at(self, x):
        cell = torch.arange(x.shape[-2] - 1)
        places = (torch.cat((cell.new_zeros(1), axis + 1)) for axis in (cell // 3, cell % 3))
        return torch.cat([self.rotate(*pair) for pair in zip(x.chunk(2, -1), places, strict=True)], -1)

    def place(self, q, k):
        return self.at(q), self.at(k)

    def forward(self, x):
        return super().forward(torch.cat((self.summary.expand(len(x), 1, -1), x), dim=1))


class Registers(RotatedHalves):
    """The first four tokens have no position."""

    def positions(self, count):
        return (torch.arange(count) - 3).clamp(min=0)

    def place(self, q, k):
        positions = self.positions(q.shape[-2])
        return self.rotate(q, positions), self.rotate(k, positions)


class Captioned(Registers):
    """The last three tokens have no position."""

    def positions(self, count):
        return torch.arange(count) * (torch.arange(count) < count - 3)


class NumberedAgain(Registers):
    """Two sequences stand one after the other."""

    def positions(self, count):
        return torch.cat((torch.arange(count // 2), torch.arange(count - count // 2)))


def _case(module, B, H, L, Dk):
    return module(H, Dk), (torch.randn(B, L, H * Dk),), {}, ["rope=half"]


def case_summary_before_a_grid(B, H, L, Dk):
    return _case(SummaryBeforeAGrid, B, H, L, Dk)


def case_registers_without_position(B, H, L, Dk):
    return _case(Registers, B, H, L, Dk)


def case_caption_without_position(B, H, L, Dk):
    return _case(Captioned, B, H, L, Dk)


def case_numbered_again(B, H, L, Dk):
    return _case(NumberedAgain, B, H, L, Dk)


class Ring(RotatedHalves):
    """Token after token; the newest key takes the place of the oldest one."""

    def __init__(self, heads, depth, slots):
        super().__init__(heads, depth)
        self.slots = slots

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, self.depth)).permute(2, 0, 3, 1, 4)
        keys, values = k[:, :, :0], v[:, :, :0]
        out = []
        for step in range(x.shape[1]):
            place = torch.tensor([step])
            new, slot = self.rotate(k[:, :, step : step + 1], place), step % self.slots
            keys = torch.cat((keys[:, :, :slot], new, keys[:, :, slot + 1 :]), dim=2)
            values = torch.cat((values[:, :, :slot], v[:, :, step : step + 1], values[:, :, slot + 1 :]), dim=2)
            query = self.rotate(q[:, :, step : step + 1], place)
            out.append(F.scaled_dot_product_attention(query, keys, values).transpose(1, 2).flatten(2))
        return self.proj(torch.cat(out, dim=1))


def case_keys_in_a_ring(B, H, L, Dk, W):
    return Ring(H, Dk, W), (torch.randn(B, L, H * Dk),), {}, ["causal", "window=W", "rope=half"]


class InParts(RotatedHalves):
    """The prefix, then the other tokens, each in two parts of the batch; keys are cached without rotation."""

    def __init__(self, heads, depth, prefix):
        super().__init__(heads, depth)
        self.prefix = prefix

    def part(self, x, cache, start):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, self.depth)).movedim(-3, 0)
        end = start + x.shape[0]
        cache[0][start:end], cache[1][start:end] = k, v
        q, k, v = (t.permute(1, 2, 0, 3) for t in (q, cache[0][:end].clone(), cache[1][:end].clone()))
        scores = self.logits(self.rotate(q, torch.arange(start, end)), self.rotate(k, torch.arange(end)))
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(start + 1)
        context = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1) @ v
        return self.proj(context.permute(2, 0, 1, 3).flatten(2))

    def forward(self, x):
        halves = x.split((x.shape[1] + 1) // 2, dim=1)
        caches = [[t.new_zeros(*t.shape[:2], self.heads, self.depth) for _ in range(2)] for t in halves]
        runs = [(0, self.prefix), (self.prefix, x.shape[0])]
        out = [
            torch.cat([self.part(t[a:b], cache, a) for t, cache in zip(halves, caches, strict=True)], 1)
            for a, b in runs
        ]
        return torch.cat(out)


def case_prefix_in_parts_of_the_batch(B, H, Lp, L, Dk):
    return InParts(H, Dk, Lp), (torch.randn(Lp + L, B, H * Dk),), {}, ["causal", "seq-first", "rope=half"]
