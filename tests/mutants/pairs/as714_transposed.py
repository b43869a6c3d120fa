"""AS714: a key's score for its distance from a query is given to the query of the same number."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
TABLE = (
    {"B": 4, "H": 3, "L": 7, "Dk": 6},
    {"B": 5, "H": 2, "L": 9, "Dk": 8},
    {"B": 3, "H": 6, "L": 8, "Dk": 5},
)
PAIRS = [
    ("AS714", "disentangled_bmm", *SELF),
    ("AS714", "keys_by_table_of_pairs", *TABLE),
    ("AS714", "indexed_head_by_head", *TABLE),
    ("AS714", "key_rows_shifted", *SELF),
    ("AS714", "keys_in_fused_bias", *TABLE),
    ("AS714", "layers_share_distances", *TABLE),
]


def of_pairs(tokens, vectors, index, of_keys):
    """B H L L, entry by entry: the product of a query, or of a key, with the vector (H, …, Dk) of its pair's index."""
    n = tokens.shape[2]
    rows = [[(tokens[:, :, j if of_keys else i] * vectors[:, index(i, j)]).sum(-1) for j in range(n)] for i in range(n)]
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def attend_by(scores, v, keep=None):
    zero = torch.zeros_like(v)
    return attend(zero, zero, v, keep, bias=scores)


class Disentangled(nn.Module):
    """Content to content, content to position and position to content, with heads in the batch."""

    def __init__(self, hidden_size, num_heads, span=32):
        super().__init__()
        self.num_heads, self.span = num_heads, span
        self.query_proj, self.key_proj, self.value_proj = (nn.Linear(hidden_size, hidden_size) for _ in range(3))
        self.rel_embeddings = nn.Embedding(2 * span, hidden_size)

    def transpose_for_scores(self, x):
        x = x.view(*x.shape[:-1], self.num_heads, -1).transpose(-3, -2)
        return x.reshape(-1, *x.shape[-2:])

    def position_scores(self, query, key, relative_pos, scale):
        batch = query.shape[0] // self.num_heads
        rel = self.rel_embeddings.weight.unsqueeze(0)
        pos_query = self.transpose_for_scores(self.query_proj(rel)).repeat(batch, 1, 1)
        pos_key = self.transpose_for_scores(self.key_proj(rel)).repeat(batch, 1, 1)
        c2p_pos = torch.clamp(relative_pos + self.span, 0, 2 * self.span - 1)
        c2p_att = torch.bmm(query, pos_key.transpose(-1, -2))
        c2p_att = torch.gather(c2p_att, dim=-1, index=c2p_pos.expand(query.shape[0], -1, -1))
        p2c_pos = torch.clamp(-relative_pos + self.span, 0, 2 * self.span - 1)
        p2c_att = torch.bmm(key, pos_query.transpose(-1, -2))
        p2c_att = torch.gather(p2c_att, dim=-1, index=p2c_pos.expand(key.shape[0], -1, -1)).transpose(-1, -2)
        return c2p_att / scale + p2c_att / scale

    def forward(self, hidden_states):
        query, key, value = (
            self.transpose_for_scores(layer(hidden_states))
            for layer in (self.query_proj, self.key_proj, self.value_proj)
        )
        positions = torch.arange(hidden_states.shape[1])
        scale = math.sqrt(query.shape[-1] * 3)
        scores = torch.bmm(query, key.transpose(-1, -2)) / scale
        scores = scores + self.position_scores(query, key, positions[:, None] - positions[None, :], scale)
        context = torch.bmm(scores.softmax(dim=-1), value).unflatten(0, (-1, self.num_heads))
        return context.permute(0, 2, 1, 3).flatten(2)


class DisentangledInRows(Disentangled):
    def position_scores(self, query, key, relative_pos, scale):
        batch = query.shape[0] // self.num_heads
        rel = self.rel_embeddings.weight.unsqueeze(0)
        pos_query = self.transpose_for_scores(self.query_proj(rel)).repeat(batch, 1, 1)
        pos_key = self.transpose_for_scores(self.key_proj(rel)).repeat(batch, 1, 1)
        c2p_pos = torch.clamp(relative_pos + self.span, 0, 2 * self.span - 1)
        c2p_att = torch.bmm(query, pos_key.transpose(-1, -2))
        c2p_att = torch.gather(c2p_att, dim=-1, index=c2p_pos.expand(query.shape[0], -1, -1))
        p2c_pos = torch.clamp(-relative_pos + self.span, 0, 2 * self.span - 1)
        p2c_att = torch.bmm(key, pos_query.transpose(-1, -2))
        p2c_att = torch.gather(p2c_att, dim=-1, index=p2c_pos.expand(len(key), -1, -1))  # wrong: AS714 disentangled_bmm
        return c2p_att / scale + p2c_att / scale


def _disentangled(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["scale=1/sqrt(3*Dk)"]


def wrong_disentangled_bmm(B, H, L, Dk):
    return _disentangled(DisentangledInRows, B, H, L, Dk)


def right_disentangled_bmm(B, H, L, Dk):
    return _disentangled(Disentangled, B, H, L, Dk)


def reference_disentangled_bmm(module, x):
    layers, span = (module.query_proj, module.key_proj, module.value_proj), module.span
    q, k, v = (heads(x, layer, module.num_heads) for layer in layers)
    pos_q, pos_k = (heads(module.rel_embeddings.weight[None], layer, module.num_heads)[0] for layer in layers[:2])
    scores = torch.einsum("bhid,bhjd->bhij", q, k)
    scores = scores + of_pairs(q, pos_k, lambda i, j: i - j + span, of_keys=False)
    scores = scores + of_pairs(k, pos_q, lambda i, j: i - j + span, of_keys=True)
    return merge(attend_by(scores / math.sqrt(3 * q.shape[-1]), v))


class TableOfPairs(nn.Module):
    """Each pair of a query and a key has a vector, with which the key is compared."""

    def __init__(self, dim, num_heads, longest=40):
        super().__init__()
        self.num_heads, self.longest = num_heads, longest
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.distances = nn.Embedding(2 * longest + 1, dim // num_heads)

    def by_pair(self, k, table):
        return torch.einsum("bjhd,ijd->bhij", k, table)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.num_heads, -1)) for f in (self.to_q, self.to_k, self.to_v))
        at = torch.arange(x.shape[1])
        table = self.distances(at - at[:, None] + self.longest)
        dots = torch.einsum("bihd,bjhd->bhij", q, k) + self.by_pair(k, table)
        weights = (dots * (2 * q.shape[-1]) ** -0.5).softmax(dim=-1)
        return self.to_out(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2))


class TableOfOwnKeys(TableOfPairs):
    def by_pair(self, k, table):
        return torch.einsum("bihd,ijd->bhij", k, table)  # wrong: AS714 keys_by_table_of_pairs


def _table(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["scale=1/sqrt(2*Dk)"]


def wrong_keys_by_table_of_pairs(B, H, L, Dk):
    return _table(TableOfOwnKeys, B, H, L, Dk)


def right_keys_by_table_of_pairs(B, H, L, Dk):
    return _table(TableOfPairs, B, H, L, Dk)


def reference_keys_by_table_of_pairs(module, x):
    q, k, v = (heads(x, layer, module.num_heads) for layer in (module.to_q, module.to_k, module.to_v))
    vectors = module.distances.weight.expand(module.num_heads, -1, -1)
    scores = torch.einsum("bhid,bhjd->bhij", q, k)
    scores = scores + of_pairs(k, vectors, lambda i, j: j - i + module.longest, of_keys=True)
    return merge(attend_by(scores / math.sqrt(2 * q.shape[-1]), v), module.to_out)


class HeadByHead(nn.Module):
    """Keys have scores for all distances, of which each pair is given one by its indices; causal."""

    def __init__(self, width, n_heads, longest=50):
        super().__init__()
        self.n_heads, self.longest = n_heads, longest
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.far = nn.Parameter(torch.randn(n_heads, longest, width // n_heads))

    def forward(self, x):
        n = x.shape[1]
        place = torch.arange(n)
        back = (place[:, None] - place).clamp(min=0)
        later = place > place[:, None]
        contexts = []
        for h, (q, k, v) in enumerate(
            zip(*(t.chunk(self.n_heads, dim=-1) for t in self.qkv(x).chunk(3, -1)), strict=True)
        ):
            by_distance = k @ self.far[h].T
            bias = by_distance[:, place.expand(n, n), back]
            scores = (q @ k.mT + bias) / math.sqrt(2 * q.shape[-1])
            contexts.append(scores.masked_fill(later, -torch.inf).softmax(dim=-1) @ v)
        return self.proj(torch.cat(contexts, dim=-1))


class HeadByHeadInRows(HeadByHead):
    def forward(self, x):
        n = x.shape[1]
        place = torch.arange(n)
        back = (place[:, None] - place).clamp(min=0)
        later = place > place[:, None]
        contexts = []
        for h, (q, k, v) in enumerate(
            zip(*(t.chunk(self.n_heads, dim=-1) for t in self.qkv(x).chunk(3, -1)), strict=True)
        ):
            by_distance = k @ self.far[h].T
            bias = by_distance[:, place[:, None].expand(n, n), back]  # wrong: AS714 indexed_head_by_head
            scores = (q @ k.mT + bias) / math.sqrt(2 * q.shape[-1])
            contexts.append(scores.masked_fill(later, -torch.inf).softmax(dim=-1) @ v)
        return self.proj(torch.cat(contexts, dim=-1))


def _indexed(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal", "scale=1/sqrt(2*Dk)"]


def wrong_indexed_head_by_head(B, H, L, Dk):
    return _indexed(HeadByHeadInRows, B, H, L, Dk)


def right_indexed_head_by_head(B, H, L, Dk):
    return _indexed(HeadByHead, B, H, L, Dk)


def reference_indexed_head_by_head(module, x):
    n = x.shape[1]
    q, k, v = fused(x, module.qkv, module.n_heads)
    bias = of_pairs(k, module.far, lambda i, j: max(i - j, 0), of_keys=True)
    scores = (torch.einsum("bhid,bhjd->bhij", q, k) + bias) / math.sqrt(2 * q.shape[-1])
    return merge(attend_by(scores, v, visible(n, n)), module.proj)


class Shifted(nn.Module):
    """The rows of keys are shifted by padding and viewing, as those of queries are elsewhere."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.far = nn.Linear(d_model // n_heads, d_model // n_heads, bias=False)

    def vectors(self, n, like):
        width = self.far.in_features
        steps = torch.arange(1 - n, n)[:, None] / torch.arange(1, width + 1)
        return self.far(steps.sin().to(like))

    def shift(self, x):
        b, h, n, m = x.shape
        return F.pad(x, (1, 0)).view(b, h, m + 1, n)[:, :, 1:].reshape(b, h, n, m)[..., :n].transpose(2, 3)

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for w in (self.q, self.k, self.v))
        by_distance = self.shift(k @ self.vectors(x.shape[1], x).T)
        scores = (q @ k.transpose(2, 3) + by_distance) / math.sqrt(2 * q.shape[-1])
        return self.o((F.softmax(scores, dim=-1) @ v).transpose(1, 2).flatten(2))


class ShiftedInRows(Shifted):
    def shift(self, x):
        b, h, n, m = x.shape
        x = F.pad(x, (1, 0)).view(b, h, m + 1, n)[:, :, 1:]
        return x.reshape(b, h, n, m)[..., :n]  # wrong: AS714 key_rows_shifted


def _shifted(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["scale=1/sqrt(2*Dk)"]


def wrong_key_rows_shifted(B, H, L, Dk):
    return _shifted(ShiftedInRows, B, H, L, Dk)


def right_key_rows_shifted(B, H, L, Dk):
    return _shifted(Shifted, B, H, L, Dk)


def reference_key_rows_shifted(module, x):
    n = x.shape[1]
    q, k, v = (heads(x, layer, module.n_heads) for layer in (module.q, module.k, module.v))
    vectors = module.vectors(n, x).expand(module.n_heads, -1, -1)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) + of_pairs(k, vectors, lambda i, j: i - j + n - 1, of_keys=True)
    return merge(attend_by(scores / math.sqrt(2 * q.shape[-1]), v), module.o)


def gathered(k, positions, span):
    """What position queries (H, 2*span, Dk) find in keys (B, H, L, Dk), for each query in a row."""
    place = torch.arange(k.shape[2])
    index = (place - place[:, None] + span).expand(*k.shape[:2], -1, -1)
    scores = torch.einsum("bhjd,hrd->bhjr", k, positions)
    return torch.gather(scores, 3, index).mT


def gathered_in_rows(k, positions, span):
    """What position queries (H, 2*span, Dk) find in keys (B, H, L, Dk), for each query in a row."""
    place = torch.arange(k.shape[2])
    index = (place - place[:, None] + span).expand(*k.shape[:2], -1, -1)
    scores = torch.einsum("bhjd,hrd->bhjr", k, positions)
    return torch.gather(scores, 3, index)  # wrong: AS714 keys_in_fused_bias


class FusedWithBias(nn.Module):
    """torch's attention with the position queries' scores in its mask."""

    def __init__(self, gather, dim, num_heads, span=48):
        super().__init__()
        self.gather, self.num_heads, self.span = gather, num_heads, span
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.positions = nn.Parameter(torch.randn(num_heads, 2 * span, dim // num_heads))

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        scale = (2 * q.shape[-1]) ** -0.5
        bias = self.gather(k, self.positions * scale, self.span)
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale).transpose(1, 2).flatten(2))


def _biased(gather, B, H, L, Dk):
    return FusedWithBias(gather, H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["scale=1/sqrt(2*Dk)"]


def wrong_keys_in_fused_bias(B, H, L, Dk):
    return _biased(gathered_in_rows, B, H, L, Dk)


def right_keys_in_fused_bias(B, H, L, Dk):
    return _biased(gathered, B, H, L, Dk)


def reference_keys_in_fused_bias(module, x):
    q, k, v = fused(x, module.qkv, module.num_heads)
    bias = of_pairs(k, module.positions, lambda i, j: i - j + module.span, of_keys=True)
    return merge(attend_by((torch.einsum("bhid,bhjd->bhij", q, k) + bias) / math.sqrt(2 * q.shape[-1]), v), module.out)


class SharedLayer(nn.Module):
    """Queries and keys are projected, and so are the distances that all layers share; padding is hidden."""

    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.norm, self.qkv, self.out = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.pos_q, self.pos_k = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)

    def split(self, t):
        return t.unflatten(-1, (self.n_heads, -1)).transpose(-3, -2)

    def logits(self, q, k, distances, index):
        index = index.expand(*q.shape[:2], -1, -1)
        content = q @ k.mT
        c2p = (q @ self.split(self.pos_k(distances)).mT).gather(-1, index)
        p2c = (k @ self.split(self.pos_q(distances)).mT).gather(-1, index.mT).mT
        return content + c2p + p2c

    def forward(self, x, distances, index, keep):
        q, k, v = map(self.split, self.qkv(self.norm(x)).chunk(3, dim=-1))
        logits = self.logits(q, k, distances, index) / math.sqrt(3 * q.shape[-1])
        weights = logits.masked_fill(~keep[:, None, None], -torch.inf).softmax(dim=-1)
        return x + self.out((weights @ v).transpose(1, 2).flatten(2))


class SharedLayerInRows(SharedLayer):
    def logits(self, q, k, distances, index):
        index = index.expand(*q.shape[:2], -1, -1)
        content = q @ k.mT
        c2p = (q @ self.split(self.pos_k(distances)).mT).gather(-1, index)
        p2c = (k @ self.split(self.pos_q(distances)).mT).gather(-1, index.mT)  # wrong: AS714 layers_share_distances
        return content + c2p + p2c


class SharedEncoder(nn.Module):
    def __init__(self, layer, dim, n_heads, span=24):
        super().__init__()
        self.span = span
        self.distances, self.norm = nn.Embedding(2 * span, dim), nn.LayerNorm(dim)
        self.layers = nn.ModuleList(layer(dim, n_heads) for _ in range(2))
        self.ffns = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
            for _ in range(2)
        )

    def forward(self, x, keep):
        place = torch.arange(x.shape[1])
        index = (place[:, None] - place + self.span).clamp(0, 2 * self.span - 1)
        distances = self.norm(self.distances.weight)
        for layer, ffn in zip(self.layers, self.ffns, strict=True):
            x = layer(x, distances, index, keep)
            x = x + ffn(x)
        return x


def _shared(layer, B, H, L, Dk):
    keep = torch.arange(L) < torch.tensor([L - b % 3 for b in range(B)])[:, None]
    module = SharedEncoder(layer, H * Dk, H)
    return module, (torch.randn(B, L, H * Dk), keep), {}, ["keep=keep", "scale=1/sqrt(3*Dk)"]


def wrong_layers_share_distances(B, H, L, Dk):
    return _shared(SharedLayerInRows, B, H, L, Dk)


def right_layers_share_distances(B, H, L, Dk):
    return _shared(SharedLayer, B, H, L, Dk)


def reference_layers_share_distances(module, x, keep):
    distances = module.norm(module.distances.weight)[None]
    for layer, ffn in zip(module.layers, module.ffns, strict=True):
        q, k, v = fused(layer.norm(x), layer.qkv, layer.n_heads)
        pos_q, pos_k = (heads(distances, one, layer.n_heads)[0] for one in (layer.pos_q, layer.pos_k))
        scores = torch.einsum("bhid,bhjd->bhij", q, k)
        scores = scores + of_pairs(q, pos_k, lambda i, j: i - j + module.span, of_keys=False)
        scores = scores + of_pairs(k, pos_q, lambda i, j: i - j + module.span, of_keys=True)
        x = x + merge(attend_by(scores / math.sqrt(3 * q.shape[-1]), v, keep[:, None, None]), layer.out)
        x = x + ffn(x)
    return x
