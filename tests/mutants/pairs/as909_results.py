"""AS909: a tensor that is kept for the results is modified in place afterwards."""

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge, project

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 3})
PAIRS = [
    ("AS909", "hidden_states_of_all_layers", *SELF),
    ("AS909", "before_and_after_in_a_dictionary", *SELF),
    ("AS909", "one_buffer_for_all_maps", *SELF),
]


class Layer(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def weights_and_values(self, x):
        q, k, v = (one(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-1), v

    def forward(self, x):
        weights, v = self.weights_and_values(x)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


def attended(layer, x):
    """What a layer returns, independently."""
    q, k, v = (heads(x, one, layer.n_heads) for one in (layer.q, layer.k, layer.v))
    return merge(attend(q, k, v), layer.out)


class Stack(nn.Module):
    """Returns what each layer reads, and the last result."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.embed = nn.Linear(width, width)
        self.layers = nn.ModuleList(Layer(width, n_heads) for _ in range(3))

    def forward(self, x):
        x = self.embed(x)
        hidden_states = []
        for layer in self.layers:
            hidden_states.append(x)
            x = x + layer(x)
        return (*hidden_states, x)


class StackInPlace(Stack):
    def forward(self, x):
        x = self.embed(x)
        hidden_states = []
        for layer in self.layers:
            hidden_states.append(x)
            x += layer(x)  # wrong: AS909 hidden_states_of_all_layers
        return (*hidden_states, x)


def _module(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_hidden_states_of_all_layers(B, H, L, Dk):
    return _module(StackInPlace, B, H, L, Dk)


def right_hidden_states_of_all_layers(B, H, L, Dk):
    return _module(Stack, B, H, L, Dk)


def reference_hidden_states_of_all_layers(module, x):
    return project(x, module.embed)


class Pair(nn.Module):
    """Two attentions, whose results are both returned."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.first, self.second = Layer(width, n_heads), Layer(width, n_heads)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        local = self.norm(x + self.first(x))
        whole = torch.add(local, self.second(local))
        return {"local": local, "whole": whole}


class PairInPlace(Pair):
    def forward(self, x):
        local = self.norm(x + self.first(x))
        whole = local.add_(self.second(local))  # wrong: AS909 before_and_after_in_a_dictionary
        return {"local": local, "whole": whole}


def wrong_before_and_after_in_a_dictionary(B, H, L, Dk):
    return _module(PairInPlace, B, H, L, Dk)


def right_before_and_after_in_a_dictionary(B, H, L, Dk):
    return _module(Pair, B, H, L, Dk)


def reference_before_and_after_in_a_dictionary(module, x):
    added = x + attended(module.first, x)
    centred = added - added.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + module.norm.eps).sqrt()
    return scaled * module.norm.weight + module.norm.bias


class Maps(nn.Module):
    """Also returns the weights of all layers."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.layers = nn.ModuleList(Layer(width, n_heads) for _ in range(3))

    def forward(self, x):
        maps = ()
        for layer in self.layers:
            weights, v = layer.weights_and_values(x)
            maps += (weights,)
            x = x + layer.out((weights @ v).transpose(1, 2).flatten(2))
        return maps, x


class MapsInOneBuffer(Maps):
    def forward(self, x):
        batch, length, _ = x.shape
        maps, kept = (), x.new_zeros(batch, self.n_heads, length, length)
        for layer in self.layers:
            weights, v = layer.weights_and_values(x)
            kept.copy_(weights)  # wrong: AS909 one_buffer_for_all_maps
            maps += (kept,)
            x = x + layer.out((weights @ v).transpose(1, 2).flatten(2))
        return maps, x


def wrong_one_buffer_for_all_maps(B, H, L, Dk):
    return _module(MapsInOneBuffer, B, H, L, Dk)


def right_one_buffer_for_all_maps(B, H, L, Dk):
    return _module(Maps, B, H, L, Dk)


def reference_one_buffer_for_all_maps(module, x):
    layer = module.layers[0]
    q, k = (heads(x, one, module.n_heads) for one in (layer.q, layer.k))
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True)
