"""AS809: a result is computed and discarded."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, softmax

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS809", "norm_dropped", *SIZES),
    ("AS809", "weights_not_masked", *SIZES),
    ("AS809", "gate_dropped", *SIZES),
    ("AS809", "visited_not_written", *SIZES),
    ("AS809", "chosen_not_hidden", *SIZES),
    ("AS809", "seen_not_filled", *SIZES),
    ("AS809", "turned_and_forgotten", *SIZES),
    ("AS809", "attended_and_forgotten", *SIZES),
    ("AS809", "order_bound_to_the_loop", *SIZES),
    ("AS809", "dicts_left_in_order", *SIZES),
    ("AS809", "pairs_left_in_order", *SIZES),
]


def _qkv(B, H, L, Dk):
    return tuple(torch.randn(3, B, H, L, Dk))


class Cosine(nn.Module):
    """Scores of normalised queries and keys."""

    def forward(self, q, k, v):
        q = F.normalize(q, dim=-1)
        k = F.normalize(k, dim=-1)
        return F.scaled_dot_product_attention(q, k, v)


class NormDropped(nn.Module):
    def forward(self, q, k, v):
        q = F.normalize(q, dim=-1)
        F.normalize(k, dim=-1)  # wrong: AS809 norm_dropped
        return F.scaled_dot_product_attention(q, k, v)


def wrong_norm_dropped(B, H, L, Dk):
    return NormDropped(), _qkv(B, H, L, Dk), {}


def right_norm_dropped(B, H, L, Dk):
    return Cosine(), _qkv(B, H, L, Dk), {}


def reference_norm_dropped(module, q, k, v):
    q, k = (x / x.square().sum(-1, keepdim=True).sqrt() for x in (q, k))
    return attention(q, k, v)


def weights_not_masked(q, k, v):
    weights = (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(-1)
    weights.masked_fill(weights < 0.05, 0.0)  # wrong: AS809 weights_not_masked
    return weights / weights.sum(-1, keepdim=True) @ v


def weights_masked(q, k, v):
    weights = (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(-1)
    weights = weights.masked_fill(weights < 0.05, 0.0)
    return weights / weights.sum(-1, keepdim=True) @ v


def wrong_weights_not_masked(B, H, L, Dk):
    return weights_not_masked, _qkv(B, H, L, Dk), {}


def right_weights_not_masked(B, H, L, Dk):
    return weights_masked, _qkv(B, H, L, Dk), {}


def reference_weights_not_masked(function, q, k, v):
    weights = softmax(torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5)
    kept = weights * (weights >= 0.05)
    return torch.einsum("bhij,bhjd->bhid", kept / kept.sum(-1, keepdim=True), v)


class Gated(nn.Module):
    """The context is gated by the queries."""

    def gated(self, context, gate):
        return context * gate

    def forward(self, q, k, v):
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
        context = torch.einsum("bhij,bhjd->bhid", F.softmax(scores, dim=-1), v)
        return self.gated(context, q.sigmoid())


class GateDropped(Gated):
    def gated(self, context, gate):
        context * gate  # wrong: AS809 gate_dropped
        return context


def wrong_gate_dropped(B, H, L, Dk):
    return GateDropped(), _qkv(B, H, L, Dk), {}


def right_gate_dropped(B, H, L, Dk):
    return Gated(), _qkv(B, H, L, Dk), {}


def reference_gate_dropped(module, q, k, v):
    return attention(q, k, v) / (1 + torch.exp(-q))


def halves(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first.cos() * second, first.sin() * second), dim=-1)


def both(q, k):
    return halves(q), halves(k)


def turned(q, k, v):
    q, k = both(q, k)
    return (q @ k.mT / q.size(-1) ** 0.5).softmax(dim=-1) @ v


def turned_and_forgotten(q, k, v):
    first, second = both(q, k)  # wrong: AS809 turned_and_forgotten
    first, second = q, k
    return (first @ second.mT / q.size(-1) ** 0.5).softmax(dim=-1) @ v


def wrong_turned_and_forgotten(B, H, L, Dk):
    return turned_and_forgotten, _qkv(B, H, L, Dk), {}


def right_turned_and_forgotten(B, H, L, Dk):
    return turned, _qkv(B, H, L, Dk), {}


def reference_turned_and_forgotten(function, q, k, v):
    half = q.shape[-1] // 2
    parts = ((x[..., :half], x[..., half:]) for x in (q, k))
    return attention(*(torch.cat((b * torch.cos(a), b * torch.sin(a)), -1) for a, b in parts), v)


def residual(x):
    context = F.scaled_dot_product_attention(x, x, x)
    return x + context.tanh()


def residual_of_itself(x):
    _context = F.scaled_dot_product_attention(x, x, x)  # wrong: AS809 attended_and_forgotten
    return x + x.tanh()


def wrong_attended_and_forgotten(B, H, L, Dk):
    return residual_of_itself, (torch.randn(B, H, L, Dk),), {}


def right_attended_and_forgotten(B, H, L, Dk):
    return residual, (torch.randn(B, H, L, Dk),), {}


def reference_attended_and_forgotten(function, x):
    return x + torch.tanh(attention(x, x, x))


def continued(q, k, v, order):
    """Each element goes on with the keys and values of another one."""
    past = [tensor[order] for tensor in (k, v)]
    return attend(q, *past)


def continued_unordered(q, k, v, order):
    past = [k, v]
    for tensor in past:
        tensor = tensor[order]  # wrong: AS809 order_bound_to_the_loop
    return attend(q, *past)


def attend(q, k, v):
    return (q @ k.mT / q.size(-1) ** 0.5).softmax(dim=-1) @ v


def _order_bound_to_the_loop(function, B, H, L, Dk):
    return function, (*_qkv(B, H, L, Dk), torch.arange(B).roll(1))


def wrong_order_bound_to_the_loop(B, H, L, Dk):
    return _order_bound_to_the_loop(continued_unordered, B, H, L, Dk)


def right_order_bound_to_the_loop(B, H, L, Dk):
    return _order_bound_to_the_loop(continued, B, H, L, Dk)


def reference_order_bound_to_the_loop(function, q, k, v, order):
    return torch.stack([attention(q[i], k[order[i]], v[order[i]]) for i in range(len(q))])


class Hypotheses(nn.Module):
    """Each element goes on with the cache of the element from which it comes."""

    def reorder(self, caches, order):
        for cache in caches:
            cache.update({name: tensor.index_select(0, order) for name, tensor in cache.items()})
        return caches

    def forward(self, q, k, v, order):
        (cache,) = self.reorder([{"k": k, "v": v}], order)
        return attend(q, cache["k"], cache["v"])


class HypothesesLeftInOrder(Hypotheses):
    def reorder(self, caches, order):
        for cache in caches:
            cache = {name: t.index_select(0, order) for name, t in cache.items()}  # wrong: AS809 dicts_left_in_order
        return caches


def wrong_dicts_left_in_order(B, H, L, Dk):
    return _order_bound_to_the_loop(HypothesesLeftInOrder(), B, H, L, Dk)


def right_dicts_left_in_order(B, H, L, Dk):
    return _order_bound_to_the_loop(Hypotheses(), B, H, L, Dk)


reference_dicts_left_in_order = reference_order_bound_to_the_loop


def beam_step(q, k, v, order):
    pasts = [(k, v)]
    for place, past in enumerate(pasts):
        pasts[place] = tuple(torch.index_select(state, 0, order) for state in past)
    return F.scaled_dot_product_attention(q, *pasts[0])


def beam_step_left_in_order(q, k, v, order):
    pasts = [(k, v)]
    for past in pasts:
        past = tuple(torch.index_select(state, 0, order) for state in past)  # wrong: AS809 pairs_left_in_order
    return F.scaled_dot_product_attention(q, *pasts[0])


def wrong_pairs_left_in_order(B, H, L, Dk):
    return _order_bound_to_the_loop(beam_step_left_in_order, B, H, L, Dk)


def right_pairs_left_in_order(B, H, L, Dk):
    return _order_bound_to_the_loop(beam_step, B, H, L, Dk)


reference_pairs_left_in_order = reference_order_bound_to_the_loop


class Tour(nn.Module):
    """Chooses a token three times, each at most once, and returns the weights of each choice."""

    def choose(self, visited, index):
        return visited.scatter(1, index, True)

    def forward(self, q, k, v):
        scores = (q[:, 0, :1] @ k[:, 0].mT).squeeze(1) / math.sqrt(q.size(-1))
        visited = torch.zeros(scores.shape, dtype=torch.bool)
        contexts = []
        for _ in range(3):
            weights = scores.masked_fill(visited, -math.inf).softmax(dim=1)
            visited = self.choose(visited, weights.argmax(dim=1, keepdim=True))
            contexts.append((weights.unsqueeze(1) @ v[:, 0]).squeeze(1))
        return torch.stack(contexts, dim=1)


class TourAgain(Tour):
    def choose(self, visited, index):
        visited.scatter(1, index, True)  # wrong: AS809 visited_not_written
        return visited


class TourIndexed(Tour):
    def choose(self, visited, index):
        visited.index_put((torch.arange(len(index)), index[:, 0]), torch.tensor(True))  # wrong: AS809 chosen_not_hidden
        return visited


class TourFilled(Tour):
    def choose(self, visited, index):
        visited.masked_fill(F.one_hot(index[:, 0], visited.size(1)).bool(), True)  # wrong: AS809 seen_not_filled
        return visited


def wrong_visited_not_written(B, H, L, Dk):
    return TourAgain(), _qkv(B, H, L, Dk), {}


def right_visited_not_written(B, H, L, Dk):
    return Tour(), _qkv(B, H, L, Dk), {}


def wrong_chosen_not_hidden(B, H, L, Dk):
    return TourIndexed(), _qkv(B, H, L, Dk), {}


def right_chosen_not_hidden(B, H, L, Dk):
    return Tour(), _qkv(B, H, L, Dk), {}


def wrong_seen_not_filled(B, H, L, Dk):
    return TourFilled(), _qkv(B, H, L, Dk), {}


def right_seen_not_filled(B, H, L, Dk):
    return Tour(), _qkv(B, H, L, Dk), {}


def reference_visited_not_written(module, q, k, v):
    scores = torch.einsum("bd,bld->bl", q[:, 0, 0], k[:, 0]) / q.shape[-1] ** 0.5
    contexts = []
    for _ in range(3):
        weights = softmax(scores)
        contexts.append(torch.einsum("bl,bld->bd", weights, v[:, 0]))
        scores = torch.where(scores == scores.max(1, keepdim=True).values, -math.inf, scores)
    return torch.stack(contexts, 1)


reference_chosen_not_hidden = reference_seen_not_filled = reference_visited_not_written
