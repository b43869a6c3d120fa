"""AS301, AS302, AS406 and AS807 in attention over graphs: by lists of edges, and by a dense adjacency."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import project

SIZES = ({"H": 4, "L": 7, "Dk": 5}, {"H": 3, "L": 9, "Dk": 4}, {"H": 2, "L": 11, "Dk": 8})
DENSE = ({"B": 2, "H": 4, "L": 7, "Dk": 5}, {"B": 5, "H": 3, "L": 9, "Dk": 4}, {"B": 4, "H": 2, "L": 11, "Dk": 8})
POOLED = ({"B": 4, "L": 7, "D": 6}, {"B": 5, "L": 9, "D": 8}, {"B": 6, "L": 5, "D": 4})
PAIRS = [
    ("AS302", "summed_by_source", *SIZES),
    ("AS302", "sums_of_the_other_end", *SIZES),
    ("AS302", "pooled_by_kind", *SIZES),
    ("AS302", "divided_late", *SIZES),
    ("AS302", "segments_reversed", *SIZES),
    ("AS807", "one_vector_for_both_ends", *SIZES),
    ("AS807", "both_by_sources", *DENSE),
    ("AS807", "one_layer_for_both_ends", *DENSE),
    ("AS301", "over_the_queries", *DENSE),
    ("AS301", "module_over_heads", *DENSE),
    ("AS301", "additive_over_queries", *DENSE),
    ("AS406", "isolated_node", *DENSE),
    ("AS406", "additive_scores_of_nothing", *DENSE),
    ("AS406", "pool_of_nothing", *POOLED),
]


def edges(L):
    """Draw the sources and targets of edges that lead to every node."""
    return torch.stack([torch.randint(0, L, (3 * L,)), torch.arange(3 * L) % L])


def softmax_at_nodes(scores, nodes, number):
    """Return weights (E, H) that sum to one over the edges of each node."""
    expanded = nodes[:, None].expand_as(scores)
    most = scores.new_full((number, scores.shape[1]), -math.inf).scatter_reduce(0, expanded, scores, "amax")
    exponentials = (scores - most[nodes]).exp()
    sums = torch.zeros_like(most).index_add(0, nodes, exponentials)
    return exponentials / (sums[nodes] + 1e-16)


def over_edges(scores, values, nodes, number):
    """Sum values (E, H, Dk) at nodes, with the softmax of scores (E, H), one node after the other."""
    result = torch.zeros(number, *values.shape[1:], dtype=values.dtype)
    for node in range(number):
        own = nodes == node
        exponentials = (scores[own] - scores[own].amax()).exp()
        result[node] = torch.einsum("eh,ehd->hd", exponentials / exponentials.sum(0), values[own])
    return result


class Edges(nn.Module):
    """Additive scores of the two ends of each edge."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.lin = nn.Linear(width, width, bias=False)
        self.att_src, self.att_dst = (nn.Parameter(torch.randn(heads, width // heads)) for _ in range(2))

    def ends(self, z):
        return (z * self.att_src).sum(-1), (z * self.att_dst).sum(-1)

    def weights(self, scores, src, dst, number):
        return softmax_at_nodes(scores, dst, number)

    def forward(self, x, edge_index):
        src, dst = edge_index[0], edge_index[1]
        z = self.lin(x).unflatten(-1, (self.heads, -1))
        of_src, of_dst = self.ends(z)
        weights = self.weights(F.leaky_relu(of_src[src] + of_dst[dst], 0.2), src, dst, len(x))
        messages = z[src] * weights[..., None]
        return torch.zeros_like(z).index_add(0, dst, messages).flatten(1)


class BySource(Edges):
    def weights(self, scores, src, dst, number):
        return softmax_at_nodes(scores, src, number)  # wrong: AS302 summed_by_source


class OneVector(Edges):
    def ends(self, z):
        of_src = of_dst = (z * self.att_src).sum(-1)  # wrong: AS807 one_vector_for_both_ends
        return of_src, of_dst


def _edges(cls, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(L, H * Dk), edges(L)), {}


def wrong_summed_by_source(H, L, Dk):
    return _edges(BySource, H, L, Dk)


def right_summed_by_source(H, L, Dk):
    return _edges(Edges, H, L, Dk)


def reference_summed_by_source(module, x, edge_index):
    src, dst = edge_index
    z = torch.einsum("li,hdi->lhd", x, module.lin.weight.unflatten(0, (module.heads, -1)))
    scores = torch.einsum("ehd,hd->eh", z[src], module.att_src) + torch.einsum("ehd,hd->eh", z[dst], module.att_dst)
    return over_edges(torch.where(scores > 0, scores, 0.2 * scores), z[src], dst, len(x)).flatten(1)


def wrong_one_vector_for_both_ends(H, L, Dk):
    return _edges(OneVector, H, L, Dk)


right_one_vector_for_both_ends = right_summed_by_source
reference_one_vector_for_both_ends = reference_summed_by_source


def _products(q, k, src, dst):
    return torch.einsum("ehd,ehd->eh", q[dst], k[src]) * q.shape[-1] ** -0.5


def with_sums_at_targets(q, k, v, src, dst):
    """Attend along edges, with (L, H, Dk) of each node."""
    e = torch.exp(((q[dst] * k[src]).sum(dim=-1) / q.size(-1) ** 0.5).clamp(-60, 60))
    total = e.new_zeros(q.size(0), q.size(1)).scatter_add_(0, dst.unsqueeze(-1).expand_as(e), e)
    alpha = e / total.index_select(0, dst)
    out = torch.zeros_like(v)
    return out.scatter_add_(0, dst.view(-1, 1, 1).expand(-1, *v.shape[1:]), alpha.unsqueeze(-1) * v[src])


def with_sums_of_the_other_end(q, k, v, src, dst):
    """Attend along edges, with (L, H, Dk) of each node."""
    e = torch.exp(((q[dst] * k[src]).sum(dim=-1) / q.size(-1) ** 0.5).clamp(-60, 60))
    total = e.new_zeros(q.size(0), q.size(1)).scatter_add_(0, dst.unsqueeze(-1).expand_as(e), e)
    alpha = e / total.index_select(0, src)  # wrong: AS302 sums_of_the_other_end
    out = torch.zeros_like(v)
    return out.scatter_add_(0, dst.view(-1, 1, 1).expand(-1, *v.shape[1:]), alpha.unsqueeze(-1) * v[src])


def _along_edges(function, H, L, Dk):
    return function, (*torch.randn(3, L, H, Dk), *edges(L)), {}


def wrong_sums_of_the_other_end(H, L, Dk):
    return _along_edges(with_sums_of_the_other_end, H, L, Dk)


def right_sums_of_the_other_end(H, L, Dk):
    return _along_edges(with_sums_at_targets, H, L, Dk)


def reference_sums_of_the_other_end(function, q, k, v, src, dst):
    return over_edges(_products(q, k, src, dst), v[src], dst, len(q))


class Pool(nn.Module):
    """Pools the nodes of each graph, given by the number of their graph and of their kind."""

    def __init__(self, width, graphs):
        super().__init__()
        self.graphs = graphs
        self.gate, self.value = nn.Linear(width, 1), nn.Linear(width, width)

    def forward(self, x, graph, kind):
        gates = self.gate(x).squeeze(-1)
        e = (gates - gates.max()).exp()
        total = e.new_zeros(self.graphs).scatter_reduce(0, graph, e, reduce="sum")
        pooled = (e / total[graph])[:, None] * self.value(x)
        return x.new_zeros(self.graphs, x.shape[1]).index_add_(0, graph, pooled)


class PoolByKind(Pool):
    def forward(self, x, graph, kind):
        gates = self.gate(x).squeeze(-1)
        e = (gates - gates.max()).exp()
        total = e.new_zeros(self.graphs).scatter_reduce(0, kind, e, reduce="sum")  # wrong: AS302 pooled_by_kind
        pooled = (e / total[kind])[:, None] * self.value(x)
        return x.new_zeros(self.graphs, x.shape[1]).index_add_(0, graph, pooled)


def _pooled(cls, H, L, Dk):
    graph = torch.arange(L * H) // L
    kind = torch.randint(0, H, (L * H,))
    return cls(Dk, H), (torch.randn(L * H, Dk), graph, kind), {}


def wrong_pooled_by_kind(H, L, Dk):
    return _pooled(PoolByKind, H, L, Dk)


def right_pooled_by_kind(H, L, Dk):
    return _pooled(Pool, H, L, Dk)


def reference_pooled_by_kind(module, x, graph, kind):
    gates, values = project(x, module.gate), project(x, module.value)
    return over_edges(gates, values[:, None], graph, module.graphs)[:, 0]


def divided_last(q, k, v, src, dst):
    """Attend along edges, with (L, H, Dk) of each node, and divide at the end."""
    e = torch.einsum("ehd,ehd->eh", q[dst], k[src]).mul(q.shape[-1] ** -0.5).clamp(-60, 60).exp()
    context = torch.zeros_like(v).index_put_((dst,), e[:, :, None] * v[src], accumulate=True)
    total = torch.zeros_like(v[..., 0]).index_put_((dst,), e, accumulate=True)
    return context / total.clamp(min=1e-9).unsqueeze(-1)


def divided_last_by_sources(q, k, v, src, dst):
    """Attend along edges, with (L, H, Dk) of each node, and divide at the end."""
    e = torch.einsum("ehd,ehd->eh", q[dst], k[src]).mul(q.shape[-1] ** -0.5).clamp(-60, 60).exp()
    context = torch.zeros_like(v).index_put_((dst,), e[:, :, None] * v[src], accumulate=True)
    total = torch.zeros_like(v[..., 0]).index_put_((src,), e, accumulate=True)  # wrong: AS302 divided_late
    return context / total.clamp(min=1e-9).unsqueeze(-1)


def wrong_divided_late(H, L, Dk):
    return _along_edges(divided_last_by_sources, H, L, Dk)


def right_divided_late(H, L, Dk):
    return _along_edges(divided_last, H, L, Dk)


reference_divided_late = reference_sums_of_the_other_end


class Segments(nn.Module):
    """Nodes of graphs lie one after the other, and are pooled by a learned query of each head."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.score, self.value = nn.Linear(width, heads), nn.Linear(width, width)

    def repeated(self, total, lengths):
        return total.repeat_interleave(lengths, dim=0)

    def forward(self, x, lengths):
        e = self.score(x).exp()
        weights = e / self.repeated(torch.segment_reduce(e, "sum", lengths=lengths), lengths)
        weighted = self.value(x).unflatten(-1, (self.heads, -1)) * weights.unsqueeze(-1)
        graph = torch.arange(len(lengths)).repeat_interleave(lengths)
        return x.new_zeros(len(lengths), *weighted.shape[1:]).index_add(0, graph, weighted).flatten(1)


class ReversedSegments(Segments):
    def repeated(self, total, lengths):
        return total.repeat_interleave(lengths.flip(0), dim=0)  # wrong: AS302 segments_reversed


def _segments(cls, H, L, Dk):
    lengths = torch.arange(2, 2 + L)
    return cls(H * Dk, H), (torch.randn(int(lengths.sum()), H * Dk), lengths), {}


def wrong_segments_reversed(H, L, Dk):
    return _segments(ReversedSegments, H, L, Dk)


def right_segments_reversed(H, L, Dk):
    return _segments(Segments, H, L, Dk)


def reference_segments_reversed(module, x, lengths):
    graph = torch.tensor([place for place, length in enumerate(lengths.tolist()) for _ in range(length)])
    values = torch.stack(project(x, module.value).chunk(module.heads, -1), 1)
    return over_edges(project(x, module.score), values, graph, len(lengths)).flatten(1)


def additive(of_queries, of_keys, values, keep, slope=0.2):
    """Attend in (B, L, H, Dk) by sums of the scores of both ends, (B, L, H), to the nodes that are kept."""
    scores = of_queries[:, :, None] + of_keys[:, None]
    exponentials = torch.where(scores > 0, scores, slope * scores).exp() * keep[..., None]
    total = exponentials.sum(2, keepdim=True)
    return torch.einsum("bijh,bjhd->bihd", exponentials / torch.where(total > 0, total, 1), values).flatten(2)


class Dense(nn.Module):
    """Additive scores of each pair of nodes."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.lin = nn.Linear(width, width, bias=False)
        self.att_src, self.att_dst = (nn.Parameter(torch.randn(heads, width // heads)) for _ in range(2))

    def pairs(self, z):
        return (z * self.att_src).sum(-1)[:, None] + (z * self.att_dst).sum(-1)[:, :, None]

    def cleared(self, weights):
        return weights.nan_to_num(0.0)

    def forward(self, x, adj=None):
        z = self.lin(x).unflatten(-1, (self.heads, -1))
        scores = F.leaky_relu(self.pairs(z), 0.2)
        if adj is None:
            return torch.einsum("bijh,bjhd->bihd", scores.softmax(dim=2), z).flatten(2)
        scores = scores.masked_fill(~adj[..., None], -math.inf)
        weights = scores.softmax(dim=2)  # wrong: AS406 isolated_node
        return torch.einsum("bijh,bjhd->bihd", self.cleared(weights), z).flatten(2)


class OverQueries(Dense):
    def forward(self, x, adj=None):
        z = self.lin(x).unflatten(-1, (self.heads, -1))
        weights = F.leaky_relu(self.pairs(z), 0.2).softmax(dim=1)  # wrong: AS301 over_the_queries
        return torch.einsum("bijh,bjhd->bihd", weights, z).flatten(2)


class BothBySources(Dense):
    def pairs(self, z):
        a = self.att_src
        return (z * a).sum(-1)[:, None] + (z * a).sum(-1)[:, :, None]  # wrong: AS807 both_by_sources


class Uncleared(Dense):
    def cleared(self, weights):
        return weights


def _dense(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def _with_adjacency(cls, B, H, L, Dk):
    adj = torch.rand(B, L, L) < 0.5
    adj[:, 1:, 0] = True
    adj[:, 0] = False
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), adj), {}, ["adj=keep", "zero-masked-rows"]


def wrong_both_by_sources(B, H, L, Dk):
    return _dense(BothBySources, B, H, L, Dk)


def right_both_by_sources(B, H, L, Dk):
    return _dense(Dense, B, H, L, Dk)


def reference_both_by_sources(module, x, adj=None):
    z = torch.einsum("bli,hdi->blhd", x, module.lin.weight.unflatten(0, (module.heads, -1)))
    of_keys, of_queries = (torch.einsum("blhd,hd->blh", z, one) for one in (module.att_src, module.att_dst))
    keep = torch.ones(x.shape[0], x.shape[1], x.shape[1]) if adj is None else adj
    return additive(of_queries, of_keys, z, keep)


def wrong_over_the_queries(B, H, L, Dk):
    return _dense(OverQueries, B, H, L, Dk)


right_over_the_queries = right_both_by_sources
reference_over_the_queries = reference_both_by_sources


def wrong_isolated_node(B, H, L, Dk):
    return _with_adjacency(Uncleared, B, H, L, Dk)


def right_isolated_node(B, H, L, Dk):
    return _with_adjacency(Dense, B, H, L, Dk)


reference_isolated_node = reference_both_by_sources


class TwoLayers(nn.Module):
    """A linear layer scores each end of a pair, for all heads."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.softmax = nn.Softmax(dim=-1)
        self.value = nn.Linear(width, width)
        self.of_query, self.of_key = (nn.Linear(width, heads, bias=False) for _ in range(2))

    def ends(self, x):
        return self.of_query(x).transpose(1, 2), self.of_key(x).transpose(1, 2)

    def forward(self, x):
        queries, keys = self.ends(x)
        weights = self.softmax(F.leaky_relu(queries.unsqueeze(-1) + keys.unsqueeze(-2), 0.2))
        values = self.value(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return (weights @ values).transpose(1, 2).flatten(2)


class OneLayer(TwoLayers):
    def ends(self, x):
        scores = self.of_query(x).transpose(1, 2)  # wrong: AS807 one_layer_for_both_ends
        return scores, scores


def wrong_one_layer_for_both_ends(B, H, L, Dk):
    return _dense(OneLayer, B, H, L, Dk)


def right_one_layer_for_both_ends(B, H, L, Dk):
    return _dense(TwoLayers, B, H, L, Dk)


def reference_one_layer_for_both_ends(module, x):
    values = torch.stack(project(x, module.value).chunk(module.heads, -1), 2)
    everything = torch.ones(x.shape[0], x.shape[1], x.shape[1])
    return additive(project(x, module.of_query), project(x, module.of_key), values, everything)


class OverHeads(TwoLayers):
    def __init__(self, width, heads):
        super().__init__(width, heads)
        self.softmax = nn.Softmax(dim=1)  # wrong: AS301 module_over_heads

    def forward(self, x):
        queries, keys = self.ends(x)
        weights = self.softmax(F.leaky_relu(queries.unsqueeze(-1) + keys.unsqueeze(-2), 0.2))
        values = self.value(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return (weights @ values).transpose(1, 2).flatten(2)


def wrong_module_over_heads(B, H, L, Dk):
    return _dense(OverHeads, B, H, L, Dk)


right_module_over_heads = right_one_layer_for_both_ends
reference_module_over_heads = reference_one_layer_for_both_ends


class Additive(nn.Module):
    """Scores of a small network, as in Bahdanau's attention, over tokens some of which are padding."""

    def __init__(self, width, hidden):
        super().__init__()
        self.query, self.key = nn.Linear(width, hidden), nn.Linear(width, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)

    def weights(self, scores, mask):
        return scores.masked_fill(~mask, -1e9).softmax(dim=-1) * mask

    def forward(self, x, mask):
        hidden = torch.tanh(self.query(x).unsqueeze(2) + self.key(x).unsqueeze(1))
        return self.weights(self.score(hidden).squeeze(-1), mask.unsqueeze(1)) @ x


class Glimpses(Additive):
    """Queries and keys of two sequences, all of which are visible."""

    def weights(self, scores, mask):
        return torch.softmax(scores, dim=2)

    def forward(self, query, memory):
        hidden = torch.tanh(self.query(query)[:, :, None] + self.key(memory)[:, None])
        return torch.einsum("bqk,bkd->bqd", self.weights(self.score(hidden).squeeze(-1), None), memory)


class GlimpsesOverQueries(Glimpses):
    def weights(self, scores, mask):
        return torch.softmax(scores, dim=1)  # wrong: AS301 additive_over_queries


def _glimpses(cls, B, H, L, Dk):
    return cls(H * Dk, Dk), (torch.randn(B, L, H * Dk), torch.randn(B, L + H, H * Dk)), {}


def wrong_additive_over_queries(B, H, L, Dk):
    return _glimpses(GlimpsesOverQueries, B, H, L, Dk)


def right_additive_over_queries(B, H, L, Dk):
    return _glimpses(Glimpses, B, H, L, Dk)


def reference_additive_over_queries(module, query, memory):
    hidden = torch.tanh(project(query, module.query)[:, :, None] + project(memory, module.key)[:, None])
    scores = project(hidden, module.score)[..., 0]
    return torch.einsum("bij,bjd->bid", _weights_of_kept(scores, torch.ones_like(scores)), memory)


class AdditiveOfNothing(Additive):
    def weights(self, scores, mask):
        return scores.masked_fill(~mask, -1e9).softmax(dim=-1)  # wrong: AS406 additive_scores_of_nothing


def _padding(B, L):
    mask = torch.rand(B, L) < 0.6
    mask[:, 0] = True
    mask[-1] = False
    return mask


def _additive(cls, B, H, L, Dk):
    return cls(H * Dk, Dk), (torch.randn(B, L, H * Dk), _padding(B, L)), {}, ["mask=keep", "zero-masked-rows"]


def wrong_additive_scores_of_nothing(B, H, L, Dk):
    return _additive(AdditiveOfNothing, B, H, L, Dk)


def right_additive_scores_of_nothing(B, H, L, Dk):
    return _additive(Additive, B, H, L, Dk)


def _weights_of_kept(scores, keep):
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp() * keep
    total = exponentials.sum(-1, keepdim=True)
    return exponentials / torch.where(total > 0, total, 1)


def reference_additive_scores_of_nothing(module, x, mask):
    hidden = torch.tanh(project(x, module.query)[:, :, None] + project(x, module.key)[:, None])
    scores = project(hidden, module.score)[..., 0]
    return torch.einsum("bij,bjd->bid", _weights_of_kept(scores, mask[:, None]), x)


class TokenPool(nn.Module):
    """One context of each sequence, by scores of a linear layer."""

    def __init__(self, width):
        super().__init__()
        self.score = nn.Linear(width, 1)

    def cleared(self, weights, padding):
        return torch.where(padding, 0.0, weights)

    def forward(self, x, padding):
        scores = self.score(x).squeeze(-1).masked_fill(padding, -math.inf)
        weights = F.softmax(scores, dim=-1)  # wrong: AS406 pool_of_nothing
        return torch.bmm(self.cleared(weights, padding).unsqueeze(1), x).squeeze(1)


class UnclearedPool(TokenPool):
    def cleared(self, weights, padding):
        return weights


def _of_tokens(cls, B, L, D):
    return cls(D), (torch.randn(B, L, D), ~_padding(B, L)), {}, ["padding=drop", "zero-masked-rows"]


def wrong_pool_of_nothing(B, L, D):
    return _of_tokens(UnclearedPool, B, L, D)


def right_pool_of_nothing(B, L, D):
    return _of_tokens(TokenPool, B, L, D)


def reference_pool_of_nothing(module, x, padding):
    return torch.einsum("bl,bld->bd", _weights_of_kept(project(x, module.score)[..., 0], ~padding), x)
