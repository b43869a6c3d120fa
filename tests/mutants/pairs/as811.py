"""AS811: layers or parameters in a plain container, which its module doesn't register."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, join, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
PAIRS = [
    ("AS811", "list_of_layers", *SIZES),
    ("AS811", "dictionary_of_projections", *SIZES),
    ("AS811", "tuple_of_parameters", *SIZES),
]


class Layer(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        return x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Model(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.layers = self.kept([Layer(d_model, heads) for _ in range(2)])  # wrong: AS811 list_of_layers

    def kept(self, layers):
        return nn.ModuleList(layers)

    def forward(self, x):
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x)
        return x


class ForgetfulModel(Model):
    def kept(self, layers):
        return layers


def _model(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_list_of_layers(B, H, L, Dk):
    return _model(ForgetfulModel, B, H, L, Dk)


def right_list_of_layers(B, H, L, Dk):
    return _model(Model, B, H, L, Dk)


def reference_list_of_layers(module, x):
    x = module.norm(x)
    for layer in module.layers:
        q, k, v = (split(t, layer.heads) for t in layer.qkv(x).chunk(3, dim=-1))
        x = x + join(attention(q, k, v))
    return x


class Named(nn.Module):
    """The projections are looked up by name."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.out = nn.Linear(d_model, d_model)
        projections = {name: nn.Linear(d_model, d_model) for name in "qkv"}
        self.projections = self.kept(projections)  # wrong: AS811 dictionary_of_projections

    def kept(self, projections):
        return nn.ModuleDict(projections)

    def forward(self, x):
        q, k, v = (self.projections[name](x) for name in "qkv")
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class ForgetfulNamed(Named):
    def kept(self, projections):
        return projections


def wrong_dictionary_of_projections(B, H, L, Dk):
    return _model(ForgetfulNamed, B, H, L, Dk)


def right_dictionary_of_projections(B, H, L, Dk):
    return _model(Named, B, H, L, Dk)


def reference_dictionary_of_projections(module, x):
    q, k, v = (split(module.projections[name](x), module.heads) for name in "qkv")
    return module.out(join(attention(q, k, v)))


class Weights(nn.Module):
    """The weights of queries, keys and values are parameters (H, D, Dk)."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        shape = (heads, d_model, d_model // heads)
        weights = [nn.Parameter(torch.randn(shape) * 0.3) for _ in range(3)]
        self.weights = self.kept(weights)  # wrong: AS811 tuple_of_parameters

    def kept(self, weights):
        return nn.ParameterList(weights)

    def forward(self, x):
        x = self.norm(x)
        q, k, v = (torch.einsum("bld,hde->bhle", x, w) for w in self.weights)
        scores = torch.einsum("bhie,bhje->bhij", q, k) * q.shape[-1] ** -0.5
        return torch.einsum("bhij,bhje->bihe", scores.softmax(-1), v).flatten(2)


class ForgetfulWeights(Weights):
    def kept(self, weights):
        return tuple(weights)


def wrong_tuple_of_parameters(B, H, L, Dk):
    return _model(ForgetfulWeights, B, H, L, Dk)


def right_tuple_of_parameters(B, H, L, Dk):
    return _model(Weights, B, H, L, Dk)


def reference_tuple_of_parameters(module, x):
    x = module.norm(x)
    q, k, v = (torch.stack([x @ one for one in weight], dim=1) for weight in module.weights)
    return join(attention(q, k, v))
