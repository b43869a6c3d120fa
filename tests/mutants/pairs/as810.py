"""AS810: a list of layers has one module several times; the right layers are copies, which training tells apart.

Heads that see the same tokens are one head if they are one module, which is an error.
"""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, join, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
PAIRS = [
    ("AS810", "multiplied_list", *SIZES),
    ("AS810", "sequential_of_two", *SIZES),
    ("AS810", "names_of_one_layer", *SIZES),
    ("AS810", "list_of_one_head", *SIZES),
    ("AS810", "one_head_added_up", *SIZES),
    ("AS810", "one_head_stacked", *SIZES),
]


class Layer(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        return x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def _reference(layers, x):
    for layer in layers:
        q, k, v = (split(t, layer.heads) for t in layer.qkv(x).chunk(3, dim=-1))
        x = x + join(attention(q, k, v))
    return x


class Stack(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        layer = Layer(d_model, heads)
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class MultipliedStack(Stack):
    def __init__(self, d_model, heads):
        nn.Module.__init__(self)
        self.layers = nn.ModuleList([Layer(d_model, heads)] * 3)  # wrong: AS810 multiplied_list


def wrong_multiplied_list(B, H, L, Dk):
    return MultipliedStack(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_multiplied_list(B, H, L, Dk):
    return Stack(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_multiplied_list(module, x):
    return _reference(module.layers, x)


class Folded(Layer):
    def forward(self, x):
        B, L, D = x.shape
        q, k, v = self.qkv(x).view(B, L, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
        return x + (weights @ v).transpose(1, 2).reshape(B, L, D)


class Model(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        layer = Folded(d_model, heads)
        self.body = nn.Sequential(layer, copy.deepcopy(layer))

    def forward(self, x):
        return self.body(self.norm(x))


class SharedModel(Model):
    def __init__(self, d_model, heads):
        nn.Module.__init__(self)
        self.norm = nn.LayerNorm(d_model)
        layer = Folded(d_model, heads)
        self.body = nn.Sequential(layer, layer)  # wrong: AS810 sequential_of_two


def _sequential_of_two(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_sequential_of_two(B, H, L, Dk):
    return _sequential_of_two(SharedModel, B, H, L, Dk)


def right_sequential_of_two(B, H, L, Dk):
    return _sequential_of_two(Model, B, H, L, Dk)


def reference_sequential_of_two(module, x):
    return _reference(module.body, module.norm(x))


class Streams(nn.Module):
    """Two layers by name, for example one for each kind of token."""

    def __init__(self, d_model, heads):
        super().__init__()
        layer = Layer(d_model, heads)
        self.streams = nn.ModuleDict({"text": layer, "image": copy.deepcopy(layer)})

    def forward(self, text, image):
        return torch.cat([self.streams["text"](text), self.streams["image"](image)], dim=1)


class OneStream(Streams):
    def __init__(self, d_model, heads):
        nn.Module.__init__(self)
        layers = dict.fromkeys(("text", "image"), Layer(d_model, heads))
        self.streams = nn.ModuleDict(layers)  # wrong: AS810 names_of_one_layer


def _names_of_one_layer(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(B, L, H * Dk)), {}


def wrong_names_of_one_layer(B, H, L, Dk):
    return _names_of_one_layer(OneStream, B, H, L, Dk)


def right_names_of_one_layer(B, H, L, Dk):
    return _names_of_one_layer(Streams, B, H, L, Dk)


def reference_names_of_one_layer(module, text, image):
    streams = module.streams
    return torch.cat([_reference([streams["text"]], text), _reference([streams["image"]], image)], dim=1)


class Head(nn.Module):
    """One head, with projections of its own."""

    def __init__(self, d_model, d_head):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(d_model, d_head, bias=False) for _ in range(3))

    def forward(self, x):
        scores = self.to_q(x) @ self.to_k(x).transpose(-2, -1) * self.to_k.out_features**-0.5
        return scores.softmax(-1) @ self.to_v(x)


class ListOfHeads(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        head = Head(d_model, d_model // heads)
        self.heads = nn.ModuleList(copy.deepcopy(head) for _ in range(heads))
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.out(torch.cat([head(x) for head in self.heads], dim=-1))


class ListOfOneHead(ListOfHeads):
    def __init__(self, d_model, heads):
        nn.Module.__init__(self)
        self.heads = nn.ModuleList([Head(d_model, d_model // heads)] * heads)  # wrong: AS810 list_of_one_head
        self.out = nn.Linear(d_model, d_model)


def _contexts(module, x):
    return [attention(x @ one.to_q.weight.T, x @ one.to_k.weight.T, x @ one.to_v.weight.T) for one in module.heads]


def wrong_list_of_one_head(B, H, L, Dk):
    return ListOfOneHead(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_list_of_one_head(B, H, L, Dk):
    return ListOfHeads(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_list_of_one_head(module, x):
    return module.out(torch.cat(_contexts(module, x), dim=-1))


class AddedHeads(ListOfHeads):
    """Two heads of full width, which are added up."""

    def __init__(self, d_model):
        nn.Module.__init__(self)
        head = Head(d_model, d_model)
        self.heads = nn.ModuleDict({"near": head, "far": copy.deepcopy(head)})

    def forward(self, x):
        return x + (self.heads["near"](x) + self.heads["far"](x)) / 2


class OneAddedHead(AddedHeads):
    def __init__(self, d_model):
        nn.Module.__init__(self)
        heads = dict.fromkeys(("near", "far"), Head(d_model, d_model))
        self.heads = nn.ModuleDict(heads)  # wrong: AS810 one_head_added_up


def wrong_one_head_added_up(B, H, L, Dk):
    return OneAddedHead(H * Dk), (torch.randn(B, L, H * Dk),), {}


def right_one_head_added_up(B, H, L, Dk):
    return AddedHeads(H * Dk), (torch.randn(B, L, H * Dk),), {}


def reference_one_head_added_up(module, x):
    near, far = module.heads["near"], module.heads["far"]
    contexts = [attention(x @ one.to_q.weight.T, x @ one.to_k.weight.T, x @ one.to_v.weight.T) for one in (near, far)]
    return x + sum(contexts) / 2


class StackedHeads(ListOfHeads):
    """Heads on an axis of their own, merged by a permutation."""

    def forward(self, x):
        context = torch.stack([head(x) for head in self.heads], dim=1)
        return self.out(context.permute(0, 2, 1, 3).flatten(2))


class OneStackedHead(StackedHeads):
    def __init__(self, d_model, heads):
        nn.Module.__init__(self)
        head = Head(d_model, d_model // heads)
        self.heads = nn.ModuleList(head for _ in range(heads))  # wrong: AS810 one_head_stacked
        self.out = nn.Linear(d_model, d_model)


def wrong_one_head_stacked(B, H, L, Dk):
    return OneStackedHead(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_one_head_stacked(B, H, L, Dk):
    return StackedHeads(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


reference_one_head_stacked = reference_list_of_one_head
