"""Claimed masks that act on some attentions only, or on more than attention."""

import math

import torch
from torch import nn

from tests.mutants.plain import attention, join, softmax, split

SELF = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7})
CROSS = ({"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3}, {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6})
UNUSUAL = [
    ("masks_of_two_sides", *CROSS),
    ("mask_of_own_side", *SELF),
    ("glimpse_and_choice", *SELF),
    ("graph_layers", *SELF),
    ("unmasked_gate", *SELF),
    ("latents_between", *SELF),
    ("causal_then_pooled", *SELF),
    ("target_as_long_as_its_source", *SELF),
    ("filled_by_attention", *SELF),
    ("earlier_blocks_by_their_last_tokens", *SELF),
    ("own_key_hidden_where_it_is_padding", *SELF),
    ("error_at_hidden_tokens", *SELF),
    ("read_at_the_first_token", *SELF),
    ("read_at_the_token_to_predict", *SELF),
    ("room_behind_the_mask", *SELF),
    ("slot_of_zeros_in_front", *SELF),
    ("mask_of_both_directions", *CROSS),
    ("first_token_is_no_key", *SELF),
    ("mask_of_pairs_of_tokens", *SELF),
]


class Attend(nn.Module):
    def __init__(self, heads, depth):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(heads * depth, heads * depth) for _ in range(3))

    def forward(self, x, memory, keep=None):
        q, k, v = split(self.q(x), self.heads), split(self.k(memory), self.heads), split(self.v(memory), self.heads)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if keep is not None:
            scores = scores.masked_fill(~keep, -math.inf)
        return join(scores.softmax(-1) @ v)

    def expected(self, x, memory, keep=None):
        q, k, v = (split(f(t), self.heads) for f, t in ((self.q, x), (self.k, memory), (self.v, memory)))
        return join(attention(q, k, v, keep=keep))


class TwoSides(nn.Module):
    """Attends to its own tokens with one mask, then to others with another one."""

    def __init__(self, heads, depth):
        super().__init__()
        self.own, self.others = Attend(heads, depth), Attend(heads, depth)

    def forward(self, x, memory, seen, present=None):
        x = x + self.own(x, x, seen)
        return x + self.others(x, memory, None if present is None else present[:, None, None])


def _lower(L):
    return torch.arange(L) <= torch.arange(L)[:, None]


def case_masks_of_two_sides(B, H, Lq, Lk, Dk):
    present = torch.arange(Lk) < Lk - torch.arange(B).remainder(Lk - 1)[:, None]
    args = torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), _lower(Lq), present
    return TwoSides(H, Dk), args, {}, ["seen=keep", "present=keep"]


def reference_masks_of_two_sides(module, x, memory, seen, present):
    x = x + module.own.expected(x, x, seen)
    return x + module.others.expected(x, memory, present[:, None, None])


def case_mask_of_own_side(B, H, L, Dk):
    args = torch.randn(B, L, H * Dk), torch.randn(B, L, H * Dk), _lower(L)
    return TwoSides(H, Dk), args, {}, ["seen=keep"]


def reference_mask_of_own_side(module, x, memory, seen):
    x = x + module.own.expected(x, x, seen)
    return x + module.others.expected(x, memory)


class GlimpseAndChoice(nn.Module):
    """Reads what is left of a sequence, and chooses one element of it."""

    def __init__(self, heads, depth):
        super().__init__()
        self.glimpse = Attend(heads, depth)
        self.choice = nn.Linear(heads * depth, heads * depth, bias=False)

    def forward(self, x, gone):
        query = self.glimpse(x.mean(1, keepdim=True), x, ~gone[:, None, None])
        scores = torch.einsum("bid,bjd->bij", query, self.choice(x)).squeeze(1) / math.sqrt(x.shape[-1])
        return (5 * scores.tanh()).masked_fill(gone, -math.inf).softmax(-1)


def case_glimpse_and_choice(B, H, L, Dk):
    gone = (torch.arange(L) + torch.arange(B)[:, None]) % 3 == 1
    return GlimpseAndChoice(H, Dk), (torch.randn(B, L, H * Dk), gone), {}, ["gone=drop"]


def reference_glimpse_and_choice(module, x, gone):
    query = module.glimpse.expected(x.mean(1, keepdim=True), x, ~gone[:, None, None])
    scores = (query * module.choice(x)).sum(-1) / math.sqrt(x.shape[-1])
    return softmax(torch.where(gone, -torch.inf, 5 * scores.tanh()))


class GraphLayer(nn.Module):
    def __init__(self, heads, depth):
        super().__init__()
        self.heads = heads
        self.values = nn.Linear(heads * depth, heads * depth)
        self.sink, self.source = (nn.Parameter(torch.randn(heads, 1, depth)) for _ in range(2))

    def scores(self, v):
        to, of = (v * self.sink).sum(-1), (v * self.source).sum(-1)
        return nn.functional.leaky_relu(to[..., :, None] + of[..., None, :], 0.2)

    def forward(self, x, edges):
        v = split(self.values(x), self.heads)
        weights = self.scores(v).masked_fill(~edges[:, None], -math.inf).softmax(-1)
        return join(weights @ v)


class GraphLayers(nn.Module):
    """Two layers of attention with the sum of two scores, over the edges of a graph."""

    def __init__(self, heads, depth):
        super().__init__()
        self.layers = nn.ModuleList(GraphLayer(heads, depth) for _ in range(2))

    def forward(self, x, edges):
        for layer in self.layers:
            x = x + layer(x, edges).tanh()
        return x


def case_graph_layers(B, H, L, Dk):
    edges = (torch.rand(B, L, L) < 0.4) | torch.eye(L, dtype=torch.bool)
    return GraphLayers(H, Dk), (torch.randn(B, L, H * Dk), edges), {}, ["edges=keep"]


def reference_graph_layers(module, x, edges):
    for layer in module.layers:
        v = split(layer.values(x), layer.heads)
        weights = softmax(torch.where(edges[:, None], layer.scores(v), -torch.inf))
        x = x + join(torch.einsum("bhij,bhjd->bhid", weights, v)).tanh()
    return x


class UnmaskedGate(nn.Module):
    """Masks its attention, and weighs all tokens, also those that are hidden, by a softmax of their own."""

    def __init__(self, heads, depth):
        super().__init__()
        self.attend = Attend(heads, depth)
        self.gate = nn.Linear(heads * depth, 1)

    def forward(self, x, mask):
        gate = self.gate(x).softmax(dim=1)
        return self.attend(x, x, mask[:, None, None]) * gate


def case_unmasked_gate(B, H, L, Dk):
    mask = torch.arange(L) < L - torch.arange(B).remainder(L - 1)[:, None]
    return UnmaskedGate(H, Dk), (torch.randn(B, L, H * Dk), mask), {}, ["mask=keep"]


def reference_unmasked_gate(module, x, mask):
    gate = softmax(module.gate(x).mT).mT
    return module.attend.expected(x, x, mask[:, None, None]) * gate


def _is_token(B, L):
    return torch.arange(L) < L - torch.arange(B).remainder(L - 1)[:, None]


class LatentsBetween(nn.Module):
    """Latents read the tokens, then each other, and the tokens read the latents: only the first needs the mask."""

    def __init__(self, heads, depth, count=3):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(1, count, heads * depth))
        self.read, self.mix, self.write = (Attend(heads, depth) for _ in range(3))

    def forward(self, x, mask):
        latents = self.read(self.latents.expand(len(x), -1, -1), x, mask[:, None, None])
        latents = latents + self.mix(latents, latents)
        return x + self.write(x, latents)


def case_latents_between(B, H, L, Dk):
    return LatentsBetween(H, Dk), (torch.randn(B, L, H * Dk), _is_token(B, L)), {}, ["mask=keep"]


def reference_latents_between(module, x, mask):
    latents = module.read.expected(module.latents.expand(len(x), -1, -1), x, mask[:, None, None])
    latents = latents + module.mix.expected(latents, latents)
    return x + module.write.expected(x, latents)


class CausalThenPooled(nn.Module):
    """No token sees the padding behind it, so only what pools all of them needs the mask."""

    def __init__(self, heads, depth):
        super().__init__()
        self.block, self.pool = Attend(heads, depth), Attend(heads, depth)
        self.query = nn.Parameter(torch.randn(1, 1, heads * depth))

    def forward(self, x, mask):
        x = x + self.block(x, x, _lower(x.shape[1]))
        return self.pool(self.query.expand(len(x), -1, -1), x, mask[:, None, None])


def case_causal_then_pooled(B, H, L, Dk):
    return CausalThenPooled(H, Dk), (torch.randn(B, L, H * Dk), _is_token(B, L)), {}, ["mask=keep", "causal"]


def reference_causal_then_pooled(module, x, mask):
    x = x + module.block.expected(x, x, _lower(x.shape[1]))
    return module.pool.expected(module.query.expand(len(x), -1, -1), x, mask[:, None, None])


class OfOneLength(nn.Module):
    """Source and target have one length, and only the source has padding."""

    def __init__(self, heads, depth):
        super().__init__()
        self.encode, self.own, self.cross = (Attend(heads, depth) for _ in range(3))

    def forward(self, source, target, mask):
        memory = source + self.encode(source, source, mask[:, None, None])
        target = target + self.own(target, target)
        return target + self.cross(target, memory, mask[:, None, None])


def case_target_as_long_as_its_source(B, H, L, Dk):
    args = torch.randn(B, L, H * Dk), torch.randn(B, L, H * Dk), _is_token(B, L)
    return OfOneLength(H, Dk), args, {}, ["mask=keep"]


def reference_target_as_long_as_its_source(module, source, target, mask):
    memory = source + module.encode.expected(source, source, mask[:, None, None])
    target = target + module.own.expected(target, target)
    return target + module.cross.expected(target, memory, mask[:, None, None])


class FilledByAttention(nn.Module):
    """Padding is filled with what attends to all tokens, and stays hidden from what follows."""

    def __init__(self, heads, depth):
        super().__init__()
        self.fill, self.block = Attend(heads, depth), Attend(heads, depth)

    def forward(self, x, mask):
        x = torch.where(mask[..., None], x, self.fill(x, x))
        return (x + self.block(x, x, mask[:, None, None]))[:, 0]


def case_filled_by_attention(B, H, L, Dk):
    return FilledByAttention(H, Dk), (torch.randn(B, L, H * Dk), _is_token(B, L)), {}, ["mask=keep"]


def reference_filled_by_attention(module, x, mask):
    x = torch.where(mask[..., None], x, module.fill.expected(x, x))
    return (x + module.block.expected(x, x, mask[:, None, None]))[:, 0]


def _last_of_blocks(L):
    """Show each token itself, and of each earlier block of three its last token."""
    i, j = torch.arange(L)[:, None], torch.arange(L)
    return (i == j) | ((j % 3 == 2) & (j // 3 < i // 3))


def case_earlier_blocks_by_their_last_tokens(B, H, L, Dk):
    x = torch.randn(B, L, H * Dk)
    return Attend(H, Dk), (x, x, _last_of_blocks(L)), {}, ["keep=keep", "causal"]


def _without_padding(B, L):
    """B 1 L L: the first tokens of some sequences are padding, which sees only the very first one."""
    present = torch.arange(L) >= torch.arange(B)[:, None, None, None] % 3
    kept = _lower(L) & present
    return torch.where(present.mT, kept, torch.arange(L) == 0)


def case_own_key_hidden_where_it_is_padding(B, H, L, Dk):
    x = torch.randn(B, L, H * Dk)
    return Attend(H, Dk), (x, x, _without_padding(B, L)), {}, ["keep=keep", "causal"]


def reference_earlier_blocks_by_their_last_tokens(module, x, memory, keep):
    return module.expected(x, memory, keep)


reference_own_key_hidden_where_it_is_padding = reference_earlier_blocks_by_their_last_tokens


class Completed(nn.Module):
    """Returns how far off the hidden tokens are from what attention to the others makes of them."""

    def __init__(self, heads, depth):
        super().__init__()
        self.attend = Attend(heads, depth)

    def forward(self, x, known):
        errors = (self.attend(x, x, known[:, None, None]) - x).square().mean(-1)
        return (errors * ~known).sum(-1)


def _known(B, L):
    return (torch.arange(L) + torch.arange(B)[:, None]) % 3 > 0


def case_error_at_hidden_tokens(B, H, L, Dk):
    return Completed(H, Dk), (torch.randn(B, L, H * Dk), _known(B, L)), {}, ["known=keep"]


def reference_error_at_hidden_tokens(module, x, known):
    errors = (module.attend.expected(x, x, known[:, None, None]) - x).square().mean(-1)
    return torch.where(known, 0, errors).sum(-1)


class First(nn.Module):
    """Reads a sequence's embedding at its first token, which is never padding."""

    def __init__(self, heads, depth):
        super().__init__()
        self.attend = Attend(heads, depth)

    def forward(self, x, keep):
        return self.attend(x, x, keep[:, None, None])[:, 0].tanh()


def case_read_at_the_first_token(B, H, L, Dk):
    keep = torch.arange(L) < L - torch.arange(B)[:, None] % 3
    return First(H, Dk), (torch.randn(B, L, H * Dk), keep), {}, ["keep=keep"]


def reference_read_at_the_first_token(module, x, keep):
    return module.attend.expected(x, x, keep[:, None, None])[:, 0].tanh()


class Reserved(nn.Module):
    """Writes keys and values to tensors with room for more, of which `keep` shows those that hold tokens."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(heads * depth, 3 * heads * depth)

    def forward(self, x, keep):
        q, k, v = (split(t, self.heads) for t in self.qkv(x).chunk(3, -1))
        room = x.new_zeros(2, *k.shape[:2], keep.shape[-1], k.shape[-1])
        room[0, :, :, : x.shape[1]], room[1, :, :, : x.shape[1]] = k, v
        scores = (q @ room[0].mT / math.sqrt(q.shape[-1])).masked_fill(~keep, -math.inf)
        return join(scores.softmax(-1) @ room[1])


def case_room_behind_the_mask(B, H, L, Dk):
    return Reserved(H, Dk), (torch.randn(B, L, H * Dk), torch.arange(L + 3) < L), {}


def reference_room_behind_the_mask(module, x, keep):
    return join(attention(*(split(t, module.heads) for t in module.qkv(x).chunk(3, -1))))


class OffByOne(Reserved):
    """Every query may also attend to nothing: to the first slot, which is left zero."""

    def forward(self, x):
        q, k, v = (split(t, self.heads) for t in self.qkv(x).chunk(3, -1))
        keys, values = (t.new_zeros(*t.shape[:2], t.shape[2] + 1, t.shape[3]) for t in (k, v))
        keys[:, :, 1:], values[:, :, 1:] = k, v
        return join((q @ keys.mT / math.sqrt(q.shape[-1])).softmax(-1) @ values)


def case_slot_of_zeros_in_front(B, H, L, Dk):
    return OffByOne(H, Dk), (torch.randn(B, L, H * Dk),), {}


def reference_slot_of_zeros_in_front(module, x):
    q, k, v = (split(t, module.heads) for t in module.qkv(x).chunk(3, -1))
    k, v = (torch.cat((torch.zeros_like(t[:, :, :1]), t), 2) for t in (k, v))
    return join(attention(q, k, v))


class BothDirections(nn.Module):
    """Attends along the rows of a map, then along its columns; one mask tells which of its places are filled."""

    def __init__(self, heads, depth):
        super().__init__()
        self.along_rows, self.along_columns = Attend(heads, depth), Attend(heads, depth)

    def forward(self, x, filled):
        rows, columns = x.shape[1:3]
        lines = x.flatten(0, 1)
        x = x + self.along_rows(lines, lines, filled.flatten(0, 1)[:, None, None]).unflatten(0, (-1, rows))
        lines, seen = x.transpose(1, 2).flatten(0, 1), filled.transpose(1, 2).flatten(0, 1)
        out = self.along_columns(lines, lines, seen[:, None, None]).unflatten(0, (-1, columns))
        return x + out.transpose(1, 2)


def case_mask_of_both_directions(B, H, Lq, Lk, Dk):
    filled = torch.rand(B, Lq, Lk) < 0.6
    filled[:, 0], filled[:, :, 0] = True, True
    return BothDirections(H, Dk), (torch.randn(B, Lq, Lk, H * Dk), filled), {}, ["filled=keep"]


def reference_mask_of_both_directions(module, x, filled):
    rows = [module.along_rows.expected(x[:, i], x[:, i], filled[:, i, None, None]) for i in range(x.shape[1])]
    x = x + torch.stack(rows, 1)
    columns = [
        module.along_columns.expected(x[:, :, j], x[:, :, j], filled[:, None, None, :, j]) for j in range(x.shape[2])
    ]
    return x + torch.stack(columns, 2)


class PairsOfTokens(nn.Module):
    """Attends along the rows of a square map: of the pairs of tokens that begin with the same one."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(heads * depth, 3 * heads * depth)

    def forward(self, pairs, exist):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(2, 3) for t in self.qkv(pairs).chunk(3, dim=-1))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        scores = scores + 1e9 * (exist[:, :, None, None, :] - 1)
        return (scores.softmax(-1) @ v).transpose(2, 3).flatten(3)


def case_mask_of_pairs_of_tokens(B, H, L, Dk):
    exist = torch.ones(B, L)
    exist[0, -2:] = 0
    exist = exist[:, :, None] * exist[:, None, :]
    return PairsOfTokens(H, Dk), (torch.randn(B, L, L, H * Dk), exist), {}, ["exist=keep"]


def reference_mask_of_pairs_of_tokens(module, pairs, exist):
    out = []
    for row, seen in zip(pairs.unbind(1), exist.unbind(1), strict=True):
        q, k, v = (split(t, module.heads) for t in module.qkv(row).chunk(3, -1))
        out.append(join(attention(q, k, v, bias=1e9 * (seen[:, None, None] - 1))))
    return torch.stack(out, 1)


class Predictor(nn.Module):
    """Reads the last token, which no query sees, and which is to be predicted; padding comes first."""

    def __init__(self, heads, depth):
        super().__init__()
        self.attend = Attend(heads, depth)

    def forward(self, x, keep):
        return (x + self.attend(x, x, keep[:, None, None]))[:, -1]


def case_read_at_the_token_to_predict(B, H, L, Dk):
    tokens = torch.arange(L)
    keep = (tokens >= torch.arange(B)[:, None] % 3) & (tokens < L - 1)
    return Predictor(H, Dk), (torch.randn(B, L, H * Dk), keep), {}, ["keep=keep"]


def reference_read_at_the_token_to_predict(module, x, keep):
    return (x + module.attend.expected(x, x, keep[:, None, None]))[:, -1]


class WithoutGlobalToken(nn.Module):
    """The tokens behind the first one attend to each other; the mask is that of all tokens."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(heads * depth, 3 * heads * depth)

    def forward(self, x, drop):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x[:, 1:]).chunk(3, dim=-1))
        hidden = torch.zeros_like(drop[:, 1:], dtype=x.dtype).masked_fill(drop[:, 1:], -math.inf)
        weights = (q @ k.mT / math.sqrt(q.shape[-1]) + hidden[:, None, None]).softmax(-1)
        return torch.cat((x[:, :1], (weights @ v).transpose(1, 2).flatten(2)), 1)


def case_first_token_is_no_key(B, H, L, Dk):
    drop = torch.arange(L + 2) >= (L + 2 - torch.arange(B) % 3)[:, None]
    return WithoutGlobalToken(H, Dk), (torch.randn(B, L + 2, H * Dk), drop), {}, ["drop=drop"]
