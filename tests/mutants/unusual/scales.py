"""Scales at unusual places, learned scales, and functions in place of a scale."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, causal, join, multihead, softmax, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7})
UNUSUAL = [
    ("scaled_weights", *SIZES),
    ("scaled_query", *SIZES),
    ("fourth_roots", *SIZES),
    ("learned_temperature", *SIZES),
    ("unscaled", *SIZES),
    ("soft_capped", *SIZES),
    ("disentangled", *SIZES),
    ("length_scaled", *SIZES),
    ("peak_subtracted", *SIZES),
    ("single_precision_softmax", *SIZES),
    ("single_precision_scores", *SIZES),
    ("powers_of_two", *SIZES),
    ("keys_of_two_tokens", *SIZES),
]


class Attention(nn.Module):
    """The block that the variants change: `logits` computes the scores."""

    def __init__(self, heads, d_head):
        super().__init__()
        self.heads, self.d_head = heads, d_head
        self.to_qkv = nn.Linear(heads * d_head, 3 * heads * d_head)
        self.to_out = nn.Linear(heads * d_head, heads * d_head)

    def logits(self, q, k):
        return q @ k.mT

    def weights(self, logits):
        return logits.softmax(dim=-1)

    def forward(self, x):
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.heads, self.d_head)).permute(2, 0, 3, 1, 4)
        return self.to_out((self.weights(self.logits(q, k)) @ v).transpose(1, 2).flatten(2))


def _case(module, B, H, L, Dk, claims=()):
    return module(H, Dk), (torch.randn(B, L, H * Dk),), {}, list(claims)


def plain(module, x, **options):
    return module.to_out(multihead(*module.to_qkv(x).chunk(3, dim=-1), module.heads, **options))


class ScaledWeights(Attention):
    def __init__(self, heads, d_head):
        super().__init__(heads, d_head)
        with torch.no_grad():
            self.to_qkv.weight[: heads * d_head] *= d_head**-0.5
            self.to_qkv.bias[: heads * d_head] *= d_head**-0.5


def case_scaled_weights(B, H, L, Dk):
    return _case(ScaledWeights, B, H, L, Dk)


def reference_scaled_weights(module, x):
    return plain(module, x, scale=1.0)


class ScaledQuery(Attention):
    def logits(self, q, k):
        q = q * self.d_head**-0.5
        return torch.einsum("bhqd,bhkd->bhqk", q, k)


def case_scaled_query(B, H, L, Dk):
    return _case(ScaledQuery, B, H, L, Dk, ["scale=1/sqrt(Dk)"])


class FourthRoots(Attention):
    def logits(self, q, k):
        root = math.sqrt(math.sqrt(self.d_head))
        return (q / root) @ (k / root).transpose(-2, -1)


def case_fourth_roots(B, H, L, Dk):
    return _case(FourthRoots, B, H, L, Dk, ["scale=1/sqrt(Dk)"])


class LearnedTemperature(Attention):
    def __init__(self, heads, d_head):
        super().__init__(heads, d_head)
        self.log_temperature = nn.Parameter(torch.randn(heads, 1, 1) / 4)

    def logits(self, q, k):
        return q @ k.mT * self.log_temperature.exp()


def case_learned_temperature(B, H, L, Dk):
    return _case(LearnedTemperature, B, H, L, Dk)


def reference_learned_temperature(module, x):
    q, k, v = (split(t, module.heads) for t in module.to_qkv(x).chunk(3, dim=-1))
    temperatures = module.log_temperature.exp().flatten()
    heads = [attention(q[:, h], k[:, h], v[:, h], scale=t) for h, t in enumerate(temperatures)]
    return module.to_out(torch.cat(heads, dim=-1))


def case_unscaled(B, H, L, Dk):
    return _case(Attention, B, H, L, Dk, ["scale=1"])


class SoftCapped(Attention):
    """The scores are kept within ±cap; causal."""

    cap = 3.0

    def logits(self, q, k):
        scores = q @ k.transpose(-2, -1) * self.d_head**-0.5
        scores = self.cap * torch.tanh(scores / self.cap)
        return scores + torch.full_like(scores, -torch.inf).triu(1)


def case_soft_capped(B, H, L, Dk):
    return _case(SoftCapped, B, H, L, Dk, ["causal"])


def reference_soft_capped(module, x):
    q, k, v = (split(t, module.heads) for t in module.to_qkv(x).chunk(3, dim=-1))
    scores = torch.tanh(torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1]) / 3) * 3
    weights = softmax(torch.where(causal(x.shape[1], x.shape[1]), scores, -torch.inf))
    return module.to_out(join(torch.einsum("bhij,bhjd->bhid", weights, v)))


class Disentangled(nn.Module):
    """Content to content, content to position and position to content: three terms, scaled by 1/sqrt(3*Dk)."""

    def __init__(self, heads, d_head, reach=4):
        super().__init__()
        self.heads, self.reach = heads, reach
        width = heads * d_head
        self.query_proj, self.key_proj, self.value_proj = (nn.Linear(width, width) for _ in range(3))
        self.rel = nn.Parameter(torch.randn(2 * reach, width))

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def forward(self, x):
        n = x.shape[1]
        q, k, v = (self.split(f(x)) for f in (self.query_proj, self.key_proj, self.value_proj))
        pos_q, pos_k = self.split(self.query_proj(self.rel)), self.split(self.key_proj(self.rel))
        delta = torch.arange(n)[:, None] - torch.arange(n)
        index = (delta + self.reach).clamp(0, 2 * self.reach - 1).expand(x.shape[0], self.heads, n, n)
        c2p = torch.gather(q @ pos_k.mT, -1, index)
        p2c = torch.gather(k @ pos_q.mT, -1, index).mT
        scores = (q @ k.mT + c2p + p2c) / math.sqrt(3 * q.shape[-1])
        return (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)


def case_disentangled(B, H, L, Dk):
    return Disentangled(H, Dk), (torch.randn(B, L, H * Dk),), {}, ["scale=1/sqrt(3*Dk)"]


def reference_disentangled(module, x):
    n, r = x.shape[1], module.reach
    q, k, v = (split(f(x), module.heads) for f in (module.query_proj, module.key_proj, module.value_proj))
    pq, pk = (split(f(module.rel)[None], module.heads)[0] for f in (module.query_proj, module.key_proj))
    scores = torch.einsum("bhid,bhjd->bhij", q, k)
    for i in range(n):
        for j in range(n):
            there, back = (max(0, min(2 * r - 1, d + r)) for d in (i - j, j - i))
            scores[:, :, i, j] += (q[:, :, i] * pk[:, there]).sum(-1) + (k[:, :, j] * pq[:, back]).sum(-1)
    return join(torch.einsum("bhij,bhjd->bhid", softmax(scores / math.sqrt(3 * q.shape[-1])), v))


class LengthScaled(Attention):
    """The logarithm of the number of keys keeps long sequences sharp; a factor per head is learned."""

    def __init__(self, heads, d_head):
        super().__init__(heads, d_head)
        self.s = nn.Parameter(torch.rand(heads, 1, 1) + 0.5)

    def logits(self, q, k):
        return q @ k.mT * (self.s * math.log(k.shape[-2]) / math.sqrt(self.d_head))


def case_length_scaled(B, H, L, Dk):
    return _case(LengthScaled, B, H, L, Dk)


def reference_length_scaled(module, x):
    q, k, v = (split(t, module.heads) for t in module.to_qkv(x).chunk(3, dim=-1))
    return module.to_out(join(attention(q * module.s * math.log(x.shape[1]), k, v)))


class PeakSubtracted(Attention):
    def logits(self, q, k):
        return q @ k.mT / math.sqrt(self.d_head)

    def weights(self, logits):
        logits = logits - logits.amax(dim=-1, keepdim=True).detach()
        powers = logits.exp()
        return powers / powers.sum(dim=-1, keepdim=True)


def case_peak_subtracted(B, H, L, Dk):
    return _case(PeakSubtracted, B, H, L, Dk, ["scale=1/sqrt(Dk)"])


class SinglePrecisionSoftmax(Attention):
    def logits(self, q, k):
        return q @ k.mT / math.sqrt(self.d_head)

    def weights(self, logits):
        return F.softmax(logits, dim=-1, dtype=torch.float32).to(logits.dtype)


def case_single_precision_softmax(B, H, L, Dk):
    return _case(SinglePrecisionSoftmax, B, H, L, Dk)


class SinglePrecisionScores(Attention):
    """Queries and keys are single precision, and values as they come."""

    def logits(self, q, k):
        q, k = q.float(), k.float()
        return q @ k.mT / math.sqrt(self.d_head)

    def forward(self, x):
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.heads, self.d_head)).permute(2, 0, 3, 1, 4)
        weights = self.weights(self.logits(q, k)).to(v.dtype)
        return self.to_out((weights @ v).transpose(1, 2).flatten(2))


def case_single_precision_scores(B, H, L, Dk):
    return _case(SinglePrecisionScores, B, H, L, Dk)


class PowersOfTwo(Attention):
    def logits(self, q, k):
        return q * (math.log2(math.e) / math.sqrt(self.d_head)) @ k.mT

    def weights(self, logits):
        total = torch.logsumexp(logits * math.log(2), dim=-1, keepdim=True)
        return torch.exp2(logits - total / math.log(2))


def case_powers_of_two(B, H, L, Dk):
    return _case(PowersOfTwo, B, H, L, Dk, ["scale=1/sqrt(Dk)"])


reference_scaled_query = reference_fourth_roots = reference_peak_subtracted = reference_powers_of_two = plain
reference_unscaled = reference_scaled_weights


class KeysOfTwoTokens(nn.Module):
    """The keys and values of two neighbours, half as wide, are one key and one value."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads, width = heads, heads * depth
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width // 2), nn.Linear(width, width // 2)

    def paired(self, x):
        vectors = x.unflatten(1, (-1, 2)).unflatten(-1, (self.heads, -1))
        return vectors.permute(0, 3, 1, 2, 4).flatten(3)

    def forward(self, x):
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) * (x.shape[-1] // self.heads) ** -0.5
        k, v = self.paired(self.k(x)), self.paired(self.v(x))
        return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)


def case_keys_of_two_tokens(B, H, L, Dk):
    return KeysOfTwoTokens(H, 2 * Dk), (torch.randn(B, 2 * L, 2 * H * Dk),), {}, ["scale=(2*Dk)**-0.5"]
