"""Attention whose arguments are found by reading more of its code, or by changing several of them in turn."""

import itertools

import torch
from torch import nn


class _Base(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)

    def projected(self, x):
        """Return queries, keys and values, B H L Dk."""
        B, L, _ = x.shape
        return self.qkv(x).view(B, L, 3, self.heads, -1).permute(2, 0, 3, 1, 4)

    def attend(self, q, k, v, bias=0.0):
        return ((q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(-1) @ v).transpose(1, 2).flatten(2)


class OfOnePart(_Base):
    """Reads fields whose first word says of which part of a model they are."""

    def __init__(self, cfg):
        assert cfg.dec_scaling == 1
        super().__init__(cfg.dec_hidden_dim, cfg.dec_n_heads)

    def forward(self, x):
        return self.attend(*self.projected(x))


class OfParts(_Base):
    """Reads fields that have fields or keys of their own."""

    def __init__(self, config):
        super().__init__(config.width, config.attention.heads)
        self.drop = nn.Dropout(config.rates["dropout"])

    def forward(self, x):
        return self.drop(self.attend(*self.projected(x)))


class RotaryAngles(nn.Module):
    """Makes cosines and sines of positions, with fields that the attention doesn't read."""

    def __init__(self, cfg):
        super().__init__()
        self.register_buffer("rate", cfg.rotary_theta ** -torch.linspace(0, 1, cfg.width // cfg.heads))

    def forward(self, position_ids):
        angles = position_ids[..., None] * self.rate
        return angles.cos(), angles.sin()


class RotatedByPositions(_Base):
    def __init__(self, cfg):
        super().__init__(cfg.width, cfg.heads)

    def forward(self, x, cos, sin):
        q, k, v = self.projected(x)
        q, k = (one * cos[:, None] + one.roll(1, -1) * sin[:, None] for one in (q, k))
        assert (cos != sin).any()
        return self.attend(q, k, v)


class OfSquare(_Base):
    """Takes a map with the side that it is constructed for."""

    def __init__(self, channels, size):
        super().__init__(channels, 4)
        self.size = size

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[1], self.size * self.size).mT
        return self.attend(*self.projected(tokens))


class Tested(_Base):
    """Takes what it only tests for being true."""

    def __init__(self, dim, heads, mirrored):
        super().__init__(dim, heads)
        self.mirrored = mirrored
        if not isinstance(mirrored, bool):
            raise TypeError(mirrored)

    def forward(self, x):
        return self.attend(*self.projected(x.flip(1) if self.mirrored else x))


class WithoutEdges(_Base):
    """Can do without the features of edges, for which it has no layer by default."""

    def __init__(self, dim, heads, edge_width=None):
        super().__init__(dim, heads)
        self.of_edges = nn.Linear(edge_width, heads) if edge_width else None

    def forward(self, nodes, edges):
        q, k, v = self.projected(nodes)
        if edges is not None:
            return self.attend(q, k, v, self.of_edges(edges).permute(0, 3, 1, 2))
        return self.attend(q, k, v)


class OneStep(nn.Module):
    """Attends from one state of a decoder to the states of an encoder, of which some are padding."""

    def __init__(self, enc_dim, dec_dim):
        super().__init__()
        self.query = nn.Linear(dec_dim, enc_dim)

    def forward(self, enc_states, enc_len, dec_states):
        assert enc_len.dtype == torch.int64
        scores = (enc_states @ self.query(dec_states)[:, :, None]).squeeze(2)
        is_padding = torch.arange(enc_states.shape[1]) >= enc_len[:, None]
        return (scores.masked_fill(is_padding, -torch.inf).softmax(-1)[:, None] @ enc_states).squeeze(1)


class EmptyByDefault(_Base):
    """Needs an argument whose default is a tensor without elements."""

    def forward(self, x, pos_emb: torch.Tensor = torch.empty(0)):  # noqa: B008
        return self.attend(*self.projected(x + pos_emb))


class ByInitials(nn.Module):
    """Takes the widths of queries and values under their initials."""

    def __init__(self, d_model: int, q: int, v: int, h: int):
        super().__init__()
        self.heads = h
        self.queries, self.keys = nn.Linear(d_model, q * h), nn.Linear(d_model, q * h)
        self.values = nn.Linear(d_model, v * h)

    def forward(self, x):
        q, k, v = (
            one(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.queries, self.keys, self.values)
        )
        return (q @ k.mT).softmax(-1) @ v


class InChunks(_Base):
    """Attends inside of chunks, which are large by default and of which all have to be full."""

    def __init__(self, dim, heads, chunk_size=512):
        super().__init__(dim, heads)
        self.chunk_size = chunk_size

    def forward(self, x):
        chunks = x.shape[1] // self.chunk_size
        return torch.cat([self.attend(*self.projected(one)) for one in torch.stack(x.chunk(chunks, 1))], 1)


class BatchIsFirst(nn.Module):
    """Has queries and keys of heads behind tokens, and calls the batch N."""

    def forward(self, queries, keys, values):
        N, L, H, E = queries.shape
        _, S, _, D = values.shape
        assert keys.shape == (N, S, H, E) and L != S and D
        return torch.einsum("nhls,nshd->nlhd", torch.einsum("nlhe,nshe->nhls", queries, keys).softmax(-1), values)


class InTurn(_Base):
    """Takes five tensors and masks of five kinds beside queries and keys."""

    def __init__(self, dim, heads, dev):
        super().__init__(dim, heads)
        self.dev = dev

    def forward(self, queries, keys, padding_mask, order_mask, gaps, places):
        q, (_, k, v) = self.projected(queries)[0], self.projected(keys)
        scores = q @ k.mT + q @ self.projected(places)[1].mT
        scores = scores + torch.einsum("bhid,bijhd->bhij", q, gaps.unflatten(-1, (self.heads, -1)))
        scores = torch.where(padding_mask[:, None, :, None], scores, torch.zeros(()).to(self.dev))
        scores = scores.masked_fill(~order_mask.unsqueeze(0).expand(len(q), -1, -1)[:, None], -1.0)
        return scores.softmax(-1) @ v


class OfMemory(nn.Module):
    """Puts a memory in front of a sequence, with a position for each token of both, and two biases without keys."""

    def __init__(self, dim, d_inner, heads):
        super().__init__()
        self.heads, self.inner = heads, d_inner
        self.q, self.k, self.p = (nn.Linear(dim, heads * d_inner) for _ in range(3))

    def forward(self, x, memory, u, v, places):
        tokens, heads = torch.cat([memory, x]), (self.heads, self.inner)
        q = self.q(x).unflatten(-1, heads)
        by_content = torch.einsum("ibhd,jbhd->ijbh", q + u, self.k(tokens).unflatten(-1, heads))
        by_place = torch.einsum("ibhd,jhd->ijbh", q + v, self.p(places).view(len(tokens), *heads))
        return torch.einsum("ijbh,jbd->ibhd", (by_content + by_place).softmax(1), tokens)


class OfObjects(nn.Module):
    """Reads attributes that no tensor has."""

    def forward(self, queries, keys, values, hidden):
        scores = queries @ keys.mT
        if not hidden.is_trivial:
            scores = scores + hidden.added
        return scores.softmax(-1) @ values


class BatchOfMaps(_Base):
    """Calls the batch of its maps N."""

    def forward(self, x):
        N, C, H, W = x.shape
        return self.attend(*self.projected(x.reshape(N, C, H * W).mT))


class BesideMap(_Base):
    """Takes a map with one channel beside the one with the features."""

    def forward(self, x, saliency):
        b, _, h, w = x.shape
        q, k, v = self.projected(x.flatten(2).mT)
        return self.attend(q, k, v, saliency.view(b, 1, 1, h * w))


class OfPairs(_Base):
    """Takes features of each pair of nodes, which aren't edges in two rows."""

    def forward(self, nodes, edges):
        q, k, v = self.projected(nodes)
        return self.attend(q, k, v, edges.mean(-1)[:, None])


class OfDistances(_Base):
    """Takes an embedding of each distance under the name of positions."""

    def forward(self, x, pos):
        q, k, v = self.projected(x)
        assert pos.shape[1] == 2 * x.shape[1] - 1
        return self.attend(q, k, v, pos[:, : x.shape[1]].mean(-1)[:, None, None] * torch.arange(x.shape[1]))


class OnlyIfAsked(_Base):
    """Attends only if it is told to."""

    def __init__(self, dim, heads, use_attention=False):
        super().__init__(dim, heads)
        self.use_attention = use_attention

    def forward(self, x):
        return self.attend(*self.projected(x)) if self.use_attention else x


class OfFields(nn.Module):
    """Attends to the products of pairs of tensors in a list."""

    def __init__(self, dim):
        super().__init__()
        self.score = nn.Linear(dim, 1)

    def forward(self, fields):
        products = torch.cat([one * other for one, other in itertools.combinations(fields, 2)], 1)
        return (self.score(products).softmax(1).mT @ products).squeeze(1)


class OfActors(nn.Module):
    """Attends from each actor to all, of which each has a state and an action of widths of its own."""

    def __init__(self, widths):
        super().__init__()
        self.encoders = nn.ModuleList(nn.Linear(state + action, 16) for state, action in widths)

    def forward(self, actors):
        joined = [torch.cat((state, action), -1) for state, action in actors]
        tokens = torch.stack([encode(one) for encode, one in zip(self.encoders, joined, strict=True)], 1)
        return (tokens @ tokens.mT).softmax(-1) @ tokens
