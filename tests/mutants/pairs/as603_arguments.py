"""AS603: a layout operation mixes up the heads of an argument whose tokens lie along two axes, such as pages."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, join, split

PAGES = (
    {"B": 4, "Np": 6, "Ps": 5, "Hkv": 2, "G": 3, "Dk": 7},
    {"B": 7, "Np": 4, "Ps": 6, "Hkv": 3, "G": 2, "Dk": 5},
    {"B": 2, "Np": 5, "Ps": 7, "Hkv": 3, "G": 4, "Dk": 6},
)
FRAMES = (
    {"B": 4, "Lq": 6, "T": 3, "N": 5, "H": 2, "Dk": 7},
    {"B": 3, "Lq": 8, "T": 4, "N": 7, "H": 5, "Dk": 6},
    {"B": 5, "Lq": 7, "T": 2, "N": 9, "H": 3, "Dk": 4},
)
PAIRS = [
    ("AS603", "pages_flattened", *PAGES),
    ("AS603", "slots_before_heads", *PAGES),
    ("AS603", "memory_of_frames", *FRAMES),
]


def paged(query, pool_k, pool_v, table, read):
    keys, values = read(pool_k[table]), read(pool_v[table])
    group = query.shape[1] // keys.shape[1]
    keys, values = (t.repeat_interleave(group, dim=1) for t in (keys, values))
    scores = torch.einsum("bhd,bhld->bhl", query, keys) * query.shape[-1] ** -0.5
    return torch.einsum("bhl,bhld->bhd", scores.softmax(dim=-1), values)


def paged_right(query, pool_k, pool_v, table):
    return paged(query, pool_k, pool_v, table, lambda pages: pages.transpose(1, 2).flatten(2, 3))


def paged_wrong(query, pool_k, pool_v, table):
    def read(pages):
        B, count, heads, size, width = pages.shape
        return pages.reshape(B, heads, count * size, width)  # wrong: AS603 pages_flattened

    return paged(query, pool_k, pool_v, table, read)


def _paged(function, B, Np, Ps, Hkv, G, Dk):
    pool = (B * Np, Hkv, Ps, Dk)
    table = torch.randperm(B * Np).view(B, Np)
    return function, (torch.randn(B, Hkv * G, Dk), torch.randn(pool), torch.randn(pool), table), {}


def wrong_pages_flattened(B, Np, Ps, Hkv, G, Dk):
    return _paged(paged_wrong, B, Np, Ps, Hkv, G, Dk)


def right_pages_flattened(B, Np, Ps, Hkv, G, Dk):
    return _paged(paged_right, B, Np, Ps, Hkv, G, Dk)


def reference_pages_flattened(_, query, pool_k, pool_v, table):
    group = query.shape[1] // pool_k.shape[1]
    rows = []
    for row, pages in enumerate(table.tolist()):
        k, v = (torch.cat([pool[page] for page in pages], dim=1) for pool in (pool_k, pool_v))
        heads = [attention(query[row, h, None], k[h // group], v[h // group])[0] for h in range(query.shape[1])]
        rows.append(torch.stack(heads))
    return torch.stack(rows)


class PagedDecoder(nn.Module):
    """One step whose pages have their slots before their heads; each head of queries reads its group's keys."""

    def __init__(self, heads, shared, width):
        super().__init__()
        self.heads, self.shared = heads, shared
        self.q = nn.Linear(heads * width, heads * width)

    def tokens(self, pages):
        return pages.flatten(1, 2).transpose(1, 2)

    def forward(self, x, pool, table):
        q = self.q(x).view(x.shape[0], self.shared, self.heads // self.shared, -1)
        k, v = (self.tokens(pages[table]) for pages in pool.unbind(1))
        return F.scaled_dot_product_attention(q, k, v).flatten(1)


class PagedDecoderByReshape(PagedDecoder):
    def tokens(self, pages):
        B, count, size, heads, width = pages.shape
        return pages.reshape(B, heads, count * size, width)  # wrong: AS603 slots_before_heads


def _decoder(cls, B, Np, Ps, Hkv, G, Dk):
    table = torch.randperm(B * Np).view(B, Np)
    return cls(Hkv * G, Hkv, Dk), (torch.randn(B, Hkv * G * Dk), torch.randn(B * Np, 2, Ps, Hkv, Dk), table), {}


def wrong_slots_before_heads(B, Np, Ps, Hkv, G, Dk):
    return _decoder(PagedDecoderByReshape, B, Np, Ps, Hkv, G, Dk)


def right_slots_before_heads(B, Np, Ps, Hkv, G, Dk):
    return _decoder(PagedDecoder, B, Np, Ps, Hkv, G, Dk)


def reference_slots_before_heads(module, x, pool, table):
    queries, group = module.q(x).unflatten(-1, (module.heads, -1)), module.heads // module.shared
    rows = []
    for row, pages in enumerate(table.tolist()):
        k, v = (torch.cat([pool[page, part] for page in pages]).unbind(1) for part in (0, 1))
        heads = [attention(queries[row, h, None], k[h // group], v[h // group])[0] for h in range(module.heads)]
        rows.append(torch.cat(heads))
    return torch.stack(rows)


class FrameMemory(nn.Module):
    """Attends to the heads of earlier frames, which a cache keeps frame by frame."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_out = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def keys(self, frames):
        return frames.permute(0, 2, 1, 3, 4).flatten(2, 3)

    def forward(self, x, keys, values):
        """keys, values: B T H N Dk"""
        q = self.to_q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.keys(keys), values.permute(0, 2, 1, 3, 4).flatten(2, 3)
        weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
        return self.to_out((weights @ v).transpose(1, 2).flatten(2))


class FrameMemoryViewed(FrameMemory):
    def keys(self, frames):
        B, T, H, N, Dk = frames.shape
        return frames.view(B, H, T * N, Dk)  # wrong: AS603 memory_of_frames


def _frames(cls, B, Lq, T, N, H, Dk):
    memory = (torch.randn(B, T, H, N, Dk) for _ in range(2))
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), *memory), {}


def wrong_memory_of_frames(B, Lq, T, N, H, Dk):
    return _frames(FrameMemoryViewed, B, Lq, T, N, H, Dk)


def right_memory_of_frames(B, Lq, T, N, H, Dk):
    return _frames(FrameMemory, B, Lq, T, N, H, Dk)


def reference_memory_of_frames(module, x, keys, values):
    k, v = (torch.cat(t.unbind(1), dim=2) for t in (keys, values))
    return module.to_out(join(attention(split(module.to_q(x), module.heads), k, v)))
