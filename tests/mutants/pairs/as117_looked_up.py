"""AS117: sequences get the memories that an index names for others."""

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 3, "L": 9, "Dk": 4}, {"B": 6, "H": 2, "L": 8, "Dk": 5})
PAIRS = [("AS117", "memory_rolled", *SIZES)]


def _order(B):
    return torch.randperm(B, generator=torch.Generator().manual_seed(B))


class Memories(nn.Module):
    """Cross-attention to the memory that an index names, of several that were encoded before."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)

    def pick(self, memories, which):
        return torch.index_select(memories, 0, which)

    def forward(self, x, memories, which):
        k, v = self.kv(self.pick(memories, which)).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)) for t in (self.q(x), k, v))
        weights = torch.einsum("bihd,bjhd->bhij", q, k).div(q.shape[-1] ** 0.5).softmax(-1)
        return torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)


class MemoriesRolled(Memories):
    def pick(self, memories, which):
        return torch.index_select(memories, 0, which).roll(1, dims=0)  # wrong: AS117 memory_rolled


def _memories(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(B + 1, L + 2, H * Dk), _order(B + 1)[:B]), {}


def wrong_memory_rolled(B, H, L, Dk):
    return _memories(MemoriesRolled, B, H, L, Dk)


def right_memory_rolled(B, H, L, Dk):
    return _memories(Memories, B, H, L, Dk)


def reference_memory_rolled(module, x, memories, which):
    k, v = (torch.einsum("bli,oi->blo", memories, module.kv.weight) + module.kv.bias).chunk(2, -1)
    k, v = (torch.stack([t[one] for one in which.tolist()]) for t in (k, v))
    k, v = (torch.stack(t.chunk(module.n_heads, -1), 1) for t in (k, v))
    return merge(attend(heads(x, module.q, module.n_heads), k, v))
