"""AS118: a table is cut or indexed by the places in the batch, so equal sequences give different results."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, project

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 8, "Dk": 4})
PAIRS = [
    ("AS118", "learned_positions_of_batch", *SIZES),
    ("AS118", "waves_of_batch_first", *SIZES),
    ("AS118", "counted_along_batch", *SIZES),
    ("AS118", "query_of_each_place", *SIZES),
    ("AS118", "positions_run_through_batch", *SIZES),
]


class RightLearned(nn.Module):
    """A block with learned positions, whose attention is torch's own."""

    def __init__(self, dim, heads):
        super().__init__()
        self.positions = nn.Embedding(40, dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def places(self, x):
        return torch.arange(x.shape[1])

    def forward(self, x):
        x = x + self.positions(self.places(x))
        return x + self.attn(x, x, x, need_weights=False)[0]


class WrongLearned(RightLearned):
    def places(self, x):
        return torch.arange(x.shape[0])[:, None]  # wrong: AS118 learned_positions_of_batch


def _learned_positions_of_batch(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_learned_positions_of_batch(B, H, L, Dk):
    return _learned_positions_of_batch(WrongLearned, B, H, L, Dk)


def right_learned_positions_of_batch(B, H, L, Dk):
    return _learned_positions_of_batch(RightLearned, B, H, L, Dk)


def reference_learned_positions_of_batch(module, x):
    x = x + module.positions.weight[: x.shape[1]]
    joint = nn.Linear(1, 1)
    joint.weight, joint.bias = module.attn.in_proj_weight, module.attn.in_proj_bias
    return x + merge(attend(*fused(x, joint, module.attn.num_heads)), module.attn.out_proj)


def waves(length, width):
    """Length, width: sines, then cosines."""
    angles = torch.arange(length)[:, None] / 100.0 ** (torch.arange(width // 2) / width)
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


class RightWaves(nn.Module):
    """Two layers over padded sequences of tokens; the table is made for sequences before the batch."""

    def __init__(self, words, width, heads):
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(words, width)
        self.register_buffer("table", waves(60, width)[:, None])
        self.layers = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(2))

    def positions(self, x):
        return self.table[: x.size(1)].transpose(0, 1)

    def forward(self, ids, keep):
        x = self.embed(ids)
        x = x + self.positions(x)
        for layer in self.layers:
            q, k, v = layer(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
            scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.size(-1) ** -0.5
            weights = scores.masked_fill(~keep[:, None, None], -torch.inf).softmax(dim=-1)
            x = x + torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)
        return x


class WrongWaves(RightWaves):
    def positions(self, x):
        return self.table[: x.size(0)]  # wrong: AS118 waves_of_batch_first


def _waves_of_batch_first(cls, B, H, L, Dk):
    keep = torch.arange(L) < (L - torch.arange(B) % (L - 2))[:, None]
    return cls(30, H * Dk, H), (torch.arange(B * L).view(B, L) * 7 % 30, keep), {}


def wrong_waves_of_batch_first(B, H, L, Dk):
    return _waves_of_batch_first(WrongWaves, B, H, L, Dk)


def right_waves_of_batch_first(B, H, L, Dk):
    return _waves_of_batch_first(RightWaves, B, H, L, Dk)


def reference_waves_of_batch_first(module, ids, keep):
    x = module.embed.weight[ids] + module.table[: ids.shape[1], 0]
    for layer in module.layers:
        x = x + merge(attend(*fused(x, layer, module.heads), keep[:, None, None]))
    return x


def with_places(x, places):
    table = torch.zeros(len(places), x.shape[-1], dtype=x.dtype)
    table[:, ::2] = torch.sin(places[:, None] / 9.0 ** torch.arange(table[:, ::2].shape[1]))
    return x, table


def attend_counted(x, w_qkv, num_heads):
    """Attention of a function that computes its positions itself."""
    x, table = with_places(x, torch.arange(x.shape[1]))
    return attend_over(x + table, w_qkv, num_heads)


def attend_counted_along_batch(x, w_qkv, num_heads):
    x, table = with_places(x, torch.arange(x.shape[0]))  # wrong: AS118 counted_along_batch
    return attend_over(x + table[:, None], w_qkv, num_heads)


def attend_over(x, w_qkv, num_heads):
    q, k, v = (t.unflatten(-1, (num_heads, -1)).transpose(1, 2) for t in (x @ w_qkv).chunk(3, dim=-1))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def _counted_along_batch(function, B, H, L, Dk):
    D = H * Dk
    return function, (torch.randn(B, L, D), torch.randn(D, 3 * D) / D**0.5, H), {}


def wrong_counted_along_batch(B, H, L, Dk):
    return _counted_along_batch(attend_counted_along_batch, B, H, L, Dk)


def right_counted_along_batch(B, H, L, Dk):
    return _counted_along_batch(attend_counted, B, H, L, Dk)


def reference_counted_along_batch(function, x, w_qkv, num_heads):
    pairs = x.shape[-1] - x.shape[-1] // 2
    table = torch.zeros(x.shape[1:], dtype=x.dtype)
    for position in range(x.shape[1]):
        for pair in range(pairs):
            table[position, 2 * pair] = torch.tensor(position / 9.0**pair).sin()
    joint = nn.Linear(1, 1, bias=False)
    joint.weight = nn.Parameter(w_qkv.T)
    return merge(attend(*fused(x + table, joint, num_heads)))


class RightPool(nn.Module):
    """Pools the tokens by learned queries."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.queries = nn.Parameter(torch.randn(30, width))
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def of_batch(self, x):
        return self.queries.expand(x.size(0), -1, -1)

    def forward(self, x):
        q, k, v = (
            f(t).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for f, t in ((self.q, self.of_batch(x)), (self.k, x), (self.v, x))
        )
        scores = q @ k.mT / q.size(-1) ** 0.5
        return (scores.softmax(-1) @ v).mean(2).flatten(1)


class WrongPool(RightPool):
    def of_batch(self, x):
        return self.queries[: x.size(0)].unsqueeze(1)  # wrong: AS118 query_of_each_place


def _query_of_each_place(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_query_of_each_place(B, H, L, Dk):
    return _query_of_each_place(WrongPool, B, H, L, Dk)


def right_query_of_each_place(B, H, L, Dk):
    return _query_of_each_place(RightPool, B, H, L, Dk)


def reference_query_of_each_place(module, x):
    queries = project(module.queries, module.q).unflatten(-1, (module.heads, -1)).transpose(0, 1)
    k, v = heads(x, module.k, module.heads), heads(x, module.v, module.heads)
    return merge(attend(queries[None].expand(len(x), -1, -1, -1), k, v)).mean(1)


class RightFlat(nn.Module):
    """Tokens are projected as one long list; one head, with relative decay left to the model."""

    def __init__(self, width):
        super().__init__()
        self.places = nn.Parameter(torch.randn(500, width))
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(width, width) / width**0.5) for _ in range(3))

    def of_tokens(self, batch, length):
        return self.places[:length].repeat(batch, 1)

    def forward(self, x):
        B, L, D = x.shape
        flat = x.reshape(B * L, D) + self.of_tokens(B, L)
        q, k, v = ((flat @ w).view(B, L, D) for w in (self.wq, self.wk, self.wv))
        return torch.bmm((torch.bmm(q, k.transpose(1, 2)) / D**0.5).softmax(-1), v)


class WrongFlat(RightFlat):
    def of_tokens(self, batch, length):
        return self.places[: batch * length]  # wrong: AS118 positions_run_through_batch


def _positions_run_through_batch(cls, B, H, L, Dk):
    return cls(H * Dk), (torch.randn(B, L, H * Dk),), {}


def wrong_positions_run_through_batch(B, H, L, Dk):
    return _positions_run_through_batch(WrongFlat, B, H, L, Dk)


def right_positions_run_through_batch(B, H, L, Dk):
    return _positions_run_through_batch(RightFlat, B, H, L, Dk)


def reference_positions_run_through_batch(module, x):
    x = x + module.places[: x.shape[1]]
    q, k, v = ((x @ w)[:, None] for w in (module.wq, module.wk, module.wv))
    return attend(q, k, v)[:, 0]
