"""AS908: positions that are looked up in a table start again at 0 in each step of a loop with a cache."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import causal

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 3, "L": 5, "Dk": 4})
PAIRS = [
    ("AS908", "steps_from_zero", *SIZES),
    ("AS908", "table_rows_again", *SIZES),
    ("AS908", "blocks_from_zero", *SIZES),
]
PROMPT = 2


class Cached(nn.Module):
    """Attention of new tokens to themselves and to those in a cache."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, cache):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        mask = torch.ones(q.size(2), k.size(2), dtype=torch.bool).tril(k.size(2) - q.size(2))
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(context.transpose(1, 2).flatten(2)), (k, v)


class Decoder(nn.Module):
    """A prompt at once, and then one token after the other."""

    def __init__(self, width, heads):
        super().__init__()
        self.wpe = nn.Embedding(64, width)
        self.attention = Cached(width, heads)

    def positions(self, first, count):
        return torch.arange(first, first + count)

    def step(self, x, cache):
        seen = 0 if cache is None else cache[0].size(2)
        return self.attention(x + self.wpe(self.positions(seen, x.size(1))), cache)

    def forward(self, x):
        result, cache = self.step(x[:, :PROMPT], None)
        results = [result]
        for token in range(PROMPT, x.size(1)):
            result, cache = self.step(x[:, token : token + 1], cache)
            results.append(result)
        return torch.cat(results, 1)


class FromZero(Decoder):
    def step(self, x, cache):
        return self.attention(x + self.wpe(torch.arange(x.size(1))), cache)  # wrong: AS908 steps_from_zero


class Tabled(Decoder):
    """Positions are rows of a parameter."""

    def __init__(self, width, heads):
        super().__init__(width, heads)
        del self.wpe
        self.table = nn.Parameter(torch.randn(64, width))

    def step(self, x, cache):
        seen = 0 if cache is None else cache[0].size(2)
        placed = x + self.table[self.positions(seen, x.size(1))]
        return self.attention(placed, cache)


class TabledAgain(Tabled):
    def step(self, x, cache):
        rows = self.table[torch.arange(x.size(1))]  # wrong: AS908 table_rows_again
        return self.attention(x + rows, cache)


class InBlocks(Decoder):
    """Blocks of three tokens, the first of four."""

    def forward(self, x):
        results, cache = [], None
        for block in (x[:, :4], *x[:, 4:].split(3, 1)):
            result, cache = self.step(block, cache)
            results.append(result)
        return torch.cat(results, 1)


class BlocksFromZero(InBlocks):
    def step(self, x, cache):
        placed = self.wpe(torch.arange(x.size(1))) + x  # wrong: AS908 blocks_from_zero
        return self.attention(placed, cache)


def _case(kind, B, H, L, Dk):
    return kind(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_steps_from_zero(B, H, L, Dk):
    return _case(FromZero, B, H, L, Dk)


def right_steps_from_zero(B, H, L, Dk):
    return _case(Decoder, B, H, L, Dk)


def wrong_table_rows_again(B, H, L, Dk):
    return _case(TabledAgain, B, H, L, Dk)


def right_table_rows_again(B, H, L, Dk):
    return _case(Tabled, B, H, L, Dk)


def wrong_blocks_from_zero(B, H, L, Dk):
    return _case(BlocksFromZero, B, H, L, Dk)


def right_blocks_from_zero(B, H, L, Dk):
    return _case(InBlocks, B, H, L, Dk)


def _at_once(module, x, table):
    x = x + table[: x.size(1)]
    q, k, v = (t.unflatten(-1, (module.attention.heads, -1)) for t in module.attention.qkv(x).chunk(3, -1))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.size(-1) ** 0.5
    weights = scores.masked_fill(~causal(x.size(1), x.size(1)), -torch.inf).softmax(-1)
    return module.attention.out(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2))


def reference_steps_from_zero(module, x):
    return _at_once(module, x, module.wpe.weight)


def reference_table_rows_again(module, x):
    return _at_once(module, x, module.table)


def reference_blocks_from_zero(module, x):
    return _at_once(module, x, module.wpe.weight)
