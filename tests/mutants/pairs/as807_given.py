"""AS807: functions get their weights as arguments, and what attention computes with some of them cancels out."""

import torch
import torch.nn.functional as F

SIZES = (
    {"H": 4, "L": 7, "Dk": 5, "D": 9},
    {"H": 3, "L": 9, "Dk": 4, "D": 7},
    {"H": 2, "L": 11, "Dk": 6, "D": 8},
)
PAIRS = [
    ("AS807", "messages_of_receivers", *SIZES),
    ("AS807", "tails_for_heads", *SIZES),
    ("AS807", "own_point_weighed", *SIZES),
]


def edges(L):
    """Draw the sources and targets of edges that lead to every node."""
    return torch.stack([torch.randint(0, L, (3 * L,)), torch.arange(3 * L) % L])


def softmax_at_targets(logits, dst, number):
    """Return weights (E, H), which sum to one over the edges of each target."""
    places = dst[:, None].expand_as(logits)
    most = logits.new_full((number, logits.shape[1]), -torch.inf).scatter_reduce(0, places, logits, "amax")
    exponentials = torch.exp(logits - most[dst])
    return exponentials / torch.zeros_like(most).scatter_add(0, places, exponentials)[dst]


def weights_of_edges(z, src, dst, att):
    logits = F.leaky_relu(torch.einsum("ehd,hd->eh", torch.cat((z[src], z[dst]), dim=-1), att), 0.2)
    return softmax_at_targets(logits, dst, len(z)).unsqueeze(-1)


def graph_attention(x, edge_index, weight, att):
    """Let the nodes L D attend to the sources of their edges 2 E, by (D, H*Dk) and (H, 2*Dk)."""
    z = (x @ weight).unflatten(-1, (att.shape[0], -1))
    src, dst = edge_index
    alpha = weights_of_edges(z, src, dst, att)
    return F.elu(torch.zeros_like(z).index_add(0, dst, alpha * z[src]).flatten(1))


def graph_attention_of_receivers(x, edge_index, weight, att):
    """Let the nodes L D attend to the sources of their edges 2 E, by (D, H*Dk) and (H, 2*Dk)."""
    z = (x @ weight).unflatten(-1, (att.shape[0], -1))
    src, dst = edge_index
    alpha = weights_of_edges(z, src, dst, att)
    out = torch.zeros_like(z).index_add(0, dst, alpha * z[dst])  # wrong: AS807 messages_of_receivers
    return F.elu(out.flatten(1))


def _graph(function, H, L, Dk, D):
    weights = torch.randn(D, H * Dk) / D**0.5, torch.randn(H, 2 * Dk) / Dk**0.5
    return function, (torch.randn(L, D), edges(L), *weights), {}


def wrong_messages_of_receivers(H, L, Dk, D):
    return _graph(graph_attention_of_receivers, H, L, Dk, D)


def right_messages_of_receivers(H, L, Dk, D):
    return _graph(graph_attention, H, L, Dk, D)


def reference_messages_of_receivers(_, x, edge_index, weight, att):
    H = att.shape[0]
    z = torch.einsum("li,iv->lv", x, weight).unflatten(-1, (H, -1))
    of_src, of_dst = att.chunk(2, dim=-1)
    out = torch.zeros_like(z)
    for node in range(len(x)):
        own = edge_index[0][edge_index[1] == node]
        for h in range(H):
            scores = z[own, h] @ of_src[h] + z[node, h] @ of_dst[h]
            scores = torch.where(scores > 0, scores, 0.2 * scores)
            weights = scores.exp() / scores.exp().sum()
            out[node, h] = sum(w * z[source, h] for w, source in zip(weights, own, strict=True))
    out = out.flatten(1)
    return torch.where(out > 0, out, out.exp() - 1)


def weights_of_relations(x, triples, wq, wk, relations):
    """Return weights (E, H, 1) of triples (head, relation, tail), which sum to one over those of each tail."""
    head, relation, tail = triples.unbind(1)
    q, k = (torch.einsum("li,ihd->lhd", x, weight) for weight in (wq, wk))
    logits = (q[tail] * (k[head] + relations[relation])).sum(-1) * q.shape[-1] ** -0.5
    return softmax_at_targets(logits, tail, len(x)).unsqueeze(-1)


def relational(x, triples, wq, wk, wv, relations, wo):
    """Update entities L D by those at the heads of their triples E 3: three of (D, H, Dk), (R, H, Dk), (H*Dk, D)."""
    head, _, tail = triples.unbind(1)
    messages = weights_of_relations(x, triples, wq, wk, relations) * torch.einsum("li,ihd->lhd", x, wv)[head]
    update = x.new_zeros(len(x), len(wo)).scatter_add(0, tail[:, None].expand(-1, len(wo)), messages.flatten(1))
    return F.layer_norm(x + update @ wo, x.shape[1:])


def relational_of_tails(x, triples, wq, wk, wv, relations, wo):
    """Update entities L D by those at the heads of their triples E 3: three of (D, H, Dk), (R, H, Dk), (H*Dk, D)."""
    _, _, tail = triples.unbind(1)
    messages = weights_of_relations(x, triples, wq, wk, relations) * torch.einsum("li,ihd->lhd", x, wv)[tail]
    places = tail[:, None].expand(-1, len(wo))
    update = x.new_zeros(len(x), len(wo)).scatter_add(0, places, messages.flatten(1))  # wrong: AS807 tails_for_heads
    return F.layer_norm(x + update @ wo, x.shape[1:])


def _triples(function, H, L, Dk, D):
    src, dst = edges(L)
    weights = *(torch.randn(3, D, H, Dk) / D**0.5), torch.randn(10, H, Dk), torch.randn(H * Dk, D) / (H * Dk) ** 0.5
    return function, (torch.randn(L, D), torch.stack((src, torch.randint(10, (3 * L,)), dst), dim=1), *weights), {}


def wrong_tails_for_heads(H, L, Dk, D):
    return _triples(relational_of_tails, H, L, Dk, D)


def right_tails_for_heads(H, L, Dk, D):
    return _triples(relational, H, L, Dk, D)


def reference_tails_for_heads(_, x, triples, wq, wk, wv, relations, wo):
    out = torch.zeros(len(x), *wv.shape[1:], dtype=x.dtype)
    for entity in range(len(x)):
        own = triples[triples[:, 2] == entity]
        for h in range(wq.shape[1]):
            keys = x[own[:, 0]] @ wk[:, h] + relations[own[:, 1], h]
            scores = keys @ (x[entity] @ wq[:, h]) / wq.shape[-1] ** 0.5
            out[entity, h] = scores.exp() / scores.exp().sum() @ (x[own[:, 0]] @ wv[:, h])
    out = x + out.flatten(1) @ wo
    centred = out - out.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def set_attention(x, wq, wk, wv, wo):
    """Let the points L D of a set attend to each other by elu(q) + 1 and elu(k) + 1: (H, D, Dk) and (H, Dk, D)."""
    q, k, v = (torch.einsum("li,hid->hld", x, weight) for weight in (wq, wk, wv))
    q, k = F.elu(q) + 1, F.elu(k) + 1
    total = torch.einsum("hqd,hkd->hq", q, k).unsqueeze(-1)
    context = torch.einsum("hqd,hde->hqe", q, torch.einsum("hkd,hke->hde", k, v)) / total
    return torch.einsum("hqe,hei->qi", context, wo)


def set_attention_to_itself(x, wq, wk, wv, wo):
    """Let the points L D of a set attend to each other by elu(q) + 1 and elu(k) + 1: (H, D, Dk) and (H, Dk, D)."""
    q, k, v = (torch.einsum("li,hid->hld", x, weight) for weight in (wq, wk, wv))
    q, k = F.elu(q) + 1, F.elu(k) + 1
    total = torch.einsum("hqd,hkd->hq", q, k).unsqueeze(-1)
    context = torch.einsum("hqd,hkd,hqe->hqe", q, k, v) / total  # wrong: AS807 own_point_weighed
    return torch.einsum("hqe,hei->qi", context, wo)


def _set(function, H, L, Dk, D):
    weights = *(torch.randn(3, H, D, Dk) / D**0.5), torch.randn(H, Dk, D) / (H * Dk) ** 0.5
    return function, (torch.randn(L, D), *weights), {}


def wrong_own_point_weighed(H, L, Dk, D):
    return _set(set_attention_to_itself, H, L, Dk, D)


def right_own_point_weighed(H, L, Dk, D):
    return _set(set_attention, H, L, Dk, D)


def reference_own_point_weighed(_, x, wq, wk, wv, wo):
    out = torch.zeros_like(x)
    for h in range(len(wq)):
        q, k = (torch.where(one > 0, one + 1, one.exp()) for one in (x @ wq[h], x @ wk[h]))
        weights = q @ k.T
        out += weights / weights.sum(-1, keepdim=True) @ (x @ wv[h]) @ wo[h]
    return out
