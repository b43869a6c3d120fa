"""AS114: contexts are written into a tensor at some indices, whose heads are then merged without transposing back."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge

SIZES = ({"B": 2, "H": 3, "L": 7, "Dk": 5}, {"B": 4, "H": 2, "L": 9, "Dk": 3}, {"B": 3, "H": 5, "L": 8, "Dk": 4})
ACTIVE = 4
"""How many queries attend; the others get the mean of the values."""
CHUNK = 3
PAIRS = [
    ("AS114", "chosen_queries", *SIZES),
    ("AS114", "copied_queries", *SIZES),
    ("AS114", "written_in_chunks", *SIZES),
]


class RightChosen(nn.Module):
    """Only the queries with the largest norm attend, others in each head."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def merged(self, context):
        return context.transpose(1, 2).reshape(context.shape[0], context.shape[2], -1)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (one(x).view(batch, length, self.heads, -1).transpose(1, 2) for one in (self.q, self.k, self.v))
        rows, columns = torch.arange(batch)[:, None, None], torch.arange(self.heads)[None, :, None]
        active = q.norm(dim=-1).topk(ACTIVE, sorted=False).indices
        scores = q[rows, columns, active] @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        context = v.mean(dim=-2, keepdim=True).expand(v.shape).clone()
        context[rows, columns, active, :] = torch.softmax(scores, dim=-1) @ v
        return self.out(self.merged(context))


class WrongChosen(RightChosen):
    def merged(self, context):
        return context.reshape(context.shape[0], context.shape[2], -1)  # wrong: AS114 chosen_queries


def _module(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_chosen_queries(B, H, L, Dk):
    return _module(WrongChosen, B, H, L, Dk)


def right_chosen_queries(B, H, L, Dk):
    return _module(RightChosen, B, H, L, Dk)


def reference_chosen_queries(module, x):
    q, k, v = (heads(x, one, module.heads) for one in (module.q, module.k, module.v))
    norms = torch.sqrt((q**2).sum(-1))
    rank = (norms[..., :, None] < norms[..., None, :]).sum(-1)
    out = torch.where((rank < ACTIVE)[..., None], attend(q, k, v), v.mean(dim=2, keepdim=True))
    return merge(out, module.out)


class RightCopied(nn.Module):
    """The first tokens attend, in einsum; the rest keep their values."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def joined(self, y):
        return y.movedim(1, 2).flatten(2)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        first = torch.arange(ACTIVE)
        weights = (torch.einsum("bhid,bhjd->bhij", q[:, :, :ACTIVE], k) / q.shape[-1] ** 0.5).softmax(-1)
        y = v.index_copy(2, first, torch.einsum("bhij,bhjd->bhid", weights, v))
        return self.proj(self.joined(y))


class WrongCopied(RightCopied):
    def joined(self, y):
        return y.contiguous().view(len(y), -1, self.proj.in_features)  # wrong: AS114 copied_queries


def wrong_copied_queries(B, H, L, Dk):
    return _module(WrongCopied, B, H, L, Dk)


def right_copied_queries(B, H, L, Dk):
    return _module(RightCopied, B, H, L, Dk)


def reference_copied_queries(module, x):
    q, k, v = fused(x, module.qkv, module.heads)
    return merge(torch.cat((attend(q[:, :, :ACTIVE], k, v), v[:, :, ACTIVE:]), 2), module.proj)


class RightChunks(nn.Module):
    """A few queries at a time, with the kernel of torch."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_kv, self.to_out = (nn.Linear(width, n * width) for n in (1, 2, 1))

    def merge(self, out, x):
        return out.transpose(1, 2).reshape(x.shape)

    def forward(self, x):
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.to_q(x), *self.to_kv(x).chunk(2, -1))
        )
        out = q.new_empty(q.shape)
        for begin in range(0, x.shape[1], CHUNK):
            part = slice(begin, begin + CHUNK)
            out[:, :, part] = F.scaled_dot_product_attention(q[:, :, part], k, v)
        return self.to_out(self.merge(out, x))


class WrongChunks(RightChunks):
    def merge(self, out, x):
        return out.reshape(x.shape)  # wrong: AS114 written_in_chunks


def wrong_written_in_chunks(B, H, L, Dk):
    return _module(WrongChunks, B, H, L, Dk)


def right_written_in_chunks(B, H, L, Dk):
    return _module(RightChunks, B, H, L, Dk)


def reference_written_in_chunks(module, x):
    q, (k, v) = heads(x, module.to_q, module.heads), _keys_and_values(module, x)
    return merge(attend(q, k, v), module.to_out)


def _keys_and_values(module, x):
    both = torch.einsum("bli,oi->blo", x, module.to_kv.weight) + module.to_kv.bias
    width = x.shape[-1]
    return (torch.stack(t.split(width // module.heads, -1), 1) for t in (both[..., :width], both[..., width:]))
