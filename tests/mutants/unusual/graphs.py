"""Right code over graphs that looks like weights which don't sum to one, like NaN, or like a forgotten parameter."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.graphs import Dense, Edges, edges, softmax_at_nodes

SIZES = ({"H": 4, "L": 7, "Dk": 5}, {"H": 3, "L": 9, "Dk": 4})
DENSE = ({"B": 2, "H": 4, "L": 7, "Dk": 5}, {"B": 5, "H": 3, "L": 9, "Dk": 4})
CROSS = ({"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3}, {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6})
UNUSUAL = [
    ("mean_of_neighbours", *SIZES),
    ("symmetric_degrees", *SIZES),
    ("unnormalised_edges", *SIZES),
    ("relations_by_themselves", *SIZES),
    ("softmax_of_each_feature", *SIZES),
    ("messages_both_ways", *SIZES),
    ("one_more_in_the_sum", *SIZES),
    ("weighted_edges", *SIZES),
    ("edges_beside_themselves", *SIZES),
    ("read_twice_on_edges", *SIZES),
    ("scores_of_sources_only", *SIZES),
    ("symmetric_projection", *SIZES),
    ("root_weight_left_out", *SIZES),
    ("self_loops_added", *DENSE),
    ("nodes_without_neighbours_replaced", *DENSE),
    ("sums_kept_from_zero", *DENSE),
    ("tokens_to_clusters", *DENSE),
    ("residuals_of_clusters", *DENSE),
    ("votes_of_tokens", *DENSE),
    ("keys_by_total_weight", *CROSS),
    ("rollout_renormalised", *DENSE),
    ("summed_maps_returned", *CROSS),
]


def _graph(function, H, L, Dk):
    if isinstance(function, type):
        function = function(H * Dk, H)
    return function, (torch.randn(L, H * Dk), edges(L)), {}


class Mean(nn.Module):
    """The mean of a node's neighbours, as in GraphSAGE."""

    def __init__(self, width, heads):
        super().__init__()
        self.own, self.neighbours = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def forward(self, x, edge_index):
        src, dst = edge_index
        sums = torch.zeros_like(x).index_add(0, dst, x[src])
        count = x.new_zeros(len(x)).index_add(0, dst, x.new_ones(len(dst)))
        return self.own(x) + self.neighbours(sums / count.clamp(min=1)[:, None])


def case_mean_of_neighbours(H, L, Dk):
    return _graph(Mean, H, L, Dk)


class Degrees(nn.Module):
    """Edges weigh the inverse root of both ends' degrees, as in a graph convolution."""

    def __init__(self, width, heads):
        super().__init__()
        self.lin = nn.Linear(width, width)

    def forward(self, x, edge_index):
        src, dst = edge_index
        degree = x.new_zeros(len(x)).scatter_add_(0, dst, x.new_ones(len(dst)))
        root = degree.clamp(min=1).pow(-0.5)
        messages = (root[src] * root[dst]).unsqueeze(-1) * self.lin(x)[src]
        return torch.zeros_like(x).scatter_add_(0, dst[:, None].expand_as(messages), messages).relu()


def case_symmetric_degrees(H, L, Dk):
    return _graph(Degrees, H, L, Dk)


class Kernel(nn.Module):
    """Messages weigh a Gaussian of their distance, which nothing normalises."""

    def __init__(self, width, heads):
        super().__init__()
        self.lin = nn.Linear(width, width)

    def forward(self, x, edge_index):
        src, dst = edge_index
        weights = torch.exp(-(x[src] - x[dst]).square().mean(-1, keepdim=True))
        return torch.zeros_like(x).index_add(0, dst, weights * self.lin(x)[src])


def case_unnormalised_edges(H, L, Dk):
    return _graph(Kernel, H, L, Dk)


class Relations(Edges):
    """Each kind of edges has a softmax of its own, so that a node's weights sum to the number of its kinds."""

    def forward(self, x, edge_index, kind):
        src, dst = edge_index
        z = self.lin(x).unflatten(-1, (self.heads, -1))
        of_src, of_dst = self.ends(z)
        weights = softmax_at_nodes(F.leaky_relu(of_src[src] + of_dst[dst], 0.2), dst * 2 + kind, 2 * len(x))
        return torch.zeros_like(z).index_add(0, dst, z[src] * weights[..., None]).flatten(1)


def case_relations_by_themselves(H, L, Dk):
    edge_index = edges(L)
    return Relations(H * Dk, H), (torch.randn(L, H * Dk), edge_index, torch.arange(3 * L) // L % 2), {}


def softmax_of_features(x, edge_index):
    """Aggregate with a softmax over a node's neighbours for each feature."""
    src, dst = edge_index
    messages = x[src].relu() + 1e-7
    return torch.zeros_like(x).index_add(0, dst, messages * softmax_at_nodes(messages, dst, len(x)))


def case_softmax_of_each_feature(H, L, Dk):
    return _graph(softmax_of_features, H, L, Dk)


class BothWays(Edges):
    """The weights of each node's incoming edges also send messages back."""

    def forward(self, x, edge_index):
        src, dst = edge_index[0], edge_index[1]
        z = self.lin(x).unflatten(-1, (self.heads, -1))
        of_src, of_dst = self.ends(z)
        weights = softmax_at_nodes(F.leaky_relu(of_src[src] + of_dst[dst], 0.2), dst, len(x))[..., None]
        there = torch.zeros_like(z).index_add(0, dst, z[src] * weights)
        back = torch.zeros_like(z).index_add(0, src, z[dst] * weights)
        return (there + back).flatten(1)


def case_messages_both_ways(H, L, Dk):
    return _graph(BothWays, H, L, Dk)


class OneMore(Edges):
    """A node may attend to nothing: its weights sum to less than one."""

    def weights(self, scores, src, dst, number):
        exponentials = scores.exp()
        return exponentials / (1 + scores.new_zeros(number, scores.shape[1]).index_add(0, dst, exponentials)[dst])


def case_one_more_in_the_sum(H, L, Dk):
    return _graph(OneMore, H, L, Dk)


class Weighted(Edges):
    """Given weights of the edges are multiplied by those of attention."""

    def forward(self, x, edge_index, given):
        src, dst = edge_index
        z = self.lin(x).unflatten(-1, (self.heads, -1))
        of_src, of_dst = self.ends(z)
        weights = softmax_at_nodes(F.leaky_relu(of_src[src] + of_dst[dst], 0.2), dst, len(x)) * given[:, None]
        return torch.zeros_like(z).index_add(0, dst, z[src] * weights[..., None]).flatten(1)


def case_weighted_edges(H, L, Dk):
    return Weighted(H * Dk, H), (torch.randn(L, H * Dk), edges(L), torch.rand(3 * L)), {}


class Beside(Edges):
    """What a node hears is added to what it is."""

    def forward(self, x, edge_index):
        src, dst = edge_index
        z = self.lin(x).unflatten(-1, (self.heads, -1))
        of_src, of_dst = self.ends(z)
        weights = softmax_at_nodes(F.leaky_relu(of_src[src] + of_dst[dst], 0.2), dst, len(x))
        return z.index_add(0, dst, z[src] * weights[..., None]).flatten(1)


def case_edges_beside_themselves(H, L, Dk):
    return _graph(Beside, H, L, Dk)


class ReadTwice(Edges):
    """The sums of neighbourhoods are read by two heads of a network, one of which is a plain sum."""

    def forward(self, x, edge_index):
        src, dst = edge_index
        z = self.lin(x).unflatten(-1, (self.heads, -1))
        of_src, of_dst = self.ends(z)
        weights = softmax_at_nodes((of_src[src] + of_dst[dst]).tanh(), dst, len(x))
        attended = torch.zeros_like(z).index_add(0, dst, z[src] * weights[..., None])
        return attended.flatten(1), torch.zeros_like(z).index_add(0, dst, z[src]).flatten(1)


def case_read_twice_on_edges(H, L, Dk):
    return _graph(ReadTwice, H, L, Dk)


class SourcesOnly(Edges):
    """An option leaves out the score of the target, which adds the same to all of its edges."""

    def ends(self, z):
        of_src = (z * self.att_src).sum(-1)
        return of_src, torch.zeros_like(of_src)


def case_scores_of_sources_only(H, L, Dk):
    return _graph(SourcesOnly, H, L, Dk)


class Neighbours(nn.Module):
    """A projection serves a node and its neighbours; an option leaves out the other one."""

    def __init__(self, width, heads):
        super().__init__()
        self.lin_l, self.lin_r = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x, edge_index):
        z = self.lin_l(x)
        return (z[edge_index[0]] + z[edge_index[1]]).relu()


def case_symmetric_projection(H, L, Dk):
    return _graph(Neighbours, H, L, Dk)


class WithoutRoot(Mean):
    """An option leaves out the projection of the node itself."""

    def __init__(self, width, heads):
        super().__init__(width, heads)
        self.own = nn.Linear(width, width, bias=False)

    def forward(self, x, edge_index):
        z = self.neighbours(x)
        return z + torch.zeros_like(z).index_add(0, edge_index[1], z[edge_index[0]])


def case_root_weight_left_out(H, L, Dk):
    return _graph(WithoutRoot, H, L, Dk)


def _adjacency(L, B):
    adj = torch.rand(B, L, L) < 0.5
    return adj | torch.eye(L, dtype=torch.bool)


class SelfLoops(Dense):
    """Each node also listens to itself, whatever the adjacency says."""

    def forward(self, x, adj):
        return super().forward(x, adj | torch.eye(x.shape[1], dtype=torch.bool))


def case_self_loops_added(B, H, L, Dk):
    return SelfLoops(H * Dk, H), (torch.randn(B, L, H * Dk), _adjacency(L, B)), {}, ["adj=keep"]


class Replaced(Dense):
    """The features of nodes without neighbours are put in afterwards."""

    def forward(self, x, adj):
        z = self.lin(x).unflatten(-1, (self.heads, -1))
        seen = adj | ~adj.any(-1, keepdim=True)
        scores = F.leaky_relu(self.pairs(z), 0.2).masked_fill(~seen[..., None], -math.inf)
        context = torch.einsum("bijh,bjhd->bihd", scores.softmax(dim=2), z)
        return context.flatten(2).where(adj.any(-1, keepdim=True), 0.0)


def case_nodes_without_neighbours_replaced(B, H, L, Dk):
    args = torch.randn(B, L, H * Dk), _adjacency(L, B)
    return Replaced(H * Dk, H), args, {}, ["adj=keep"]


class KeptFromZero(Dense):
    """Exponentials of neighbours only, whose sum is kept from zero."""

    def forward(self, x, adj):
        z = self.lin(x).unflatten(-1, (self.heads, -1))
        exponentials = F.leaky_relu(self.pairs(z), 0.2).exp() * adj[..., None]
        weights = exponentials / exponentials.sum(dim=2, keepdim=True).clamp(min=1e-9)
        return torch.einsum("bijh,bjhd->bihd", weights, z).flatten(2)


def case_sums_kept_from_zero(B, H, L, Dk):
    args = torch.randn(B, L, H * Dk), _adjacency(L, B)
    return KeptFromZero(H * Dk, H), args, {}, ["adj=keep", "zero-masked-rows"]


def _three(function, B, H, Lq, Lk, Dk):
    return function, (torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)), {}


def by_total_weight(query, key, value):
    """Attend in (B, H, L, Dk), and return how much weight each key got in all heads, relative to the most."""
    weights = F.softmax(query @ key.mT * query.shape[-1] ** -0.5, dim=-1)
    total = weights.sum(dim=1)
    return weights @ value, total.sum(dim=1) / total.sum(dim=1).amax(dim=-1, keepdim=True)


def case_keys_by_total_weight(B, H, Lq, Lk, Dk):
    return _three(by_total_weight, B, H, Lq, Lk, Dk)


class Rollout(nn.Module):
    """The heads' maps are summed, with one for the token itself, and normalised again."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        rollout = 0.5 * weights.sum(dim=1) + 0.5 * torch.eye(x.shape[1])
        return (weights @ v).transpose(1, 2).flatten(2), rollout / rollout.sum(dim=-1, keepdim=True)


def case_rollout_renormalised(B, H, L, Dk):
    return Rollout(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def with_summed_maps(query, key, value):
    """Attend in (B, H, L, Dk), and return the sum of the heads' maps as a score of each pair."""
    weights = F.softmax(query @ key.mT * query.shape[-1] ** -0.5, dim=-1)
    return weights @ value, weights.sum(dim=1)


def case_summed_maps_returned(B, H, Lq, Lk, Dk):
    return _three(with_summed_maps, B, H, Lq, Lk, Dk)


class Clusters(nn.Module):
    """Each token is assigned to clusters, whose tokens are summed, as in DiffPool."""

    def __init__(self, width, clusters):
        super().__init__()
        self.assign, self.value = nn.Linear(width, clusters), nn.Linear(width, width)

    def forward(self, x):
        return self.assign(x).softmax(dim=-1).mT @ self.value(x)


def case_tokens_to_clusters(B, H, L, Dk):
    return Clusters(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


class Residuals(nn.Module):
    """The residuals of tokens to cluster centres, weighed by their assignment, as in NetVLAD."""

    def __init__(self, width, clusters):
        super().__init__()
        self.assign, self.centres = nn.Linear(width, clusters), nn.Parameter(torch.randn(clusters, width))

    def forward(self, x):
        weights = torch.softmax(self.assign(x), dim=2)
        return (weights.unsqueeze(-1) * (x.unsqueeze(2) - self.centres)).sum(dim=1)


def case_residuals_of_clusters(B, H, L, Dk):
    return Residuals(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


class Votes(nn.Module):
    """Each token divides its vote among the clusters, of which each has another vote of it."""

    def __init__(self, width, clusters):
        super().__init__()
        self.votes = nn.Linear(width, clusters * width, bias=False)
        self.clusters = clusters

    def forward(self, x):
        votes = self.votes(x).unflatten(-1, (self.clusters, -1))
        return torch.einsum("blh,blhd->bhd", votes.mean(-1).softmax(dim=-1), votes)


def case_votes_of_tokens(B, H, L, Dk):
    return Votes(Dk, H), (torch.randn(B, L, Dk),), {}
