"""One query that attends to more and more keys: a learned one, that of a question, or that of the last token."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, join, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 3, "L": 9, "Dk": 7})
CROSS = ({"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 6}, {"B": 3, "H": 2, "Lq": 6, "Lk": 9, "Dk": 8})
GROUPS = ({"B": 6, "Hkv": 3, "G": 2, "L": 9, "W": 4, "Dk": 5}, {"B": 4, "Hkv": 2, "G": 3, "L": 10, "W": 7, "Dk": 5})
UNUSUAL = [
    ("summaries_by_a_learned_query", *SIZES),
    ("question_at_each_frame", *CROSS),
    ("groups_read_their_block", *GROUPS),
]


class Summaries(nn.Module):
    """A learned query reads each beginning of the sequence."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.query = nn.Parameter(torch.randn(n_heads, 1, width // n_heads))
        self.kv = nn.Linear(width, 2 * width)

    def forward(self, x):
        n_heads = self.query.shape[0]
        k, v = (t.unflatten(-1, (n_heads, -1)).transpose(1, 2) for t in self.kv(x).chunk(2, dim=-1))
        q = self.query.expand(x.shape[0], -1, -1, -1)
        ends = range(1, x.shape[1] + 1)
        read = [F.scaled_dot_product_attention(q, k[:, :, :end], v[:, :, :end]) for end in ends]
        return torch.cat(read, dim=2).transpose(1, 2).flatten(2)


def case_summaries_by_a_learned_query(B, H, L, Dk):
    return Summaries(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


class Watching(nn.Module):
    """The tokens of a question read all frames so far, at each frame."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def heads(self, t):
        return t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def forward(self, question, frames):
        q = self.heads(self.q(question))
        kept, answers = [], []
        for frame in frames.split(1, dim=1):
            kept.append(frame)
            k, v = (self.heads(t) for t in self.kv(torch.cat(kept, dim=1)).chunk(2, dim=-1))
            weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-1)
            answers.append(self.out((weights @ v).transpose(1, 2).flatten(2)))
        return torch.stack(answers)


def case_question_at_each_frame(B, H, Lq, Lk, Dk):
    return Watching(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


class Blocks(nn.Module):
    """Each token reads those of its block up to itself; a group of query heads shares keys, one step at a time."""

    def __init__(self, width, kv_heads, group, block):
        super().__init__()
        self.kv_heads, self.group, self.block = kv_heads, group, block
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width // group)

    def forward(self, x):
        keys, values = x.new_zeros(2, x.shape[0], self.kv_heads, 0, x.shape[2] // self.kv_heads // self.group)
        contexts = []
        for step, token in enumerate(x.split(1, dim=1)):
            q = self.q(token).unflatten(-1, (self.kv_heads, self.group, -1)).permute(0, 2, 3, 1, 4)
            k, v = self.kv(token).unflatten(-1, (2, self.kv_heads, -1)).permute(2, 0, 3, 1, 4)
            keys, values = torch.cat((keys, k), dim=2), torch.cat((values, v), dim=2)
            k, v = (cached[:, :, step // self.block * self.block :] for cached in (keys, values))
            weights = (torch.einsum("bhgid,bhjd->bhgij", q, k) / q.shape[-1] ** 0.5).softmax(dim=-1)
            contexts.append(torch.einsum("bhgij,bhjd->bihgd", weights, v).flatten(2))
        return torch.cat(contexts, dim=1)


def case_groups_read_their_block(B, Hkv, G, L, W, Dk):
    return Blocks(Hkv * G * Dk, Hkv, G, W), (torch.randn(B, L, Hkv * G * Dk),), {}, ["causal"]


def reference_groups_read_their_block(module, x):
    k, v = (split(part, module.kv_heads).repeat_interleave(module.group, 1) for part in module.kv(x).chunk(2, -1))
    at = torch.arange(x.shape[1])
    keep = (at <= at[:, None]) & (at // module.block == at[:, None] // module.block)
    return join(attention(split(module.q(x), module.kv_heads * module.group), k, v, keep=keep))
