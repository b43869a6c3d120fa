"""Attention whose arguments only attempts tell, or what its code does with them."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn


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


class FromMapping(_Base):
    """Reads a dictionary, with a key that it can do without."""

    def __init__(self, config):
        super().__init__(config["hidden_size"], config.get("num_heads", 4))
        self.scale = 1.0
        if "unheard_of" in config:
            self.scale = config["unheard_of"]["value"]

    def forward(self, x):
        return self.attend(*self.projected(x)) * self.scale


class Shifted(_Base):
    """Adds a vector for each head to the queries."""

    def forward(self, x, shift):
        q, k, v = self.projected(x)
        return self.attend((q.transpose(1, 2) + shift).transpose(1, 2), k, v)


class Commented(_Base):
    """Adds what only a comment describes."""

    def forward(self, x, shift, lift):
        # shift: [n_head, 1, d_head], added to the queries
        # lift: (n_head, 1, 1)
        q, k, v = self.projected(x)
        assert lift.shape == (self.heads, 1, 1)
        return self.attend(q + shift.view(self.heads, 1, -1), k, v, lift * torch.arange(x.shape[1]))


class BesideParameter(_Base):
    """Adds what a comment in the signature describes."""

    def forward(
        self,
        x,
        lift,  # (n_head, 1, 1)
    ):
        assert lift.shape == (self.heads, 1, 1)
        return self.attend(*self.projected(x), lift * torch.arange(x.shape[1]))


class NeedsMask(_Base):
    """Can't do without a mask, though its signature says so."""

    def forward(self, x, mask=None):
        mask = mask.repeat(self.heads, 1, 1).unflatten(0, (self.heads, -1)).transpose(0, 1)
        q, k, v = self.projected(x)
        return self.attend(q, k, v, torch.zeros(mask.shape).masked_fill(mask, float("-inf")))


class NeedsPadding(_Base):
    """Multiplies keys by a mask of tokens."""

    def forward(self, x, mask):
        q, k, v = self.projected(x)
        return self.attend(q, k * mask[:, None, :, None], v, -1e9 * (1 - mask[:, None, None, :]))


class OfNeighbours(nn.Module):
    """Lets each point see those that are nearest."""

    def __init__(self, d_points, k):
        super().__init__()
        self.k = k
        self.score = nn.Linear(d_points, 1)
        self.place = nn.Linear(3, d_points)

    def forward(self, xyz, features):
        nearest = torch.cdist(xyz, xyz).argsort()[:, :, : self.k]
        batch = torch.arange(len(xyz))[:, None, None]
        seen = features[batch, nearest] + self.place(xyz[batch, nearest])
        return (self.score(seen).softmax(-2) * seen).sum(-2)


class OfPlaces(nn.Module):
    """Takes positions that are no indices."""

    def __init__(self, dim):
        super().__init__()
        self.place = nn.Linear(3, dim)

    def forward(self, x, pos):
        apart = self.place(pos[:, :, None] - pos[:, None])
        return ((x[:, :, None] - x[:, None] + apart).softmax(-2) * (x[:, None] + apart)).sum(-2)


class RotatedBehindTokens(_Base):
    """Rotates heads that come after the tokens by a pair without an axis for the batch."""

    def forward(self, x, position_embeddings):
        cos, sin = position_embeddings
        q, k, v = self.projected(x)
        q = q.transpose(1, 2)
        first, second = q.chunk(2, -1)
        q = q * cos.unsqueeze(1) + torch.cat((-second, first), -1) * sin.unsqueeze(1)
        return self.attend(q.transpose(1, 2), k, v)


class OfRoads(nn.Module):
    """Relates the nodes of a network by what happened there at all times."""

    def __init__(self, device, in_channels, num_of_vertices, num_of_timesteps):
        super().__init__()
        self.over_time = nn.Parameter(torch.randn(num_of_timesteps, device=device))
        self.channels = nn.Parameter(torch.randn(in_channels))
        self.bias = nn.Parameter(torch.randn(num_of_vertices, num_of_vertices))

    def forward(self, x):
        left = x @ self.over_time
        right = (x.mT @ self.channels).mT if x.dim() == 3 else torch.einsum("bnct,c->bnt", x, self.channels)
        scores = left @ left.mT + right @ right.mT + self.bias
        return torch.einsum("bnm,bmct->bnct", scores.softmax(-1), x)


class OfTwoKinds(nn.Module):
    """Projects one thing by a layer of torch's, and another by a layer of its own."""

    def __init__(self, sound_units, picture_dim, n_dims, heads):
        super().__init__()
        self.heads = heads
        self.q, self.kv = nn.Linear(sound_units, n_dims), _Project(picture_dim, 2 * n_dims)

    def forward(self, sound, picture):
        q = self.q(sound).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(picture).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)


class _Project(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(before, after))

    def forward(self, x):
        return x @ self.weight


class WidthFirst(_Base):
    """Names the sides of a map in an unusual order."""

    def __init__(self, dim, heads, width=14, height=14):
        super().__init__(dim, heads)
        self.bias = nn.Parameter(torch.zeros(width * height))

    def forward(self, x):
        b, c, width, height = x.shape
        mixed = self.attend(*self.projected(x.flatten(2).mT), self.bias)
        return mixed.mT.reshape(b, c, width, height)


class LengthFirst(_Base):
    """Binds the sizes of two axes at once, and adds what has only one of them."""

    def forward(self, x, places):
        length, batch = x.size(0), x.size(1)
        x = x + places.view(length, 1, -1).expand(length, batch, -1)
        return self.attend(*self.projected(x.transpose(0, 1))).transpose(0, 1)


class Part(_Base):
    """Gets a layer about which its code says nothing."""

    def __init__(self, dim, heads, gadget):
        super().__init__(dim, heads)
        self.gadget = gadget

    def forward(self, x):
        return self.gadget(self.attend(*self.projected(x)))


class Elsewhere(nn.Module):
    """Constructs a part only where it is told to."""

    def __init__(self, dim, heads, special=False):
        super().__init__()
        self.layer = Part(dim, heads, nn.Identity()) if special else nn.Linear(dim, heads)

    def forward(self, x):
        return self.layer(x)


class Whole(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.part = Part(dim, heads, nn.Identity())

    def forward(self, x):
        return x + self.part(x)


class Lonely(nn.Module):
    """Nothing constructs it."""

    def __init__(self, dim, gadget):
        super().__init__()
        self.gadget = gadget

    def forward(self, x):
        return self.gadget(x)


class OnlyOnCuda(_Base):
    """Fails as code that calls `.cuda()` does where torch has no CUDA."""

    def forward(self, x):
        raise AssertionError("Torch not compiled with CUDA enabled")


class Undefined(_Base):
    def forward(self, x):
        return self.attend(*self.projected(x)) / maths.sqrt(2)


class NeverRuns(nn.Module):
    """Takes a matrix, and fails with it later than with a batch of them."""

    def __init__(self, dim):
        super().__init__()
        self.project = nn.Linear(dim, dim)

    def forward(self, x):
        weights = torch.mm(self.project(x), x.mT).softmax(-1)
        raise ValueError(f"last: {weights.dim()}")


class Described(nn.Module):
    """Tells in comments above what it changes which shapes its arguments have."""

    def __init__(self, hidden_dim):
        super().__init__()
        self.energy = nn.Linear(3 * hidden_dim, hidden_dim)
        self.v = nn.Parameter(torch.rand(hidden_dim))

    def forward(self, hidden, encoder_outputs):
        # hidden shape [num_layers, batch_size, hidden_dim]
        # encoder_outputs shape [seq_len, batch_size, hidden_dim * 2]
        hidden = hidden[-1].expand(encoder_outputs.shape[0], -1, -1)
        energy = self.energy(torch.cat((hidden, encoder_outputs), dim=2)).tanh()
        return ((energy @ self.v).softmax(0)[..., None] * encoder_outputs).sum(0)


class OfOneAndMany(nn.Module):
    """Gets a vector, by which it indexes as a matrix, and several for each batch element, whose axes it names."""

    def __init__(self, hidden_dim: int = 64):
        super().__init__()
        self.score = nn.Linear(2 * hidden_dim, 1)

    def forward(self, one: torch.Tensor, many: torch.Tensor, many_mask: torch.Tensor):
        bsz, count, _ = many.shape
        both = torch.cat([one[:, None, :].expand(-1, count, -1), many], dim=-1)
        weights = self.score(both.tanh()).squeeze(-1).softmax(-1) * many_mask
        assert many_mask.shape == (bsz, count)
        return (weights[:, :, None] * many).sum(1)


@dataclass
class Settings:
    """Has required fields whose names say nothing."""

    per_part: int
    parts: int
    kind: str
    order: Literal["first", "last"]
    width: int
    heads: int
    decay: float

    @property
    def whole(self):
        return self.parts * self.per_part


class FromSettings(_Base):
    """Compares one field with texts, and makes masks of others' sizes."""

    def __init__(self, settings: Settings):
        super().__init__(settings.width, settings.heads)
        assert settings.kind in ("within", "across")
        assert settings.order != "neither"
        blocks = torch.block_diag(*[torch.ones(settings.per_part, settings.per_part) for _ in range(settings.parts)])
        self.register_buffer(
            "mask", blocks if settings.kind == "within" else torch.ones(settings.whole, settings.whole)
        )

    def forward(self, x):
        bias = self.mask[: x.shape[1], : x.shape[1]].log()
        return self.attend(*self.projected(x), bias)


class FromNamespace(_Base):
    """Fails with fields that are None."""

    def __init__(self, args):
        super().__init__(args.width, args.heads)
        self.device = torch.device(args.device)
        self.bias = nn.Parameter(torch.zeros(args.extent))
        if args.spread == "cuda":
            raise ValueError(args.spread)
        assert args.spread in ("even", "odd")

    def forward(self, x):
        assert x.size(1) <= len(self.bias)
        return self.attend(*self.projected(x.to(self.device)), self.bias[: x.size(1)])


class AddsMask(_Base):
    """Passes a mask on to what adds it to the scores."""

    def forward(self, x, mask):
        return self.biased(x, mask)

    def biased(self, x, mask):
        q, k, v = self.projected(x)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        scores = scores + mask[None, None].to(q.dtype)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class OfHeadWidth(nn.Module):
    """Tells in a comment that a parameter with the name of a width is that of a head."""

    def __init__(
        self,
        in_dim,
        out_dim,  # head dim
        unclear,  # number of heads
    ):
        super().__init__()
        self.heads, self.width = unclear, out_dim
        self.qkv = nn.Linear(in_dim, 3 * unclear * out_dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, self.width)).permute(2, 0, 3, 1, 4)
        return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)


class OfEdges(nn.Module):
    """Gets its sizes from the model that constructs it, which passes those of its edges too."""

    def __init__(self, in_dim, out_dim, heads=4, edge_dim=None):
        super().__init__()
        self.heads, self.width = heads, out_dim
        self.qkv = nn.Linear(in_dim, 3 * heads * out_dim)
        if edge_dim is not None:
            self.of_edges = nn.Linear(edge_dim, heads)

    def forward(self, x, edges):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, self.width)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT
        if edges is not None:
            scores = scores + self.of_edges(edges).movedim(-1, 1)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class WithEdges(nn.Module):
    def __init__(self, model_dim, edge_dim, heads):
        super().__init__()
        self.inner = OfEdges(model_dim, out_dim=int(model_dim / heads), edge_dim=edge_dim, heads=heads)

    def forward(self, x, edges):
        return self.inner(x, edges)


class OfArrays(_Base):
    """Takes items as arrays, of which a method makes tensors."""

    def __init__(self, item_num, hidden_units, heads):
        super().__init__(hidden_units, heads)
        self.items = nn.Embedding(item_num, hidden_units)

    def embedded(self, sequences):
        places = np.tile(np.arange(sequences.shape[1]), [sequences.shape[0], 1])
        places *= sequences != 0
        return self.items(torch.LongTensor(sequences)) + torch.from_numpy(places)[..., None]

    def forward(self, users, log_seqs):
        x = self.embedded(log_seqs) + self.items(users)
        return self.attend(*self.projected(x))


class FromAnyName(_Base):
    """Reads its sizes from an object whose name could be that of a size."""

    def __init__(self, H):
        super().__init__(H.n_emb, H.n_head)

    def forward(self, x):
        return self.attend(*self.projected(x))


class OfItems(_Base):
    """Takes the ids of items, which only a docstring and the number of items tell."""

    def __init__(self, num_items, hidden_dim, heads):
        super().__init__(hidden_dim, heads)
        self.items = nn.Embedding(num_items, hidden_dim)

    def forward(self, seq):
        """Attend between items.

        Args:
            seq: Items of shape (batch_size, seq_len).
        """
        return self.attend(*self.projected(self.items(seq)))


class OfWidths(nn.Module):
    """Has widths that only its layers tell, in a base class."""

    def __init__(self, model_dim: int, w_q_k: int):
        super().__init__()
        self.q = nn.Linear(model_dim, w_q_k)
        self.k = nn.Linear(model_dim, w_q_k)


class OfBase(OfWidths):
    def forward(self, x):
        return (self.q(x) @ self.k(x).mT * self.k.out_features**-0.5).softmax(-1) @ x


class Annotated(_Base):
    """Has annotations with names of its own for the axes."""

    def forward(self, x: Float[Tensor, "batch seq_len hidden"], c: Float[Tensor, "batch hidden"]):
        return self.attend(*self.projected(x)) * c[:, None]


class OfGraph(_Base):
    """Takes neighbours as a boolean mask."""

    def forward(self, x, adj_mask):
        B, L, _ = x.shape
        q, k, v = self.projected(x)
        hidden = torch.zeros(B, 1, L, L).masked_fill(~adj_mask, float("-inf"))
        return self.attend(q, k, v, hidden)


class BesideQuery(_Base):
    """Takes keys from what only stands beside a query."""

    def forward(self, x, q):
        _, k, v = self.projected(x)
        return self.attend(self.projected(q)[0], k, v)


class _Context(_Base):
    def __init__(self, query_dim, context_dim=None, heads=4):
        super().__init__(query_dim, heads)
        self.of_context = nn.Linear(context_dim or query_dim, 2 * query_dim)

    def projected_pair(self, x, context):
        k, v = self.of_context(context).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.projected(x)[0], k, v


class WithContext(_Context):
    """Can do without a context, for which it has a width."""

    def forward(self, x, context=None):
        return self.attend(*self.projected_pair(x, x if context is None else context))


class CrossAttention(_Base):
    """Can do without what its name says."""

    def forward(self, x, y=None):
        q, k, v = self.projected(x)
        if y is not None:
            _, k, v = self.projected(y)
        return self.attend(q, k, v)


class FromAlias(_Base):
    """Reads its sizes by another name than that of its parameter."""

    def __init__(self, wanted):
        c = wanted
        super().__init__(c.n_emb, c.n_head)

    def forward(self, x):
        return self.attend(*self.projected(x))


@dataclass
class LargeConfig:
    """The sizes of a real model."""

    dim: int = 16384
    heads: int = 64
    layers: int = 40


class LargeByDefault(nn.Module):
    """Is as large as a real model by default, and its parts take the configuration by another name."""

    def __init__(self, config=LargeConfig()):  # noqa: B008
        super().__init__()
        self.layers = nn.ModuleList(LargeLayer(config) for _ in range(config.layers))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


class LargeLayer(_Base):
    def __init__(self, wanted):
        super().__init__(wanted.dim, wanted.heads)

    def forward(self, x):
        return self.attend(*self.projected(x))


class AlwaysLarge(_Base):
    """Is too large whatever its sizes are."""

    def __init__(self, dim, heads):
        super().__init__(dim, heads)
        self.table = nn.ModuleList(nn.Linear(8192, 8192) for _ in range(100))

    def forward(self, x):
        return self.attend(*self.projected(x))


class OfProduct(nn.Module):
    """Multiplies a width that its name doesn't tell by the number of heads."""

    def __init__(self, k_in, kh, h):
        super().__init__()
        self.heads = h
        self.qkv = nn.Linear(k_in, 3 * (h * kh))

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return ((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)


class OfInputs(_Base):
    """Names its inputs by what becomes of them."""

    def forward(self, inputs_kv, inputs_q):
        _, k, v = self.projected(inputs_kv)
        return self.attend(self.projected(inputs_q)[0], k, v)
