"""Tokens of maps of rows and columns, in unusual orders."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, join, multihead, split

MAPS = ({"B": 2, "H": 3, "Dk": 8, "rows": 4, "columns": 7}, {"B": 4, "H": 5, "Dk": 6, "rows": 3, "columns": 2})
UNUSUAL = [
    ("column_by_column", *MAPS),
    ("numbered_in_one_line", *MAPS),
    ("near_in_the_sequence", *MAPS),
    ("pooled_in_a_transposed_map", *MAPS),
    ("blocks_of_the_sequence", *MAPS),
]


class Base(nn.Module):
    """Attention over a map with the channels first; `tokens` and `logits` are the variant's."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def tokens(self, image):
        return image.flatten(2).mT

    def logits(self, q, k):
        return q @ k.mT * q.shape[-1] ** -0.5

    def forward(self, image):
        x = self.tokens(image)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = self.logits(q, k).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


def _case(module, B, H, Dk, rows, columns):
    return module, (torch.randn(B, H * Dk, rows, columns),), {}


def _attended(module, x, bias=None):
    q, k, v = (split(part, module.heads) for part in module.qkv(x).chunk(3, dim=-1))
    return module.proj(join(attention(q, k, v, bias=bias)))


class ColumnByColumn(Base):
    """Tokens lie column by column, and so do their learned positions."""

    def __init__(self, width, heads, rows, columns):
        super().__init__(width, heads)
        self.of_row, self.of_column = nn.Embedding(rows, width), nn.Embedding(columns, width)

    def tokens(self, image):
        rows = image.shape[2]
        number = torch.arange(image[0, 0].numel())
        return image.mT.flatten(2).mT + self.of_row(number % rows) + self.of_column(number // rows)


def case_column_by_column(B, H, Dk, rows, columns):
    return _case(ColumnByColumn(H * Dk, H, rows, columns), B, H, Dk, rows, columns)


def reference_column_by_column(module, image):
    placed = image + module.of_row.weight.T[:, :, None] + module.of_column.weight.T[:, None]
    return _attended(module, torch.cat(placed.unbind(3), dim=2).mT)


class NumberedInOneLine(Base):
    """Sines and cosines of a token's number alone, whatever its row."""

    def tokens(self, image):
        x = image.flatten(2).mT
        angles = torch.arange(x.shape[1])[:, None] * 0.5 ** torch.arange(x.shape[2] // 2, dtype=torch.float64)
        return x + torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).to(x)


def case_numbered_in_one_line(B, H, Dk, rows, columns):
    return _case(NumberedInOneLine(H * Dk, H), B, H, Dk, rows, columns)


class NearInTheSequence(Base):
    """The bias falls with the distance in the sequence, whatever the rows; one head for each slope."""

    def logits(self, q, k):
        number = torch.arange(q.shape[2])
        slopes = 0.5 ** torch.arange(1, self.heads + 1)[:, None, None]
        return super().logits(q, k) - slopes * (number[:, None] - number).abs()


def case_near_in_the_sequence(B, H, Dk, rows, columns):
    return _case(NearInTheSequence(H * Dk, H), B, H, Dk, rows, columns)


def reference_near_in_the_sequence(module, image):
    number = torch.arange(image[0, 0].numel(), dtype=image.dtype)
    bias = [-(0.5 ** (head + 1)) * (number[:, None] - number).abs() for head in range(module.heads)]
    return _attended(module, image.flatten(2).mT, torch.stack(bias))


class PooledInATransposedMap(nn.Module):
    """Tokens lie column by column, and are folded into the transposed map to pool their keys."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.o = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, image):
        rows, columns = image.shape[2:]
        x = image.transpose(2, 3).flatten(2).mT
        few = F.avg_pool2d(x.mT.unflatten(-1, (columns, rows)), 2).flatten(2).mT
        k, v = self.kv(few).chunk(2, dim=-1)
        q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.q(x), k, v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def case_pooled_in_a_transposed_map(B, H, Dk, rows, columns):
    return _case(PooledInATransposedMap(H * Dk, H), B, H, Dk, rows, columns)


def reference_pooled_in_a_transposed_map(module, image):
    x = torch.cat(image.unbind(3), dim=2).mT
    patches = (
        image[..., : image.shape[2] // 2 * 2, : image.shape[3] // 2 * 2].unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
    )
    few = torch.einsum("bciyjx->bjic", patches).flatten(1, 2) / 4
    return module.o(multihead(module.q(x), *module.kv(few).chunk(2, dim=-1), module.heads))


class BlocksOfTheSequence(Base):
    """Tokens attend within blocks of the sequence, of three tokens each, that go across rows."""

    def logits(self, q, k):
        block = torch.arange(q.shape[2]) // 3
        return super().logits(q, k).masked_fill(block[:, None] != block, -torch.inf)


def case_blocks_of_the_sequence(B, H, Dk, rows, columns):
    return _case(BlocksOfTheSequence(H * Dk, H), B, H, Dk, rows, columns)


def reference_blocks_of_the_sequence(module, image):
    number = torch.arange(image[0, 0].numel())
    bias = torch.where((number // 3)[:, None] == number // 3, 0.0, -torch.inf).to(image)
    return _attended(module, image.flatten(2).mT, bias)
