"""AS909: what a list, an alias or the caller still has is modified in place afterwards."""

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge, project
from tests.mutants.pairs.as909_results import Layer, attended

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 3})
CROSS = (
    {"B": 4, "H": 5, "Lq": 6, "Lk": 9, "Dk": 7},
    {"B": 5, "H": 3, "Lq": 9, "Lk": 7, "Dk": 8},
    {"B": 6, "H": 7, "Lq": 4, "Lk": 8, "Dk": 5},
)
PAIRS = [
    ("AS909", "memories_of_all_layers", *CROSS),
    ("AS909", "mixture_of_hidden_states", *SELF),
    ("AS909", "skips_of_a_pyramid", *SELF),
    ("AS909", "residual_added_to", *SELF),
    ("AS909", "state_of_the_caller", *SELF),
    ("AS909", "coverage_from_first_weights", *CROSS),
    ("AS909", "sum_of_the_layers_before", *SELF),
]


class Reader(nn.Module):
    """Each layer of the decoder reads the memory that the same layer of the encoder makes."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.encoder = nn.ModuleList(Layer(width, n_heads) for _ in range(2))
        self.mlps = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.start, self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width) for _ in range(5))

    def encode(self, source):
        state, memories = self.start(source), []
        for layer, mlp in zip(self.encoder, self.mlps, strict=True):
            state = state + layer(state)
            state = state + mlp(state)
            memories += [state]
        return memories

    def read(self, y, memory):
        q, k, v = (
            w(t).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for w, t in ((self.wq, y), (self.wk, memory), (self.wv, memory))
        )
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-1)
        return self.wo((weights @ v).transpose(1, 2).flatten(2))

    def forward(self, target, source):
        for memory in self.encode(source):
            target = target + self.read(target, memory)
        return target


class ReaderInPlace(Reader):
    def encode(self, source):
        state, memories = self.start(source), []
        for layer, mlp in zip(self.encoder, self.mlps, strict=True):
            state += layer(state)  # wrong: AS909 memories_of_all_layers
            state = state + mlp(state)
            memories += [state]
        return memories


def _reader(cls, B, H, Lq, Lk, Dk):
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def wrong_memories_of_all_layers(B, H, Lq, Lk, Dk):
    return _reader(ReaderInPlace, B, H, Lq, Lk, Dk)


def right_memories_of_all_layers(B, H, Lq, Lk, Dk):
    return _reader(Reader, B, H, Lq, Lk, Dk)


def reference_memories_of_all_layers(module, target, source):
    state = project(source, module.start)
    for layer, mlp in zip(module.encoder, module.mlps, strict=True):
        state = state + attended(layer, state)
        state = state + project(state, mlp)
        q, k, v = (
            heads(t, w, module.n_heads) for w, t in ((module.wq, target), (module.wk, state), (module.wv, state))
        )
        target = target + merge(attend(q, k, v), module.wo)
    return target


class Block(nn.Module):
    """A layer with its residual connection."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.attention, self.norm = Layer(width, n_heads), nn.LayerNorm(width)

    def forward(self, hidden):
        return hidden + self.attention(self.norm(hidden))


class BlockInPlace(Block):
    def forward(self, hidden):
        hidden.add_(self.attention(self.norm(hidden)))  # wrong: AS909 mixture_of_hidden_states
        return hidden


def blocked(block, x):
    """What a block returns, independently."""
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + block.norm.eps).sqrt()
    return x + attended(block.attention, scaled * block.norm.weight + block.norm.bias)


class Mixture(nn.Module):
    """Weights the hidden states of all layers."""

    block = Block

    def __init__(self, width, n_heads):
        super().__init__()
        self.embed = nn.Linear(width, width)
        self.blocks = nn.ModuleList(self.block(width, n_heads) for _ in range(3))
        self.shares = nn.Parameter(torch.randn(4))

    def forward(self, tokens):
        h = self.embed(tokens)
        every = [h]
        for block in self.blocks:
            h = block(h)
            every.append(h)
        return sum(share * state for share, state in zip(self.shares.softmax(0), every, strict=True))


class MixtureInPlace(Mixture):
    block = BlockInPlace


def _module(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_mixture_of_hidden_states(B, H, L, Dk):
    return _module(MixtureInPlace, B, H, L, Dk)


def right_mixture_of_hidden_states(B, H, L, Dk):
    return _module(Mixture, B, H, L, Dk)


def reference_mixture_of_hidden_states(module, tokens):
    h, shares = project(tokens, module.embed), module.shares.exp() / module.shares.exp().sum()
    total = shares[0] * h
    for share, block in zip(shares[1:], module.blocks, strict=True):
        h = blocked(block, h)
        total = total + share * h
    return total


class Pyramid(nn.Module):
    """What goes down is added again on the way up."""

    in_place = False

    def __init__(self, width, n_heads):
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.middle = Layer(width, n_heads)
        self.act = nn.LeakyReLU(0.2, inplace=self.in_place)

    def forward(self, x):
        skips = []
        for layer in self.down:
            x = layer(x)
            skips.append(x)
            x = self.act(x)  # wrong: AS909 skips_of_a_pyramid
        x = x + self.middle(x)
        for layer in self.up:
            skip = skips.pop()
            x = layer(x) + skip
        return x


class PyramidInPlace(Pyramid):
    in_place = True


def wrong_skips_of_a_pyramid(B, H, L, Dk):
    return _module(PyramidInPlace, B, H, L, Dk)


def right_skips_of_a_pyramid(B, H, L, Dk):
    return _module(Pyramid, B, H, L, Dk)


def reference_skips_of_a_pyramid(module, x):
    skips = []
    for layer in module.down:
        skips.append(project(x, layer))
        x = torch.maximum(skips[-1], 0.2 * skips[-1])
    x = x + attended(module.middle, x)
    for layer, skip in zip(module.up, reversed(skips), strict=True):
        x = project(x, layer) + skip
    return x


class Branches(nn.Module):
    """The gate reads what the residual connection started from."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.embed, self.gate = nn.Linear(width, width), nn.Linear(width, width)
        self.attention = Layer(width, n_heads)

    def forward(self, x):
        x = self.embed(x)
        before = x
        x = x + self.attention(x)
        return x * self.gate(before).sigmoid()


class BranchesInPlace(Branches):
    def forward(self, x):
        x = self.embed(x)
        before = x
        x += self.attention(x)  # wrong: AS909 residual_added_to
        return x * self.gate(before).sigmoid()


def wrong_residual_added_to(B, H, L, Dk):
    return _module(BranchesInPlace, B, H, L, Dk)


def right_residual_added_to(B, H, L, Dk):
    return _module(Branches, B, H, L, Dk)


def reference_residual_added_to(module, x):
    x = project(x, module.embed)
    return (x + attended(module.attention, x)) / (1 + (-project(x, module.gate)).exp())


class Twin(nn.Module):
    """What an attention gives is gated by what it gets."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.embed, self.attention = nn.Linear(width, width), Layer(width, n_heads)

    def attended(self, state):
        return state + self.attention(state)

    def forward(self, x):
        state = self.embed(x)
        after = self.attended(state)
        return after * torch.sigmoid(state)


class TwinInPlace(Twin):
    def attended(self, state):
        out = state
        out += self.attention(state)  # wrong: AS909 state_of_the_caller
        return out


def wrong_state_of_the_caller(B, H, L, Dk):
    return _module(TwinInPlace, B, H, L, Dk)


def right_state_of_the_caller(B, H, L, Dk):
    return _module(Twin, B, H, L, Dk)


def reference_state_of_the_caller(module, x):
    state = project(x, module.embed)
    after = state + attended(module.attention, state)
    return after / (1 + (-state).exp())


class Coverage(nn.Module):
    """Reads a source step by step, and returns the weights too: keys that were attended to before get lower scores."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width) for _ in range(4))
        self.fade = nn.Parameter(torch.rand(n_heads, 1, 1))

    def added(self, sum_so_far, weights):
        return sum_so_far + weights

    def forward(self, target, source):
        k, v = (w(source).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for w in (self.wk, self.wv))
        contexts, maps = [], []
        seen = None
        for step in target.unbind(dim=1):
            q = self.wq(step).unflatten(-1, (self.n_heads, 1, -1))
            scores = q @ k.mT * q.shape[-1] ** -0.5
            if seen is not None:
                scores = scores - self.fade * seen
            weights = scores.softmax(dim=-1)
            maps.append(weights)
            seen = weights if seen is None else self.added(seen, weights)
            contexts.append((weights @ v).flatten(1))
        return torch.cat(maps, dim=2), self.wo(torch.stack(contexts, dim=1))


class CoverageInPlace(Coverage):
    def forward(self, target, source):
        k, v = (w(source).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for w in (self.wk, self.wv))
        contexts, maps, seen = [], [], None
        for index in range(target.shape[1]):
            q = self.wq(target[:, index]).unflatten(-1, (self.n_heads, 1, -1))
            scores = q @ k.mT * q.shape[-1] ** -0.5
            if index:
                scores = scores - self.fade * seen
            weights = scores.softmax(dim=-1)
            if index:
                seen += weights  # wrong: AS909 coverage_from_first_weights
            else:
                seen = weights
            maps.append(weights)
            contexts.append((weights @ v).flatten(1))
        return torch.cat(maps, dim=2), self.wo(torch.stack(contexts, dim=1))


def wrong_coverage_from_first_weights(B, H, Lq, Lk, Dk):
    return _reader(CoverageInPlace, B, H, Lq, Lk, Dk)


def right_coverage_from_first_weights(B, H, Lq, Lk, Dk):
    return _reader(Coverage, B, H, Lq, Lk, Dk)


def reference_coverage_from_first_weights(module, target, source):
    q, k, v = (heads(t, w, module.n_heads) for t, w in ((target, module.wq), (source, module.wk), (source, module.wv)))
    maps = []
    for at in range(target.shape[1]):
        scores = torch.einsum("bhd,bhkd->bhk", q[:, :, at], k) * q.shape[-1] ** -0.5
        scores = scores - module.fade[..., 0] * sum(maps) if maps else scores
        maps.append(scores.exp() / scores.exp().sum(-1, keepdim=True))
    weights = torch.stack(maps, dim=2)
    return weights, merge(torch.einsum("bhqk,bhkd->bhqd", weights, v), module.wo)


class Dense(nn.Module):
    """Each layer reads the sum of all before it; the results are side by side in the end."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.layers = nn.ModuleList(Layer(width, n_heads) for _ in range(2))

    def forward(self, x):
        first = self.first(x)
        total, every = first, [first]
        for layer in self.layers:
            more = layer(total)
            every.append(more)
            total = total + more
        return torch.cat(every, dim=-1) + total.mean(dim=-1, keepdim=True)


class DenseInPlace(Dense):
    def forward(self, x):
        first = self.first(x)
        every = [first]
        total = first
        for layer in self.layers:
            more = layer(total)
            every.append(more)
            total.add_(more)  # wrong: AS909 sum_of_the_layers_before
        return torch.cat(every, dim=-1) + total.mean(dim=-1, keepdim=True)


def wrong_sum_of_the_layers_before(B, H, L, Dk):
    return _module(DenseInPlace, B, H, L, Dk)


def right_sum_of_the_layers_before(B, H, L, Dk):
    return _module(Dense, B, H, L, Dk)


def reference_sum_of_the_layers_before(module, x):
    every = [project(x, module.first)]
    for layer in module.layers:
        every.append(attended(layer, sum(every)))
    return torch.cat(every, dim=-1) + sum(every).mean(-1, keepdim=True)
