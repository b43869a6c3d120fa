"""Unusual parameters in right code: they only add the same to a row of scores, or act through a mask or a norm."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8})
UNUSUAL = [
    ("key_bias_of_each_head", *SIZES),
    ("projected_embedding_of_keys", *SIZES),
    ("learned_temperatures", *SIZES),
    ("weight_norm", *SIZES),
    ("norms_before_attention", *SIZES),
    ("layers_from_template", *SIZES),
    ("copies_of_one_projection", *SIZES),
    ("calls_counted", *SIZES),
    ("biases_kept_in_eval_mode", *SIZES),
    ("spatial_weights_under_diagonal", {"B": 4, "L": 7, "D": 12}, {"B": 5, "L": 9, "D": 16}),
]


class KeyBias(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.bias_of_keys = nn.Parameter(torch.randn(heads, 1, width // heads))

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def keys(self, x):
        return self.split(self.k(x)) + self.bias_of_keys

    def forward(self, x):
        scores = self.split(self.q(x)) @ self.keys(x).mT / math.sqrt(x.shape[-1] // self.heads)
        return (scores.softmax(-1) @ self.split(self.v(x))).transpose(1, 2).flatten(2)


def case_key_bias_of_each_head(B, H, L, Dk):
    return KeyBias(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


class EmbeddingOfKeys(KeyBias):
    """All keys are of one kind, whose embedding is projected with them."""

    def __init__(self, width, heads):
        super().__init__(width, heads)
        self.kind = nn.Parameter(torch.randn(1, 1, width))
        del self.bias_of_keys

    def keys(self, x):
        return self.split(self.k(x) + self.k(self.kind))


def case_projected_embedding_of_keys(B, H, L, Dk):
    return EmbeddingOfKeys(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


class Temperature(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.log_temperature = nn.Parameter(torch.rand(heads, 1, 1))

    def forward(self, q, k, v):
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
        return (scores / self.log_temperature.exp()).softmax(-1) @ v


def case_learned_temperatures(B, H, L, Dk):
    return Temperature(H), tuple(torch.randn(3, B, H, L, Dk)), {}


class WeightNormed(nn.Module):
    """The length of each row of the direction cancels out, its numbers don't."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.direction = nn.Parameter(torch.randn(3 * width, width))
        self.length = nn.Parameter(0.5 + torch.rand(3 * width, 1))

    def forward(self, x):
        weight = self.length * self.direction / self.direction.norm(dim=1, keepdim=True)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in F.linear(x, weight).chunk(3, dim=-1))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def case_weight_norm(B, H, L, Dk):
    return WeightNormed(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


class Normed(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x):
        h = self.before(x)
        return self.after(x + self.attention(h, h, h, need_weights=False)[0])


def case_norms_before_attention(B, H, L, Dk):
    return Normed(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


class SpatialGate(nn.Module):
    """The gating unit of gMLP with a little attention, whose weights between tokens are causal."""

    def __init__(self, length, width):
        super().__init__()
        self.enter, self.leave = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.attend = nn.Linear(width, 3 * width)
        self.spatial = nn.Parameter(torch.randn(length, length) / length)
        self.shift = nn.Parameter(torch.ones(length, 1))

    def forward(self, x):
        u, v = F.gelu(self.enter(x)).chunk(2, dim=-1)
        q, k, w = self.attend(x).chunk(3, dim=-1)
        v = torch.einsum("ij,bjd->bid", self.spatial.tril(), v) + self.shift
        return self.leave(u * (v + F.scaled_dot_product_attention(q, k, w, is_causal=True)))


def case_spatial_weights_under_diagonal(B, L, D):
    return SpatialGate(L, D), (torch.randn(B, L, D),), {}, ["causal"]


class LayersFromTemplate(nn.Module):
    """Keeps the layer of which `nn.TransformerEncoder` makes copies as an attribute: it computes nothing itself."""

    def __init__(self, width, heads):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(width, heads, 2 * width, batch_first=True)
        self.layers = nn.TransformerEncoder(self.layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.layers(x)


def case_layers_from_template(B, H, L, Dk):
    return LayersFromTemplate(H * Dk, H).eval(), (torch.randn(B, L, H * Dk),), {}


class CallsCounted(nn.Module):
    """Counts its calls in eval mode too, and only training looks at the number."""

    def __init__(self, width, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        self.calls += 1
        noise = 0.1 / self.calls * torch.randn_like(x) if self.training else 0
        return x + self.attention(x, x, x, need_weights=False)[0] + noise


def case_calls_counted(B, H, L, Dk):
    return CallsCounted(H * Dk, H).eval(), (torch.randn(B, L, H * Dk),), {}


class BiasesKept(nn.Module):
    """Looks up the bias of each distance in each call in training mode, and once on entering eval mode."""

    def __init__(self, length, width, heads):
        super().__init__()
        self.heads = heads
        self.enter, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.by_distance = nn.Parameter(torch.zeros(heads, length))
        place = torch.arange(length)
        self.register_buffer("distances", (place - place[:, None]).abs())

    def biases(self):
        return self.by_distance[:, self.distances]

    def train(self, mode=True):
        self.kept = None if mode else self.biases().detach()
        return super().train(mode)

    def forward(self, x):
        q, k, v = self.enter(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        biases = self.biases() if self.kept is None else self.kept
        scores = q @ k.mT / math.sqrt(q.shape[-1]) + biases
        return self.leave((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def case_biases_kept_in_eval_mode(B, H, L, Dk):
    return BiasesKept(L, H * Dk, H).eval(), (torch.randn(B, L, H * Dk),), {}


class Copies(nn.Module):
    """All projections start with the numbers of one, and are trained apart."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        first = nn.Linear(width, width)
        self.linears = nn.ModuleList(copy.deepcopy(first) for _ in range(4))

    def forward(self, query, key, value, mask):
        q, k, v = (
            linear(x).view(len(x), -1, self.heads, x.shape[-1] // self.heads).transpose(1, 2)
            for linear, x in zip(self.linears, (query, key, value), strict=False)
        )
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~mask, -1e9)
        return self.linears[-1]((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class LayerOfCopies(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), Copies(width, heads)

    def forward(self, x, mask):
        y = self.norm(x)
        return x + self.attention(y, y, y, mask[:, None, None])


def case_copies_of_one_projection(B, H, L, Dk):
    mask = torch.arange(L) < (L - torch.arange(B))[:, None]
    return LayerOfCopies(H * Dk, H), (torch.randn(B, L, H * Dk), mask), {}, ["mask=keep"]
