"""AS108, AS601, AS806 and AS810 where a claim says that an unusual convention is meant, and the code breaks it."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge, project

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
GROUPED = (
    {"B": 3, "Hkv": 2, "G": 4, "L": 7, "Dk": 5},
    {"B": 5, "Hkv": 3, "G": 2, "L": 9, "Dk": 4},
    {"B": 7, "Hkv": 2, "G": 3, "L": 5, "Dk": 8},
)
PAIRS = [
    ("AS108", "both_from_sound", *SIZES),
    ("AS108", "one_fused_projection", *SIZES),
    ("AS108", "keys_with_content", *SIZES),
    ("AS108", "argument_twice", *SIZES),
    ("AS108", "values_with_positions", *SIZES),
    ("AS601", "interleaved_though_tiled", *GROUPED),
    ("AS601", "grouped_though_tiled", *GROUPED),
    ("AS601", "expanded_though_tiled", *GROUPED),
    ("AS601", "indexed_though_tiled", *GROUPED),
    ("AS601", "only_values_interleaved", *GROUPED),
    ("AS806", "each_of_stack", *SIZES),
    ("AS806", "batched_by_head", *SIZES),
    ("AS806", "own_queries", *SIZES),
    ("AS806", "own_values", *SIZES),
    ("AS806", "list_of_linears", *SIZES),
    ("AS810", "copies_in_a_list", *SIZES),
    ("AS810", "copies_in_sequence", *SIZES),
    ("AS810", "copies_by_name", *SIZES),
    ("AS810", "copies_of_attention", *SIZES),
    ("AS810", "blocks_of_their_own", *SIZES),
]


class Streams(nn.Module):
    """Queries and keys from sound, values from film: three projections."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def split(self, x):
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def sources(self, sound, film):
        return sound, film

    def forward(self, sound, film):
        of_keys, of_values = self.sources(sound, film)
        q, k, v = self.split(self.q(sound)), self.split(self.k(of_keys)), self.split(self.v(of_values))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


class BothFromSound(Streams):
    def sources(self, sound, film):
        return sound, sound


def _two(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(B, L, H * Dk)), {}, ["separate-values"]


def wrong_both_from_sound(B, H, L, Dk):
    return _two(BothFromSound, B, H, L, Dk)


def right_both_from_sound(B, H, L, Dk):
    return _two(Streams, B, H, L, Dk)


def reference_both_from_sound(module, sound, film):
    q, k, v = (heads(x, getattr(module, n), module.n_heads) for n, x in (("q", sound), ("k", sound), ("v", film)))
    return merge(attend(q, k, v), module.o)


class FusedStreams(nn.Module):
    """A fused weight of keys and values, whose halves project different streams."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads, self.to_q, self.to_kv = n_heads, nn.Linear(width, width), nn.Linear(width, 2 * width)

    def pair(self, text, image):
        (key_weight, value_weight), (key_bias, value_bias) = self.to_kv.weight.chunk(2), self.to_kv.bias.chunk(2)
        return F.linear(text, key_weight, key_bias), F.linear(image, value_weight, value_bias)

    def forward(self, text, image):
        q, k, v = (
            t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in (self.to_q(text), *self.pair(text, image))
        )
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class OneFusedProjection(FusedStreams):
    def pair(self, text, image):
        return self.to_kv(image).chunk(2, dim=-1)


def wrong_one_fused_projection(B, H, L, Dk):
    return _two(OneFusedProjection, B, H, L, Dk)


def right_one_fused_projection(B, H, L, Dk):
    return _two(FusedStreams, B, H, L, Dk)


def reference_one_fused_projection(module, text, image):
    k, v = (
        torch.einsum("bli,oi->blo", x, weight) + bias
        for x, weight, bias in zip((text, image), module.to_kv.weight.chunk(2), module.to_kv.bias.chunk(2), strict=True)
    )
    q, k, v = (torch.stack(t.chunk(module.n_heads, -1), 1) for t in (project(text, module.to_q), k, v))
    return merge(attend(q, k, v))


class Untied(Streams):
    """Positions alone decide who attends to whom; the values are the contents."""

    def keys(self, places, contents):
        return places

    def values(self, places, contents):
        return contents

    def forward(self, places, contents):
        k, v = self.k(self.keys(places, contents)), self.v(self.values(places, contents))
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)) for t in (self.q(places), k, v))
        weights = torch.einsum("bihd,bjhd->bhij", q * q.shape[-1] ** -0.5, k).softmax(-1)
        return self.o(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2))


class KeysWithContent(Untied):
    def keys(self, places, contents):
        return places + contents


class ValuesWithPositions(Untied):
    def values(self, places, contents):
        return contents + places


def wrong_keys_with_content(B, H, L, Dk):
    return _two(KeysWithContent, B, H, L, Dk)


def right_keys_with_content(B, H, L, Dk):
    return _two(Untied, B, H, L, Dk)


def wrong_values_with_positions(B, H, L, Dk):
    return _two(ValuesWithPositions, B, H, L, Dk)


class Torch(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.attn = nn.MultiheadAttention(width, n_heads, batch_first=True)

    def contents(self, frames, labels):
        return labels

    def forward(self, frames, labels):
        return self.attn(frames, frames, self.contents(frames, labels), need_weights=False)[0]


class ArgumentTwice(Torch):
    def contents(self, frames, labels):
        return frames


def wrong_argument_twice(B, H, L, Dk):
    return _two(ArgumentTwice, B, H, L, Dk)


def right_argument_twice(B, H, L, Dk):
    return _two(Torch, B, H, L, Dk)


def reference_argument_twice(module, frames, labels):
    attn, n = module.attn, module.n_heads
    parts = zip((frames, frames, labels), attn.in_proj_weight.chunk(3), attn.in_proj_bias.chunk(3), strict=True)
    q, k, v = (torch.stack((torch.einsum("bli,oi->blo", x, w) + b).chunk(n, -1), 1) for x, w, b in parts)
    return merge(attend(q, k, v), attn.out_proj)


right_values_with_positions = right_keys_with_content
reference_keys_with_content = reference_values_with_positions = reference_both_from_sound


class Tiled(nn.Module):
    """Query head h uses key and value head h % Hkv, as the weights were trained."""

    def __init__(self, groups, per_group, depth):
        super().__init__()
        self.groups, self.per_group, self.depth = groups, per_group, depth
        self.q = nn.Linear(groups * per_group * depth, groups * per_group * depth, bias=False)
        self.kv = nn.Linear(groups * per_group * depth, 2 * groups * depth, bias=False)

    def keys(self, k):
        return k.repeat(1, self.per_group, 1, 1)

    def values(self, v):
        return v.repeat(1, self.per_group, 1, 1)

    def forward(self, x):
        q = self.q(x).unflatten(-1, (-1, self.depth)).transpose(1, 2)
        k, v = (t.unflatten(-1, (self.groups, self.depth)).transpose(1, 2) for t in self.kv(x).chunk(2, dim=-1))
        k, v = self.keys(k), self.values(v)
        weights = torch.softmax(torch.matmul(q, k.transpose(-2, -1)) / self.depth**0.5, dim=-1)
        return torch.matmul(weights, v).transpose(1, 2).flatten(2)


class Interleaved(Tiled):
    def keys(self, k):
        return k.repeat_interleave(self.per_group, dim=1)  # wrong: AS601 interleaved_though_tiled

    def values(self, v):
        return v.repeat_interleave(self.per_group, dim=1)


def _tiled(cls, B, Hkv, G, L, Dk):
    return cls(Hkv, G, Dk), (torch.randn(B, L, Hkv * G * Dk),), {}, ["tiled-heads"]


def wrong_interleaved_though_tiled(B, Hkv, G, L, Dk):
    return _tiled(Interleaved, B, Hkv, G, L, Dk)


def right_interleaved_though_tiled(B, Hkv, G, L, Dk):
    return _tiled(Tiled, B, Hkv, G, L, Dk)


def reference_interleaved_though_tiled(module, x):
    q = torch.stack(project(x, module.q).chunk(module.groups * module.per_group, -1), 1)
    k, v = (t.chunk(module.groups, -1) for t in project(x, module.kv).chunk(2, -1))
    k, v = (torch.stack([t[head % module.groups] for head in range(q.shape[1])], 1) for t in (k, v))
    return merge(attend(q, k, v))


class OnlyValuesInterleaved(Tiled):
    def values(self, v):
        return v.repeat_interleave(self.per_group, dim=1)  # wrong: AS601 only_values_interleaved


def wrong_only_values_interleaved(B, Hkv, G, L, Dk):
    return _tiled(OnlyValuesInterleaved, B, Hkv, G, L, Dk)


class Grouped(Tiled):
    """Query heads are arranged in a table, whose columns share a key."""

    def table(self, q):
        return q.unflatten(2, (self.per_group, self.groups)), "bighd,bjhd->bhgij", "bhgij,bjhd->bighd"

    def forward(self, x):
        q, to_scores, to_context = self.table(self.q(x).unflatten(-1, (-1, self.depth)))
        k, v = self.kv(x).unflatten(-1, (2, self.groups, self.depth)).unbind(2)
        weights = torch.einsum(to_scores, q, k).mul(self.depth**-0.5).softmax(dim=-1)
        return torch.einsum(to_context, weights, v).flatten(2)


class GroupedRows(Grouped):
    def table(self, q):
        return q.unflatten(2, (self.groups, self.per_group)), "bihgd,bjhd->bhgij", "bhgij,bjhd->bihgd"


def wrong_grouped_though_tiled(B, Hkv, G, L, Dk):
    return _tiled(GroupedRows, B, Hkv, G, L, Dk)


def right_grouped_though_tiled(B, Hkv, G, L, Dk):
    return _tiled(Grouped, B, Hkv, G, L, Dk)


class Expanded(Tiled):
    """The kernel gets keys and values that are expanded by an axis before their heads."""

    axis = 1

    def spread(self, t):
        sizes = [-1] * 5
        sizes[self.axis] = self.per_group
        return t.unsqueeze(self.axis).expand(sizes).reshape(t.shape[0], -1, *t.shape[2:])

    def forward(self, x):
        q = self.q(x).unflatten(-1, (-1, self.depth)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, self.groups, self.depth)).permute(2, 0, 3, 1, 4)
        context = F.scaled_dot_product_attention(q, self.spread(k), self.spread(v))
        return context.transpose(1, 2).flatten(2)


class ExpandedBehind(Expanded):
    axis = 2


def wrong_expanded_though_tiled(B, Hkv, G, L, Dk):
    return _tiled(ExpandedBehind, B, Hkv, G, L, Dk)


def right_expanded_though_tiled(B, Hkv, G, L, Dk):
    return _tiled(Expanded, B, Hkv, G, L, Dk)


class Indexed(Tiled):
    def of_heads(self):
        return torch.arange(self.groups * self.per_group) % self.groups

    def keys(self, k):
        return k[:, self.of_heads()]

    def values(self, v):
        return v[:, self.of_heads()]


class IndexedByGroup(Indexed):
    def of_heads(self):
        return torch.arange(self.groups * self.per_group) // self.per_group


def wrong_indexed_though_tiled(B, Hkv, G, L, Dk):
    return _tiled(IndexedByGroup, B, Hkv, G, L, Dk)


def right_indexed_though_tiled(B, Hkv, G, L, Dk):
    return _tiled(Indexed, B, Hkv, G, L, Dk)


right_only_values_interleaved = right_interleaved_though_tiled
reference_only_values_interleaved = reference_grouped_though_tiled = reference_interleaved_though_tiled
reference_expanded_though_tiled = reference_indexed_though_tiled = reference_interleaved_though_tiled


class OneForAll(nn.Module):
    """Heads are split before one projection serves all of them; the stack has others for later stages."""

    def __init__(self, n_heads, depth):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v = (nn.Parameter(torch.randn(n_heads, depth, depth) / depth) for _ in range(3))

    def project(self, x, weight):
        return x @ weight[0]

    def queries(self, x, weight):
        return self.project(x, weight)

    def values(self, x, weight):
        return self.project(x, weight)

    def forward(self, x):
        x = x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        q, k, v = self.queries(x, self.q), self.project(x, self.k), self.values(x, self.v)
        weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class EachOfStack(OneForAll):
    def project(self, x, weight):
        return torch.einsum("bhld,hde->bhle", x, weight)


class BatchedByHead(OneForAll):
    def project(self, x, weight):
        return x @ weight


class OwnQueries(OneForAll):
    def queries(self, x, weight):
        return torch.einsum("bhld,hde->bhle", x, weight)


class OwnValues(OneForAll):
    def values(self, x, weight):
        return x @ weight


def _one(cls, B, H, L, Dk):
    return cls(H, Dk), (torch.randn(B, L, H * Dk),), {}, ["shared-projection"]


def wrong_each_of_stack(B, H, L, Dk):
    return _one(EachOfStack, B, H, L, Dk)


def wrong_batched_by_head(B, H, L, Dk):
    return _one(BatchedByHead, B, H, L, Dk)


def wrong_own_queries(B, H, L, Dk):
    return _one(OwnQueries, B, H, L, Dk)


def wrong_own_values(B, H, L, Dk):
    return _one(OwnValues, B, H, L, Dk)


def right_each_of_stack(B, H, L, Dk):
    return _one(OneForAll, B, H, L, Dk)


def reference_each_of_stack(module, x):
    x = torch.stack(x.chunk(module.n_heads, -1), 1)
    q, k, v = (torch.einsum("bhld,de->bhle", x, weight[0]) for weight in (module.q, module.k, module.v))
    return merge(attend(q, k, v))


right_batched_by_head = right_own_queries = right_own_values = right_each_of_stack
reference_batched_by_head = reference_own_queries = reference_own_values = reference_each_of_stack


class Linears(nn.Module):
    """Each stage has a linear layer; all heads use the one of the first stage."""

    def __init__(self, n_heads, depth):
        super().__init__()
        self.n_heads = n_heads
        self.to_qkv = nn.ModuleList(nn.Linear(depth, 3 * depth) for _ in range(n_heads))

    def stage(self, head):
        return 0

    def forward(self, x):
        parts = x.unflatten(-1, (self.n_heads, -1))
        if self.stage(1) == 0:
            qkv = self.to_qkv[0](parts)
        else:
            qkv = torch.stack([self.to_qkv[self.stage(h)](parts[:, :, h]) for h in range(self.n_heads)], dim=2)
        q, k, v = (t.transpose(1, 2) for t in qkv.chunk(3, dim=-1))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class OwnLinears(Linears):
    def stage(self, head):
        return head


def wrong_list_of_linears(B, H, L, Dk):
    return _one(OwnLinears, B, H, L, Dk)


def right_list_of_linears(B, H, L, Dk):
    return _one(Linears, B, H, L, Dk)


def reference_list_of_linears(module, x):
    x = torch.stack(x.chunk(module.n_heads, -1), 1)
    return merge(attend(*project(x, module.to_qkv[0]).chunk(3, -1)))


class Layer(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads, self.qkv = n_heads, nn.Linear(width, 3 * width)

    def attended(self, x):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def forward(self, x):
        return x + self.attended(x)


def _layered(module, B, H, L, Dk):
    return module, (torch.randn(B, L, H * Dk),), {}, ["shared-layers"]


class Stack(nn.Module):
    """One layer, applied three times."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.layers = self.made(Layer(width, n_heads))

    def made(self, layer):
        return nn.ModuleList([layer] * 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class StackOfCopies(Stack):
    def made(self, layer):
        return nn.ModuleList(copy.deepcopy(layer) for _ in range(3))


def wrong_copies_in_a_list(B, H, L, Dk):
    return _layered(StackOfCopies(H * Dk, H), B, H, L, Dk)


def right_copies_in_a_list(B, H, L, Dk):
    return _layered(Stack(H * Dk, H), B, H, L, Dk)


def _applied(layer, x, times):
    for _ in range(times):
        q, k, v = (
            torch.stack(t.chunk(layer.n_heads, -1), 1)
            for t in (torch.einsum("bli,oi->blo", x, layer.qkv.weight) + layer.qkv.bias).chunk(3, -1)
        )
        x = x + merge(attend(q, k, v))
    return x


def reference_copies_in_a_list(module, x):
    return _applied(module.layers[0], x, 3)


class Sequence(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        layer = Layer(width, n_heads)
        self.body = nn.Sequential(layer, self.second(layer))

    def second(self, layer):
        return layer

    def forward(self, x):
        return self.body(x)


class SequenceOfCopies(Sequence):
    def second(self, layer):
        return copy.deepcopy(layer)


def wrong_copies_in_sequence(B, H, L, Dk):
    return _layered(SequenceOfCopies(H * Dk, H), B, H, L, Dk)


def right_copies_in_sequence(B, H, L, Dk):
    return _layered(Sequence(H * Dk, H), B, H, L, Dk)


def reference_copies_in_sequence(module, x):
    return _applied(module.body[0], x, 2)


class Named(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        layer = Layer(width, n_heads)
        self.steps = nn.ModuleDict({"down": layer, "up": self.up(layer)})

    def up(self, layer):
        return layer

    def forward(self, x):
        for name in ("down", "up"):
            x = self.steps[name](x)
        return x


class NamedCopies(Named):
    def up(self, layer):
        return copy.deepcopy(layer)


def wrong_copies_by_name(B, H, L, Dk):
    return _layered(NamedCopies(H * Dk, H), B, H, L, Dk)


def right_copies_by_name(B, H, L, Dk):
    return _layered(Named(H * Dk, H), B, H, L, Dk)


def reference_copies_by_name(module, x):
    return _applied(module.steps["down"], x, 2)


class Attends(nn.Module):
    """torch's attention, with the layers in a list of a list."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.attention = nn.ModuleList(self.repeated(nn.MultiheadAttention(width, n_heads, batch_first=True)))

    def repeated(self, layer):
        return [layer, layer]

    def forward(self, x):
        for layer in self.attention:
            x = x + layer(x, x, x, need_weights=False)[0]
        return x


class AttendsInCopies(Attends):
    def repeated(self, layer):
        return [copy.deepcopy(layer) for _ in range(2)]


def wrong_copies_of_attention(B, H, L, Dk):
    return _layered(AttendsInCopies(H * Dk, H), B, H, L, Dk)


def right_copies_of_attention(B, H, L, Dk):
    return _layered(Attends(H * Dk, H), B, H, L, Dk)


def reference_copies_of_attention(module, x):
    for layer in module.attention:
        qkv = torch.einsum("bli,oi->blo", x, layer.in_proj_weight) + layer.in_proj_bias
        q, k, v = (torch.stack(t.chunk(module.n_heads, -1), 1) for t in qkv.chunk(3, -1))
        x = x + merge(attend(q, k, v), layer.out_proj)
    return x


class Block(Layer):
    """A layer with norms and a feed-forward part."""

    def __init__(self, width, n_heads):
        super().__init__(width, n_heads)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        x = x + self.attended(self.norm(x))
        return x + self.down(F.relu(self.up(x)))


class Blocks(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        shared = Block(width, n_heads)
        self.blocks = nn.ModuleList(self.block(shared) for _ in range(2))

    def block(self, shared):
        return shared

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class BlocksOfTheirOwn(Blocks):
    def block(self, shared):
        with torch.random.fork_rng():
            own = Block(shared.qkv.in_features, shared.n_heads)
        own.load_state_dict(shared.state_dict())
        return own


def wrong_blocks_of_their_own(B, H, L, Dk):
    return _layered(BlocksOfTheirOwn(H * Dk, H), B, H, L, Dk)


def right_blocks_of_their_own(B, H, L, Dk):
    return _layered(Blocks(H * Dk, H), B, H, L, Dk)


def reference_blocks_of_their_own(module, x):
    for block in module.blocks:
        q, k, v = (torch.stack(t.chunk(block.n_heads, -1), 1) for t in project(block.norm(x), block.qkv).chunk(3, -1))
        x = x + merge(attend(q, k, v))
        x = x + project(project(x, block.up).clamp(min=0), block.down)
    return x
