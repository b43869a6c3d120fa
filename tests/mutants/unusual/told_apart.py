"""Claims about code in which more than one tensor, call or step must be told apart from others like it."""

import torch
from torch import nn

from tests.mutants.plain import attention, softmax

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 7, "L": 9, "Dk": 8})
PAST = ({"B": 4, "H": 3, "Lp": 9, "Dk": 6}, {"B": 5, "H": 4, "Lp": 7, "Dk": 8})
UNUSUAL = [
    ("one_embedding_of_keys_and_values", *SIZES),
    ("step_that_writes_its_slot", *PAST),
    ("heads_in_a_loop", *SIZES),
    ("states_of_a_network", *SIZES),
    ("norm_of_a_flat_sample", *SIZES),
]


class Facts(nn.Module):
    """A memory with keys and values of their own, read twice (Miller et al. 2016)."""

    def __init__(self, width):
        super().__init__()
        self.embed = nn.Linear(width, width, bias=False)
        self.hops = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2))

    def forward(self, question, facts_k, facts_v):
        query, keys, values = (self.embed(one) for one in (question, facts_k, facts_v))
        for hop in self.hops:
            shares = torch.einsum("bd,bmd->bm", query, keys).softmax(dim=1)
            query = hop(query + torch.einsum("bm,bmd->bd", shares, values))
        return query


def case_one_embedding_of_keys_and_values(B, H, L, Dk):
    width = H * Dk
    given = torch.randn(B, width), torch.randn(B, L, width), torch.randn(B, L, width)
    return Facts(width), given, {}, ["separate-values", "scale=1"]


def reference_one_embedding_of_keys_and_values(module, question, facts_k, facts_v):
    query, keys, values = (one @ module.embed.weight.T for one in (question, facts_k, facts_v))
    for hop in module.hops:
        query = (query + attention(query[:, None], keys, values, scale=1.0)[:, 0]) @ hop.weight.T
    return query


class Step(nn.Module):
    """A step of sequences of several lengths: the new key takes the slot of its position."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv = (nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, token, cache_k, cache_v, position):
        q, k, v = (layer(token).unflatten(-1, (self.heads, -1)) for layer in (self.wq, self.wk, self.wv))
        rows, slots = torch.arange(len(token)), torch.arange(cache_k.shape[2])
        cache_k, cache_v = cache_k.clone(), cache_v.clone()
        cache_k[rows, :, position], cache_v[rows, :, position] = k, v
        scores = torch.einsum("bhd,bhsd->bhs", q, cache_k) * q.shape[-1] ** -0.5
        scores = scores.masked_fill((slots > position[:, None])[:, None], -torch.inf)
        return torch.einsum("bhs,bhsd->bhd", scores.softmax(-1), cache_v).flatten(1)


def case_step_that_writes_its_slot(B, H, Lp, Dk):
    position = Lp - 1 - (4 * torch.arange(B)) % (Lp - 1)
    given = torch.randn(B, H * Dk), torch.randn(B, H, Lp, Dk), torch.randn(B, H, Lp, Dk), position
    return Step(H * Dk, H), given, {}, ["position=last-token", "scale=1/sqrt(Dk)"]


def reference_step_that_writes_its_slot(module, token, cache_k, cache_v, position):
    contexts = []
    for element, place in enumerate(position.tolist()):
        q, k, v = (
            (layer.weight @ token[element]).unflatten(0, (module.heads, -1))
            for layer in (module.wq, module.wk, module.wv)
        )
        keys = torch.cat([cache_k[element, :, :place], k[:, None]], 1)
        values = torch.cat([cache_v[element, :, :place], v[:, None]], 1)
        contexts.append(attention(q[:, None], keys, values).flatten())
    return torch.stack(contexts)


class Loop(nn.Module):
    """One head after the other, each with its own features of the projections."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        width = x.shape[-1] // self.heads
        contexts = []
        for head in range(self.heads):
            q, k, v = (one(x)[..., head * width : (head + 1) * width] for one in (self.q, self.k, self.v))
            contexts.append((q @ k.mT / width**0.5).softmax(-1) @ v)
        return torch.cat(contexts, -1)


def case_heads_in_a_loop(B, H, L, Dk):
    return Loop(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["scale=1/sqrt(Dk)"]


class States(nn.Module):
    """A decoder's states attend to an encoder's (Luong et al. 2015, the score `dot`)."""

    def __init__(self, width, inner):
        super().__init__()
        self.encoder, self.decoder = (nn.GRU(width, inner, batch_first=True) for _ in range(2))

    def forward(self, source, target):
        memory, last = self.encoder(source)
        states, _ = self.decoder(target, last)
        return (states @ memory.mT).softmax(-1) @ memory


def case_states_of_a_network(B, H, L, Dk):
    return States(Dk, H * Dk), (torch.randn(B, L, Dk), torch.randn(B, L + 2, Dk)), {}, ["scale=1"]


def reference_states_of_a_network(module, source, target):
    memory, last = module.encoder(source)
    states, _ = module.decoder(target, last)
    weights = softmax(torch.einsum("bid,bjd->bij", states, memory))
    return torch.einsum("bij,bjd->bid", weights, memory)


class FlatNorm(nn.Module):
    """A sample is one vector to its norm, and rows of tokens to attention."""

    def __init__(self, tokens, width):
        super().__init__()
        self.tokens, self.norm = tokens, nn.LayerNorm(tokens * width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        rows = self.norm(x.flatten(1)).unflatten(1, (self.tokens, -1))
        q, k, v = self.q(rows), self.k(rows), self.v(rows)
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def case_norm_of_a_flat_sample(B, H, L, Dk):
    return FlatNorm(L, H * Dk), (torch.randn(B, L, H * Dk),), {}, ["scale=1/sqrt(H*Dk)"]
