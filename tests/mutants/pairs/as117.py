"""AS117: an element of the batch is computed with another element's mask, lengths or table."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, turned, visible

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 8, "Dk": 4})
ONE_HEAD = ({"B": 4, "L": 7, "Dk": 6}, {"B": 5, "L": 9, "Dk": 8}, {"B": 6, "L": 8, "Dk": 5})
PAIRS = [
    ("AS117", "documents_of_first_row", *SIZES),
    ("AS117", "lengths_tiled", *SIZES),
    ("AS117", "block_table_of_first", *SIZES),
    ("AS117", "mask_meets_heads", *ONE_HEAD),
    ("AS117", "slot_of_first", *SIZES),
    ("AS117", "graph_mask_repeated_by_cat", *SIZES),
    ("AS117", "position_ids_of_first", *SIZES),
]


def lengths_of(B, L):
    return L - torch.arange(B) % (L - 2)


class RightPacked(nn.Module):
    """Packed documents: a token sees its own document up to itself."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wqkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.wo = nn.Linear(d_model, d_model, bias=False)

    def same_document(self, ids):
        return ids[:, :, None] == ids[:, None, :]

    def forward(self, x, ids):
        B, L, D = x.shape
        q, k, v = (t.view(B, L, self.n_heads, D // self.n_heads).transpose(1, 2) for t in self.wqkv(x).split(D, dim=-1))
        seen = self.same_document(ids) & torch.ones(L, L, dtype=torch.bool).tril()
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen.unsqueeze(1))
        return self.wo(y.transpose(1, 2).reshape(B, L, D))


class WrongPacked(RightPacked):
    def same_document(self, ids):
        row = ids[0]  # wrong: AS117 documents_of_first_row
        return (row[:, None] == row[None, :]).expand(len(ids), -1, -1)


def _documents_of_first_row(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), (torch.arange(L) + torch.arange(B)[:, None]) // 3), {}


def wrong_documents_of_first_row(B, H, L, Dk):
    return _documents_of_first_row(WrongPacked, B, H, L, Dk)


def right_documents_of_first_row(B, H, L, Dk):
    return _documents_of_first_row(RightPacked, B, H, L, Dk)


def reference_documents_of_first_row(module, x, ids):
    q, k, v = fused(x, module.wqkv, module.n_heads)
    keep = torch.stack([torch.tensor([[i == j for j in row] for i in row]) for row in ids.tolist()])
    return merge(attend(q, k, v, keep[:, None] & visible(x.shape[1], x.shape[1])), module.wo)


def folded(x, num_heads):
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2).flatten(0, 1)


def attend_folded(queries, keys, values, valid, num_heads):
    q, k, v = folded(queries, num_heads), folded(keys, num_heads), folded(values, num_heads)
    scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.size(-1))
    hidden = torch.arange(k.size(1)) >= valid[:, None]
    context = scores.masked_fill(hidden[:, None, :], -1e9).softmax(dim=-1).bmm(v)
    return context.unflatten(0, (-1, num_heads)).transpose(1, 2).flatten(2)


def attend_repeated(queries, keys, values, lengths, num_heads):
    return attend_folded(queries, keys, values, lengths.repeat_interleave(num_heads), num_heads)


def attend_tiled(queries, keys, values, lengths, num_heads):
    lengths = lengths.repeat(num_heads)  # wrong: AS117 lengths_tiled
    return attend_folded(queries, keys, values, lengths, num_heads)


def _lengths_tiled(function, B, H, L, Dk):
    return function, (*(torch.randn(B, L, H * Dk) for _ in range(3)), lengths_of(B, L), H), {}


def wrong_lengths_tiled(B, H, L, Dk):
    return _lengths_tiled(attend_tiled, B, H, L, Dk)


def right_lengths_tiled(B, H, L, Dk):
    return _lengths_tiled(attend_repeated, B, H, L, Dk)


def reference_lengths_tiled(function, queries, keys, values, lengths, num_heads):
    q, k, v = (torch.stack(x.chunk(num_heads, -1), 1) for x in (queries, keys, values))
    keep = torch.tensor([[key < length for key in range(k.shape[2])] for length in lengths.tolist()])
    return merge(attend(q, k, v, keep[:, None, None]))


class RightPaged(nn.Module):
    """One step of decoding, whose cache is in pages that sequences share by a table."""

    def __init__(self, heads, width):
        super().__init__()
        self.out = nn.Linear(heads * width, heads * width)

    def pages(self, tables):
        return tables

    def forward(self, query, key_pages, value_pages, tables, lengths):
        pages = self.pages(tables)
        k, v = (pool[pages].flatten(-4, -3).expand(len(query), -1, -1, -1) for pool in (key_pages, value_pages))
        scores = torch.einsum("bhd,bkhd->bhk", query, k) * query.size(-1) ** -0.5
        hidden = torch.arange(k.size(1)) >= lengths[:, None]
        weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
        return self.out(torch.einsum("bhk,bkhd->bhd", weights, v).flatten(1))


class WrongPaged(RightPaged):
    def pages(self, tables):
        return tables[:1]  # wrong: AS117 block_table_of_first


def _block_table_of_first(cls, B, H, L, Dk):
    tables = torch.randperm(2 * B, generator=torch.Generator().manual_seed(1)).view(B, 2)
    pools = [torch.randn(2 * B, L, H, Dk) for _ in range(2)]
    return cls(H, Dk), (torch.randn(B, H, Dk), *pools, tables, lengths_of(B, 2 * L)), {}


def wrong_block_table_of_first(B, H, L, Dk):
    return _block_table_of_first(WrongPaged, B, H, L, Dk)


def right_block_table_of_first(B, H, L, Dk):
    return _block_table_of_first(RightPaged, B, H, L, Dk)


def reference_block_table_of_first(module, query, key_pages, value_pages, tables, lengths):
    contexts = []
    for q, table, length in zip(query, tables.tolist(), lengths.tolist(), strict=True):
        k, v = (torch.cat([pool[page] for page in table])[:length].transpose(0, 1) for pool in (key_pages, value_pages))
        contexts.append(attend(q[None, :, None], k[None], v[None]).flatten())
    return torch.stack(contexts) @ module.out.weight.T + module.out.bias


class RightAsManyHeads(nn.Module):
    """The number of heads is an argument, so it may be the size of the batch."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k = nn.Linear(width, width, bias=False)
        self.to_v = nn.Linear(width, width, bias=False)

    def for_heads(self, allowed):
        return allowed[:, None]

    def forward(self, x, allowed):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)) for f in (self.to_q, self.to_k, self.to_v))
        sim = torch.einsum("bihd,bjhd->bhij", q, k) * q.size(-1) ** -0.5
        sim = torch.where(self.for_heads(allowed), sim, -torch.inf)
        return torch.einsum("bhij,bjhd->bihd", sim.softmax(-1), v).flatten(2)


class WrongAsManyHeads(RightAsManyHeads):
    def forward(self, x, allowed):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)) for f in (self.to_q, self.to_k, self.to_v))
        sim = torch.einsum("bihd,bjhd->bhij", q, k) * q.size(-1) ** -0.5
        sim = torch.where(allowed, sim, -torch.inf)  # wrong: AS117 mask_meets_heads
        return torch.einsum("bhij,bjhd->bihd", sim.softmax(-1), v).flatten(2)


def _mask_meets_heads(cls, B, L, Dk):
    allowed = torch.arange(L) < lengths_of(B, L)[:, None]
    return (
        cls(B * Dk, B),
        (torch.randn(B, L, B * Dk), allowed[:, None, :] & allowed[:, :, None] | torch.eye(L, dtype=torch.bool)),
        {},
    )


def wrong_mask_meets_heads(B, L, Dk):
    return _mask_meets_heads(WrongAsManyHeads, B, L, Dk)


def right_mask_meets_heads(B, L, Dk):
    return _mask_meets_heads(RightAsManyHeads, B, L, Dk)


def reference_mask_meets_heads(module, x, allowed):
    q, k, v = (heads(x, f, module.heads) for f in (module.to_q, module.to_k, module.to_v))
    return merge(attend(q, k, v, allowed.unsqueeze(1)))


def write(cache, new, slots):
    return cache.index_put((torch.arange(len(new)), slots), new)


def decode(q, k_new, v_new, k_cache, v_cache, lengths):
    k_cache, v_cache = write(k_cache, k_new, lengths), write(v_cache, v_new, lengths)
    return attend_up_to(q, k_cache, v_cache, lengths)


def decode_in_one_slot(q, k_new, v_new, k_cache, v_cache, lengths):
    k_cache, slot = write(k_cache, k_new, lengths), lengths[0]  # wrong: AS117 slot_of_first
    v_cache = write(v_cache, v_new, slot)
    return attend_up_to(q, k_cache, v_cache, lengths)


def attend_up_to(q, k_cache, v_cache, lengths):
    scores = (q[:, None] * k_cache).sum(-1) * q.size(-1) ** -0.5
    scores = scores.masked_fill((torch.arange(k_cache.size(1)) > lengths[:, None])[..., None], -torch.inf)
    return (scores.softmax(dim=1)[..., None] * v_cache).sum(1)


def _slot_of_first(function, B, H, L, Dk):
    new, caches = [torch.randn(B, H, Dk) for _ in range(3)], [torch.randn(B, L, H, Dk) for _ in range(2)]
    return function, (*new, *caches, lengths_of(B, L) - 1), {}


def wrong_slot_of_first(B, H, L, Dk):
    return _slot_of_first(decode_in_one_slot, B, H, L, Dk)


def right_slot_of_first(B, H, L, Dk):
    return _slot_of_first(decode, B, H, L, Dk)


def reference_slot_of_first(function, q, k_new, v_new, k_cache, v_cache, lengths):
    contexts = []
    for b, length in enumerate(lengths.tolist()):
        k, v = (torch.cat((c[b, :length], new[b, None])) for c, new in ((k_cache, k_new), (v_cache, v_new)))
        contexts.append(attend(q[b][None, :, None], k.transpose(0, 1)[None], v.transpose(0, 1)[None])[0, :, 0])
    return torch.stack(contexts)


class RightGraphLayer(nn.Module):
    """Nodes attend to their neighbours in torch's own attention."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm = nn.LayerNorm(dim)

    def per_head(self, blocked):
        return torch.stack([blocked] * self.heads, dim=1).flatten(0, 1)

    def forward(self, x, adjacent):
        h, _ = self.attn(x, x, x, attn_mask=self.per_head(~adjacent), need_weights=False)
        return self.norm(x + h)


class WrongGraphLayer(RightGraphLayer):
    def per_head(self, blocked):
        return torch.cat([blocked] * self.heads, dim=0)  # wrong: AS117 graph_mask_repeated_by_cat


def _graph_mask_repeated_by_cat(cls, B, H, L, Dk):
    edges = torch.rand(B, L, L, generator=torch.Generator().manual_seed(2)) > 0.5
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), edges | torch.eye(L, dtype=torch.bool)), {}


def wrong_graph_mask_repeated_by_cat(B, H, L, Dk):
    return _graph_mask_repeated_by_cat(WrongGraphLayer, B, H, L, Dk)


def right_graph_mask_repeated_by_cat(B, H, L, Dk):
    return _graph_mask_repeated_by_cat(RightGraphLayer, B, H, L, Dk)


def reference_graph_mask_repeated_by_cat(module, x, adjacent):
    joint = nn.Linear(1, 1)
    joint.weight, joint.bias = module.attn.in_proj_weight, module.attn.in_proj_bias
    q, k, v = fused(x, joint, module.heads)
    h = x + merge(attend(q, k, v, adjacent[:, None]), module.attn.out_proj)
    centred = h - h.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + module.norm.eps).sqrt() * module.norm.weight


class RightRotated(nn.Module):
    """Left-padded sequences, so each has positions of its own."""

    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)

    def own(self, position_ids):
        return position_ids

    def forward(self, hidden, position_ids):
        q, k, v = (
            f(hidden).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        half = q.size(-1) // 2
        ids = self.own(position_ids).to(q.dtype)
        angle = ids[:, None, :, None] * 10000.0 ** (-torch.arange(half, dtype=q.dtype) / half)
        cos, sin = angle.cos(), angle.sin()
        q, k = (torch.cat((a * cos - b * sin, b * cos + a * sin), -1) for a, b in (q.chunk(2, -1), k.chunk(2, -1)))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class WrongRotated(RightRotated):
    def own(self, position_ids):
        return position_ids[:1]  # wrong: AS117 position_ids_of_first


def _position_ids_of_first(cls, B, H, L, Dk):
    shifts = torch.arange(B)[:, None] % (L - 1)
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), (torch.arange(L) - shifts).clamp(min=0)), {}


def wrong_position_ids_of_first(B, H, L, Dk):
    return _position_ids_of_first(WrongRotated, B, H, L, Dk)


def right_position_ids_of_first(B, H, L, Dk):
    return _position_ids_of_first(RightRotated, B, H, L, Dk)


def reference_position_ids_of_first(module, hidden, position_ids):
    q, k, v = (heads(hidden, f, module.n_heads) for f in (module.q_proj, module.k_proj, module.v_proj))
    q, k = (torch.stack([turned(x, ids) for x, ids in zip(one, position_ids, strict=True)]) for one in (q, k))
    return merge(attend(q, k, v))
