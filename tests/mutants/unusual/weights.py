"""Weights that are mixed, gated, subtracted, or computed without products."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, causal, join, multihead, softmax, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7})
CROSS = ({"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3}, {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6})
UNUSUAL = [
    ("talking_heads", *SIZES),
    ("cosine_attention", *SIZES),
    ("gated_output", *SIZES),
    ("gated_weights", *SIZES),
    ("gates_but_for_registers", *SIZES),
    ("softmax_plus_one", *SIZES),
    ("score_of_no_key", *SIZES),
    ("differential", *SIZES),
    ("contrasted_halves", *SIZES),
    ("contrasted_in_the_batch", *SIZES),
    ("additive", *CROSS),
    ("sparsemax", *SIZES),
    ("normalised_by_turns", *SIZES),
]


class Base(nn.Module):
    """`attend` gets query, key and value, (B, H, L, Dk) each."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads, self.depth = heads, depth
        self.qkv = nn.Linear(heads * depth, 3 * heads * depth)
        self.proj = nn.Linear(heads * depth, heads * depth)

    def logits(self, q, k):
        return torch.einsum("bhid,bhjd->bhij", q, k) * self.depth**-0.5

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, self.depth)).permute(2, 0, 3, 1, 4)
        return self.proj(self.attend(q, k, v).transpose(1, 2).flatten(2))


def _case(module, B, H, L, Dk, claims=()):
    return module(H, Dk), (torch.randn(B, L, H * Dk),), {}, list(claims)


def parts(module, x):
    return (split(t, module.heads) for t in module.qkv(x).chunk(3, dim=-1))


def scores(q, k):
    return torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])


def context(weights, v):
    return join(torch.einsum("bhij,bhjd->bhid", weights, v))


class TalkingHeads(Base):
    """Heads are mixed before the softmax and after it."""

    def __init__(self, heads, depth):
        super().__init__(heads, depth)
        self.before, self.after = nn.Linear(heads, heads), nn.Linear(heads, heads, bias=False)

    def attend(self, q, k, v):
        logits = self.before(self.logits(q, k).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        weights = logits.softmax(dim=-1)
        return self.after(weights.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) @ v


def case_talking_heads(B, H, L, Dk):
    return _case(TalkingHeads, B, H, L, Dk)


def reference_talking_heads(module, x):
    q, k, v = parts(module, x)
    mixed = torch.einsum("gh,bhij->bgij", module.before.weight, scores(q, k)) + module.before.bias[:, None, None]
    return module.proj(context(torch.einsum("gh,bhij->bgij", module.after.weight, softmax(mixed)), v))


class Cosine(Base):
    """Unit vectors, and a learned, clamped scale per head."""

    def __init__(self, heads, depth):
        super().__init__(heads, depth)
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones(heads, 1, 1)))

    def attend(self, q, k, v):
        logits = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
        logits = logits * self.logit_scale.clamp(max=math.log(100)).exp()
        return logits.softmax(dim=-1) @ v


def case_cosine_attention(B, H, L, Dk):
    return _case(Cosine, B, H, L, Dk)


def reference_cosine_attention(module, x):
    q, k, v = parts(module, x)
    q, k = (t / t.square().sum(-1, keepdim=True).sqrt() for t in (q, k))
    return module.proj(join(attention(q * module.logit_scale.exp(), k, v, scale=1.0)))


class GatedOutput(Base):
    """A gate computed from the tokens multiplies the output."""

    def __init__(self, heads, depth):
        super().__init__(heads, depth)
        self.gate = nn.Linear(heads * depth, heads * depth)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, self.depth)).permute(2, 0, 3, 1, 4)
        read = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.proj(torch.sigmoid(self.gate(x)) * read)


def case_gated_output(B, H, L, Dk):
    return _case(GatedOutput, B, H, L, Dk, ["causal"])


def reference_gated_output(module, x):
    read = multihead(*module.qkv(x).chunk(3, dim=-1), module.heads, keep=causal(x.shape[1], x.shape[1]))
    return module.proj(read / (1 + torch.exp(-module.gate(x))))


class GatedWeights(Base):
    """Separate weights from content and position, mixed by a gate per head."""

    def __init__(self, heads, depth):
        super().__init__(heads, depth)
        self.slope, self.gate = nn.Parameter(torch.rand(heads, 1, 1)), nn.Parameter(torch.randn(heads, 1, 1))

    def attend(self, q, k, v):
        place = torch.arange(q.shape[2])
        near = (-(self.slope + 0.1) * (place - place[:, None]).abs()).softmax(dim=-1)
        gate = torch.sigmoid(self.gate)
        return ((1 - gate) * self.logits(q, k).softmax(dim=-1) + gate * near) @ v


def case_gated_weights(B, H, L, Dk):
    return _case(GatedWeights, B, H, L, Dk)


def reference_gated_weights(module, x):
    q, k, v = parts(module, x)
    n, open_by = x.shape[1], 1 / (1 + torch.exp(-module.gate))
    distances = torch.tensor([[float(abs(i - j)) for j in range(n)] for i in range(n)]).to(x)
    near = torch.stack([softmax(-(slope + 0.1) * distances) for slope in module.slope.flatten()])
    return module.proj(context(softmax(scores(q, k)) * (1 - open_by) + near * open_by, v))


class SoftmaxPlusOne(Base):
    """A head may attend to nothing: one is added to the denominator."""

    def attend(self, q, k, v):
        logits = self.logits(q, k)
        peak = logits.amax(dim=-1, keepdim=True).clamp(min=0)
        powers = torch.exp(logits - peak)
        return powers / (torch.exp(-peak) + powers.sum(dim=-1, keepdim=True)) @ v


def case_softmax_plus_one(B, H, L, Dk):
    return _case(SoftmaxPlusOne, B, H, L, Dk)


def reference_softmax_plus_one(module, x):
    q, k, v = parts(module, x)
    powers = scores(q, k).exp()
    return module.proj(context(powers / (1 + powers.sum(-1, keepdim=True)), v))


class ScoreOfNoKey(Base):
    """Each head has a learned score for attending to nothing, which is part of the denominator only."""

    def __init__(self, heads, depth):
        super().__init__(heads, depth)
        self.sink = nn.Parameter(torch.randn(heads, 1, 1))

    def attend(self, q, k, v):
        logits = self.logits(q, k)
        peak = torch.maximum(logits.amax(dim=-1, keepdim=True), self.sink)
        powers = torch.exp(logits - peak)
        return powers / (powers.sum(dim=-1, keepdim=True) + torch.exp(self.sink - peak)) @ v


def case_score_of_no_key(B, H, L, Dk):
    return _case(ScoreOfNoKey, B, H, L, Dk)


def reference_score_of_no_key(module, x):
    q, k, v = parts(module, x)
    sink = module.sink.expand(x.shape[0], -1, x.shape[1], 1)
    return module.proj(context(softmax(torch.cat([sink, scores(q, k)], -1))[..., 1:], v))


class Differential(nn.Module):
    """Two softmaxes per head, the second subtracted from the first; each head's output is normalised."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads, self.depth = heads, depth
        self.qk, self.v = nn.Linear(heads * depth, 4 * heads * depth), nn.Linear(heads * depth, heads * depth)
        self.amount, self.norm = nn.Parameter(torch.rand(heads, 1, 1)), nn.RMSNorm(depth)

    def forward(self, x):
        b, n, _ = x.shape
        q1, q2, k1, k2 = self.qk(x).view(b, n, 4, self.heads, self.depth).permute(2, 0, 3, 1, 4)
        v = self.v(x).view(b, n, self.heads, self.depth).transpose(1, 2)
        first, second = (torch.softmax(q @ k.mT * self.depth**-0.5, dim=-1) for q, k in ((q1, k1), (q2, k2)))
        return self.norm((first - self.amount * second) @ v).transpose(1, 2).reshape(b, n, -1)


def case_differential(B, H, L, Dk):
    return Differential(H, Dk), (torch.randn(B, L, H * Dk),), {}


def reference_differential(module, x):
    q1, q2, k1, k2 = (split(t, module.heads) for t in module.qk(x).chunk(4, dim=-1))
    v = split(module.v(x), module.heads)
    return join(module.norm(attention(q1, k1, v) - module.amount * attention(q2, k2, v)))


class ContrastedHalves(nn.Module):
    """Every head has two softmaxes, of the halves of its queries and keys, which keep an axis of their own."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads, self.depth = heads, depth
        self.to_q, self.to_k = (nn.Linear(heads * depth, 2 * heads * depth) for _ in range(2))
        self.to_v, self.mix = nn.Linear(heads * depth, heads * depth), nn.Parameter(torch.rand(heads, 1, 1))

    def maps(self, x):
        q, k = (proj(x).unflatten(-1, (self.heads, 2, self.depth)) for proj in (self.to_q, self.to_k))
        return torch.einsum("bqhsd,bkhsd->sbhqk", q * self.depth**-0.5, k).softmax(dim=-1)

    def forward(self, x):
        kept, taken = self.maps(x)
        v = self.to_v(x).unflatten(-1, (self.heads, self.depth))
        return torch.einsum("bhqk,bkhd->bqhd", kept - self.mix * taken, v).flatten(2)


class ContrastedInTheBatch(ContrastedHalves):
    """Batch, heads and halves share one axis."""

    def maps(self, x):
        q, k = (proj(x).unflatten(-1, (2 * self.heads, self.depth)) for proj in (self.to_q, self.to_k))
        q, k = (t.transpose(1, 2).flatten(0, 1) for t in (q, k))
        weights = torch.bmm(q, k.mT).mul(self.depth**-0.5).softmax(dim=-1)
        return weights.unflatten(0, (x.shape[0], self.heads, 2)).movedim(2, 0)


def case_contrasted_halves(B, H, L, Dk):
    return ContrastedHalves(H, Dk), (torch.randn(B, L, H * Dk),), {}


def case_contrasted_in_the_batch(B, H, L, Dk):
    return ContrastedInTheBatch(H, Dk), (torch.randn(B, L, H * Dk),), {}


def reference_contrasted_halves(module, x):
    q, k = (split(proj(x), 2 * module.heads) for proj in (module.to_q, module.to_k))
    v = split(module.to_v(x), module.heads)
    kept, taken = (attention(q[:, s::2], k[:, s::2], v) for s in (0, 1))
    return join(kept - module.mix * taken)


reference_contrasted_in_the_batch = reference_contrasted_halves


class Additive(nn.Module):
    """Scores by a small network of query and key, one head."""

    def __init__(self, width):
        super().__init__()
        self.W_q, self.W_k = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.w_v = nn.Linear(width, 1, bias=False)

    def forward(self, queries, keys, values):
        features = torch.tanh(self.W_q(queries).unsqueeze(2) + self.W_k(keys).unsqueeze(1))
        return torch.bmm(self.w_v(features).squeeze(-1).softmax(dim=-1), values)


def case_additive(B, H, Lq, Lk, Dk):
    return Additive(H * Dk), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def reference_additive(module, queries, keys, values):
    rows = [torch.tanh(module.W_q(q)[:, None] + module.W_k(keys)) @ module.w_v.weight[0] for q in queries.unbind(1)]
    return softmax(torch.stack(rows, dim=1)) @ values


class Sparsemax(Base):
    """The nearest point of the simplex instead of a softmax: many weights are zero."""

    def attend(self, q, k, v):
        z = self.logits(q, k)
        ranked, count = z.sort(dim=-1, descending=True).values, torch.arange(1, z.shape[-1] + 1)
        inside = 1 + count * ranked > ranked.cumsum(dim=-1)
        size = inside.sum(dim=-1, keepdim=True)
        threshold = (ranked.cumsum(dim=-1).gather(-1, size - 1) - 1) / size
        return (z - threshold).clamp(min=0) @ v


def case_sparsemax(B, H, L, Dk):
    return _case(Sparsemax, B, H, L, Dk)


def reference_sparsemax(module, x):
    q, k, v = parts(module, x)
    z = scores(q, k)
    low, high = z.amin(-1, keepdim=True) - 1, z.amax(-1, keepdim=True)
    for _ in range(100):
        middle = (low + high) / 2
        too_much = (z - middle).clamp(min=0).sum(-1, keepdim=True) > 1
        low, high = torch.where(too_much, middle, low), torch.where(too_much, high, middle)
    return module.proj(context((z - low).clamp(min=0), v))


class GatesButForRegisters(Base):
    """A score of its own opens or closes each key, except for the first two tokens."""

    def __init__(self, heads, depth):
        super().__init__(heads, depth)
        self.gate = nn.Linear(depth, depth)

    def attend(self, q, k, v):
        opened = self.gate(q) @ k[..., 2:, :].mT * self.depth**-0.5
        gates = F.pad(opened.sigmoid().log(), (2, 0))
        return softmax(self.logits(q, k) + gates) @ v


def case_gates_but_for_registers(B, H, L, Dk):
    return _case(GatesButForRegisters, B, H, L, Dk)


def reference_gates_but_for_registers(module, x):
    q, k, v = parts(module, x)
    opened = q.new_zeros(*q.shape[:-1], k.shape[-2])
    for key in range(2, k.shape[-2]):
        opened[..., key] = F.logsigmoid((module.gate(q) * k[..., key : key + 1, :]).sum(-1) / q.shape[-1] ** 0.5)
    return module.proj(context(softmax(scores(q, k) + opened), v))


class NormalisedByTurns(Base):
    """Sinkhorn's iteration, which ends with the columns."""

    def attend(self, q, k, v):
        weights = self.logits(q, k)
        for _ in range(5):
            weights = weights - weights.logsumexp(dim=-1, keepdim=True)
            weights = weights - weights.logsumexp(dim=-2, keepdim=True)
        return weights.exp() @ v


def case_normalised_by_turns(B, H, L, Dk):
    return _case(NormalisedByTurns, B, H, L, Dk)


def reference_normalised_by_turns(module, x):
    q, k, v = parts(module, x)
    weights = scores(q, k)
    for _ in range(5):
        weights = softmax(softmax(weights).log().mT).log().mT
    return module.proj(context(weights.exp(), v))
