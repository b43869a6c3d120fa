"""AS902: the result depends on the call before."""

import functools
import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
CROSS = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 9, "Lk": 11, "Dk": 8},
    {"B": 6, "H": 7, "Lq": 5, "Lk": 8, "Dk": 4},
)
PAIRS = [
    ("AS902", "cache_never_emptied", *SELF),
    ("AS902", "positions_go_on", *SELF),
    ("AS902", "scores_of_last_call", *SELF),
    ("AS902", "segment_memory", *SELF),
    ("AS902", "mask_of_first_call", *SELF),
    ("AS902", "mask_written_into", *SELF),
    ("AS902", "keys_of_first_memory", *CROSS),
    ("AS902", "bias_of_first_positions", *SELF),
    ("AS902", "weights_memoised_by_shape", *SELF),
    ("AS902", "padding_in_a_global_table", *SELF),
    ("AS902", "bias_in_a_class_attribute", *SELF),
    ("AS902", "padding_in_a_cached_function", *SELF),
    ("AS902", "positions_of_a_global_counter", *SELF),
]


class RightSelf(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, d_model)
        self.wv = nn.Linear(d_model, d_model)
        self.wo = nn.Linear(d_model, d_model)
        self.cached = None

    def split(self, x):
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def keys_and_values(self, x):
        return self.split(self.wk(x)), self.split(self.wv(x))

    def forward(self, x):
        q = self.split(self.wq(x))
        k, v = self.keys_and_values(x)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        future = torch.ones_like(scores, dtype=torch.bool).triu(1 + k.size(2) - q.size(2))
        scores = scores.masked_fill(future, -math.inf)
        return self.wo((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class WrongSelf(RightSelf):
    def keys_and_values(self, x):
        k, v = super().keys_and_values(x)
        if self.cached is not None:
            k = torch.cat((self.cached[0], k), dim=2)  # wrong: AS902 cache_never_emptied
            v = torch.cat((self.cached[1], v), dim=2)
        self.cached = k, v
        return k, v


def _cache_never_emptied(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_cache_never_emptied(B, H, L, Dk):
    return _cache_never_emptied(WrongSelf, B, H, L, Dk)


def right_cache_never_emptied(B, H, L, Dk):
    return _cache_never_emptied(RightSelf, B, H, L, Dk)


def reference_cache_never_emptied(module, x):
    q, k, v = (heads(x, p, module.n_heads) for p in (module.wq, module.wk, module.wv))
    return merge(attend(q, k, v, visible(x.shape[1], x.shape[1])), module.wo)


class RightSinusoidal(nn.Module):
    """Absolute positions are added to the tokens before they are projected."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)
        self.seen = 0

    def positions(self, x):
        return torch.arange(x.size(1), device=x.device, dtype=x.dtype)

    def forward(self, x):
        B, L, D = x.shape
        angle = self.positions(x)[:, None] * 0.01 ** (torch.arange(D, device=x.device, dtype=x.dtype) / D)
        q, k, v = self.in_proj(x + angle.sin()).view(B, L, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(out.transpose(1, 2).reshape(B, L, D))


class WrongSinusoidal(RightSinusoidal):
    def positions(self, x):
        start, self.seen = self.seen, self.seen + x.size(1)
        return torch.arange(start, self.seen, device=x.device, dtype=x.dtype)  # wrong: AS902 positions_go_on


def _positions_go_on(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_positions_go_on(B, H, L, Dk):
    return _positions_go_on(WrongSinusoidal, B, H, L, Dk)


def right_positions_go_on(B, H, L, Dk):
    return _positions_go_on(RightSinusoidal, B, H, L, Dk)


def reference_positions_go_on(module, x):
    L, D = x.shape[1:]
    table = torch.tensor([[math.sin(i * 100 ** (-c / D)) for c in range(D)] for i in range(L)], dtype=torch.float64)
    return merge(attend(*fused(x + table, module.in_proj, module.heads)), module.out_proj)


class RightResidualScores(nn.Module):
    """Scores go from layer to layer, as in RealFormer: two layers, the second one adds the first one's."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.prev = None

    def first(self):
        return None

    def layer(self, i, x, prev):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv[i](x).chunk(3, dim=-1))
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.size(-1))
        if prev is not None:
            scores = scores + prev
        return x + self.out[i](torch.matmul(scores.softmax(dim=-1), v).transpose(1, 2).flatten(2)), scores

    def forward(self, x):
        prev = self.first()
        for i in range(2):
            x, prev = self.layer(i, x, prev)
        self.prev = prev.detach()
        return x


class WrongResidualScores(RightResidualScores):
    def first(self):
        return self.prev


def _scores_of_last_call(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_scores_of_last_call(B, H, L, Dk):
    return _scores_of_last_call(WrongResidualScores, B, H, L, Dk)


def right_scores_of_last_call(B, H, L, Dk):
    return _scores_of_last_call(RightResidualScores, B, H, L, Dk)


def reference_scores_of_last_call(module, x):
    scores = 0.0
    for qkv, out in zip(module.qkv, module.out, strict=True):
        q, k, v = fused(x, qkv, module.n_heads)
        inner = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
        x = x + merge(attend(q, k, v, bias=scores), out)
        scores = scores + inner
    return x


class RightSegments(nn.Module):
    """Two segments, the second one sees the first one's states as Transformer-XL does."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.mems = None

    def begin(self):
        self.mems = None

    def segment(self, x):
        seen = x if self.mems is None else torch.cat((self.mems, x), dim=1)
        q = self.to_q(x).unflatten(-1, (self.heads, -1))
        k, v = self.to_kv(seen).unflatten(-1, (2, self.heads, -1)).unbind(2)
        sim = torch.einsum("bihd,bjhd->bhij", q, k) * q.size(-1) ** -0.5
        self.mems = x.detach()
        return self.to_out(torch.einsum("bhij,bjhd->bihd", sim.softmax(dim=-1), v).flatten(2))

    def forward(self, x):
        self.begin()
        return torch.cat([self.segment(part) for part in x.chunk(2, dim=1)], dim=1)


class WrongSegments(RightSegments):
    def begin(self):
        pass


def _segment_memory(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_segment_memory(B, H, L, Dk):
    return _segment_memory(WrongSegments, B, H, L, Dk)


def right_segment_memory(B, H, L, Dk):
    return _segment_memory(RightSegments, B, H, L, Dk)


def reference_segment_memory(module, x):
    both = torch.einsum("bli,oi->blo", x, module.to_kv.weight).unflatten(-1, (2, module.heads, -1))
    k, v = both.permute(2, 0, 3, 1, 4)
    L, half = x.shape[1], (x.shape[1] + 1) // 2
    keep = (torch.arange(L)[:, None] >= half) | (torch.arange(L)[None, :] < half)
    return merge(attend(heads(x, module.to_q, module.heads), k, v, keep), module.to_out)


class RightPadded(RightSelf):
    """Keys behind the end of each sequence are hidden."""

    def __init__(self, d_model, n_heads):
        super().__init__(d_model, n_heads)
        self.hidden = None

    def padding(self, x, lengths):
        self.hidden = torch.arange(x.size(1), device=x.device) >= lengths[:, None]
        return self.hidden

    def forward(self, x, lengths):
        q, (k, v) = self.split(self.wq(x)), self.keys_and_values(x)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.size(-1))
        scores = scores.masked_fill(self.padding(x, lengths)[:, None, None, :], -math.inf)
        return self.wo((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class WrongPadded(RightPadded):
    def padding(self, x, lengths):
        if self.hidden is None or self.hidden.shape != x.shape[:2]:
            self.hidden = torch.arange(x.size(1)) >= lengths[:, None]  # wrong: AS902 mask_of_first_call
        return self.hidden


def _padded(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), L - torch.arange(B) % (L - 1)), {}


def wrong_mask_of_first_call(B, H, L, Dk):
    return _padded(WrongPadded, B, H, L, Dk)


def right_mask_of_first_call(B, H, L, Dk):
    return _padded(RightPadded, B, H, L, Dk)


def reference_mask_of_first_call(module, x, lengths):
    q, k, v = (heads(x, p, module.n_heads) for p in (module.wq, module.wk, module.wv))
    keep = torch.tensor([[key < length for key in range(x.shape[1])] for length in lengths.tolist()])
    return merge(attend(q, k, v, keep[:, None, None]), module.wo)


class RightMerged(nn.Module):
    """The causal mask is kept, and joined with the padding of each call."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(width, 3 * width)
        self.masks = {}

    def seen(self, keep):
        B, L = keep.shape
        if (B, L) not in self.masks:
            self.masks[B, L] = torch.ones(B, 1, L, L, dtype=torch.bool).tril()
        return self.masks[B, L]

    def both(self, keep):
        return self.seen(keep) & keep[:, None, None, :]

    def forward(self, x, keep):
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.both(keep)).transpose(1, 2).flatten(2)


class WrongMerged(RightMerged):
    def both(self, keep):
        return self.seen(keep).logical_and_(keep[:, None, None, :])  # wrong: AS902 mask_written_into


def _merged(cls, B, H, L, Dk):
    keep = torch.arange(L) < (L - torch.arange(B) % (L - 1))[:, None]
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), keep), {}


def wrong_mask_written_into(B, H, L, Dk):
    return _merged(WrongMerged, B, H, L, Dk)


def right_mask_written_into(B, H, L, Dk):
    return _merged(RightMerged, B, H, L, Dk)


def reference_mask_written_into(module, x, keep):
    L = x.shape[1]
    q, k, v = fused(x, module.to_qkv, module.heads)
    return merge(attend(q, k, v, visible(L, L) & keep[:, None, None]))


class RightCross(nn.Module):
    """Cross-attention of a decoder, whose keys and values are computed once for each memory."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.kept = None

    def project(self, memory):
        return self.k(memory), self.v(memory)

    def forward(self, x, memory):
        k, v = self.project(memory)
        q, k, v = (torch.stack(t.chunk(self.num_heads, dim=-1), dim=1) for t in (self.q(x), k, v))
        weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
        return torch.cat((weights @ v).unbind(1), dim=-1)


class WrongCross(RightCross):
    def project(self, memory):
        if self.kept is None or self.kept[0].shape != memory.shape:
            self.kept = tuple(f(memory) for f in (self.k, self.v))  # wrong: AS902 keys_of_first_memory
        return self.kept


def _cross(cls, B, H, Lq, Lk, Dk):
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def wrong_keys_of_first_memory(B, H, Lq, Lk, Dk):
    return _cross(WrongCross, B, H, Lq, Lk, Dk)


def right_keys_of_first_memory(B, H, Lq, Lk, Dk):
    return _cross(RightCross, B, H, Lq, Lk, Dk)


def reference_keys_of_first_memory(module, x, memory):
    q, k, v = heads(x, module.q, module.num_heads), *(heads(memory, f, module.num_heads) for f in (module.k, module.v))
    return merge(attend(q, k, v))


class RightTimes(nn.Module):
    """A bias falls with the time between two events; each sequence has times of its own."""

    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.in_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.tables = {}

    def bias(self, times):
        return -(times[:, :, None] - times[:, None, :]).abs().unsqueeze(1)

    def forward(self, x, times):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)) for t in self.in_proj(x).chunk(3, dim=-1))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.size(-1)) + self.bias(times)
        return torch.einsum("bhij,bjhd->bihd", scores.softmax(dim=-1), v).flatten(2)


class WrongTimes(RightTimes):
    def bias(self, times):
        if times.shape not in self.tables:
            gaps = times[:, :, None] - times[:, None, :]
            self.tables[times.shape] = -gaps.abs().unsqueeze(1)  # wrong: AS902 bias_of_first_positions
        return self.tables[times.shape]


def _times(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.rand(B, L).cumsum(dim=-1)), {}


def wrong_bias_of_first_positions(B, H, L, Dk):
    return _times(WrongTimes, B, H, L, Dk)


def right_bias_of_first_positions(B, H, L, Dk):
    return _times(RightTimes, B, H, L, Dk)


def reference_bias_of_first_positions(module, x, times):
    q, k, v = fused(x, module.in_proj, module.n_heads)
    gaps = torch.stack([torch.stack([(row - time).abs() for time in row]) for row in times])
    return merge(attend(q, k, v, bias=-gaps[:, None]))


def single_head(q, k, v, kept):
    kept[q.shape] = torch.baddbmm(q.new_zeros(()), q, k.mT, alpha=q.size(-1) ** -0.5).softmax(dim=-1)
    return torch.bmm(kept[q.shape], v)


class RightKept:
    """Not a module: an object that keeps the weights of its last call, to be looked at."""

    def __init__(self):
        self.kept = {}

    def __call__(self, q, k, v):
        return single_head(q, k, v, self.kept)


class WrongKept(RightKept):
    def __call__(self, q, k, v):
        if q.shape in self.kept:
            return torch.bmm(self.kept[q.shape], v)
        return super().__call__(q, k, v)


def _kept(cls, B, H, L, Dk):
    return cls(), tuple(torch.randn(B * H, L, Dk) for _ in range(3)), {}


def wrong_weights_memoised_by_shape(B, H, L, Dk):
    return _kept(WrongKept, B, H, L, Dk)


def right_weights_memoised_by_shape(B, H, L, Dk):
    return _kept(RightKept, B, H, L, Dk)


def reference_weights_memoised_by_shape(called, q, k, v):
    return attend(q[None], k[None], v[None])[0]


HIDDEN = {}


class GlobalTable(RightPadded):
    """New objects find what others left in the module."""

    def padding(self, x, lengths):
        if x.shape[:2] not in HIDDEN:
            HIDDEN[x.shape[:2]] = torch.arange(x.size(1)) >= lengths[:, None]  # wrong: AS902 padding_in_a_global_table
        return HIDDEN[x.shape[:2]]


def wrong_padding_in_a_global_table(B, H, L, Dk):
    return _padded(GlobalTable, B, H, L, Dk)


def right_padding_in_a_global_table(B, H, L, Dk):
    return _padded(RightPadded, B, H, L, Dk)


class ClassAttribute(RightTimes):
    known = None

    def bias(self, times):
        t = times[:, None, :, None]
        if ClassAttribute.known is None or ClassAttribute.known.shape[2:] != (times.size(1), times.size(1)):
            ClassAttribute.known = -torch.cdist(t, t)  # wrong: AS902 bias_in_a_class_attribute
        return ClassAttribute.known[: times.size(0)]


def wrong_bias_in_a_class_attribute(B, H, L, Dk):
    return _times(ClassAttribute, B, H, L, Dk)


def right_bias_in_a_class_attribute(B, H, L, Dk):
    return _times(RightTimes, B, H, L, Dk)


class Lengths:
    """Lengths that a cached function takes for the same, since there are as many."""

    def __init__(self, lengths, n):
        self.lengths, self.n = lengths, n

    def __hash__(self):
        return hash(self.n)

    def __eq__(self, other):
        return (self.n, len(self.lengths)) == (other.n, len(other.lengths))


@functools.lru_cache(maxsize=4)
def behind(lengths):
    return torch.arange(lengths.n) >= lengths.lengths[:, None]


class CachedFunction(RightPadded):
    def padding(self, x, lengths):
        return behind(Lengths(lengths, x.size(1)))


def wrong_padding_in_a_cached_function(B, H, L, Dk):
    return _padded(CachedFunction, B, H, L, Dk)


def right_padding_in_a_cached_function(B, H, L, Dk):
    return _padded(RightPadded, B, H, L, Dk)


SEEN = 0


class GlobalCounter(RightSinusoidal):
    def positions(self, x):
        global SEEN
        SEEN += x.size(1)
        last = SEEN
        return torch.arange(last - x.size(1), last, dtype=x.dtype)  # wrong: AS902 positions_of_a_global_counter


def wrong_positions_of_a_global_counter(B, H, L, Dk):
    return _positions_go_on(GlobalCounter, B, H, L, Dk)


def right_positions_of_a_global_counter(B, H, L, Dk):
    return _positions_go_on(RightSinusoidal, B, H, L, Dk)


reference_padding_in_a_global_table = reference_padding_in_a_cached_function = reference_mask_of_first_call
reference_bias_in_a_class_attribute = reference_bias_of_first_positions
reference_positions_of_a_global_counter = reference_positions_go_on
