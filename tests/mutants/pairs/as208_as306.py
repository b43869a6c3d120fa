"""AS208 and AS306: numbers that overflow in float16, and results that are NaN or infinite."""

import torch
from torch import nn

from tests.mutants.plain import attention, causal, multihead

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7}, {"B": 4, "H": 3, "L": 7, "Dk": 8})
PAIRS = [
    ("AS208", "exp_without_maximum", *SIZES),
    ("AS208", "joint_with_memory", *SIZES),
    ("AS208", "large_temperature", *SIZES),
    ("AS208", "plain_exponentials", *SIZES),
    ("AS208", "squared_norms", *SIZES),
    ("AS306", "sum_cancels", *SIZES),
    ("AS306", "logarithm", *SIZES),
    ("AS306", "unit_vectors_of_zeros", *SIZES),
    ("AS306", "blocks_of_hidden_keys", *SIZES),
    ("AS306", "halves_merged", *SIZES),
    ("AS306", "key_by_key", *SIZES),
]


def _heads(B, H, L, Dk):
    return tuple(torch.randn(B, H, L, Dk) for _ in range(3))


def plain(q, k, v):
    scores = q @ k.mT * q.size(-1) ** -0.5
    return scores.softmax(-1) @ v


def without_maximum(q, k, v):
    weights = (q @ k.mT * q.size(-1) ** -0.5 + 12).exp()  # wrong: AS208 exp_without_maximum
    return weights / weights.sum(-1, keepdim=True) @ v


def over_memory_too(v, near, far):
    total = near.sum(-1, keepdim=True) + far.sum(-1, keepdim=True)
    return (near @ v + far @ v.roll(1, 2)) / total


def joint(q, k, v):
    near = q @ k.mT * q.size(-1) ** -0.5
    far = q @ k.tanh().mT * q.size(-1) ** -0.5
    most = torch.maximum(near.amax(-1, keepdim=True), far.amax(-1, keepdim=True))
    return over_memory_too(v, (near - most).exp(), (far - most).exp())


def joint_with_memory(q, k, v):
    near = q @ k.mT * q.size(-1) ** -0.5
    far = q @ k.tanh().mT * q.size(-1) ** -0.5
    near = near.exp()  # wrong: AS208 joint_with_memory
    return over_memory_too(v, near, far.exp())


def warm(q, k, v):
    scores = (q * 400) @ (k * 400).mT  # wrong: AS208 large_temperature
    return (scores / 160000 * q.size(-1) ** -0.5).softmax(-1) @ v


class Normed(nn.Module):
    """Queries are divided by their root mean square."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def norm(self, q):
        return q * q.pow(2).mean(-1, keepdim=True).rsqrt()

    def forward(self, x):
        q, k, v = self.norm(self.q(x)), self.k(x), self.v(x)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        weights = (q @ k.mT * q.size(-1) ** -0.5).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class NormedOfMultiples(Normed):
    def norm(self, q):
        large = q * 70000  # wrong: AS208 squared_norms
        return large / large.pow(2).mean(-1, keepdim=True).sqrt()


class NormedByCentred(Normed):
    def norm(self, q):
        centred = q - q
        return q / centred.norm(dim=-1, keepdim=True)  # wrong: AS306 unit_vectors_of_zeros


def reference_squared_norms(module, x):
    q = module.q(x)
    q = q * q.pow(2).mean(-1, keepdim=True).rsqrt()
    return multihead(q, module.k(x), module.v(x), module.heads)


def wrong_squared_norms(B, H, L, Dk):
    return NormedOfMultiples(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_unit_vectors_of_zeros(B, H, L, Dk):
    return NormedByCentred(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_squared_norms(B, H, L, Dk):
    return Normed(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


right_unit_vectors_of_zeros, reference_unit_vectors_of_zeros = right_squared_norms, reference_squared_norms


def decoder(q, k, v):
    kept = torch.ones(q.size(2), k.size(2), dtype=torch.bool).tril()
    weights = (q @ k.mT * q.size(-1) ** -0.5).masked_fill(~kept, -torch.inf).softmax(-1)
    return weights @ v, weights


def decoder_of_logarithms(q, k, v):
    kept = torch.ones(q.size(2), k.size(2), dtype=torch.bool).tril()
    weights = (q @ k.mT * q.size(-1) ** -0.5).masked_fill(~kept, -torch.inf).softmax(-1)
    return (weights @ v).log(), weights  # wrong: AS306 logarithm


def decoder_of_differences(q, k, v):
    kept = torch.ones(q.size(2), k.size(2), dtype=torch.bool).tril()
    weights = (q @ k.mT * q.size(-1) ** -0.5).masked_fill(~kept, -torch.inf).softmax(-1)
    return weights @ v / (weights.sum(-1) - weights.sum(-1)).unsqueeze(-1), weights  # wrong: AS306 sum_cancels


def wrong_exp_without_maximum(B, H, L, Dk):
    return without_maximum, _heads(B, H, L, Dk), {}


def wrong_joint_with_memory(B, H, L, Dk):
    return joint_with_memory, _heads(B, H, L, Dk), {}


def right_joint_with_memory(B, H, L, Dk):
    return joint, _heads(B, H, L, Dk), {}


def reference_joint_with_memory(function, q, k, v):
    keys, values = torch.cat([k, k.tanh()], 2), torch.cat([v, v.roll(1, 2)], 2)
    weights = (torch.einsum("bhqd,bhkd->bhqk", q, keys) / k.shape[-1] ** 0.5).softmax(-1)
    return torch.einsum("bhqk,bhkd->bhqd", weights, values)


def wrong_large_temperature(B, H, L, Dk):
    return warm, _heads(B, H, L, Dk), {}


def wrong_logarithm(B, H, L, Dk):
    return decoder_of_logarithms, _heads(B, H, L, Dk), {}, ["causal"]


def wrong_sum_cancels(B, H, L, Dk):
    return decoder_of_differences, _heads(B, H, L, Dk), {}, ["causal"]


def right_exp_without_maximum(B, H, L, Dk):
    return plain, _heads(B, H, L, Dk), {}


def right_logarithm(B, H, L, Dk):
    return decoder, _heads(B, H, L, Dk), {}, ["causal"]


right_large_temperature, right_sum_cancels = right_exp_without_maximum, right_logarithm


def reference_exp_without_maximum(called, q, k, v):
    return attention(q, k, v)


def reference_logarithm(called, q, k, v):
    return attention(q, k, v, keep=causal(q.shape[-2], k.shape[-2]))


reference_large_temperature, reference_sum_cancels = reference_exp_without_maximum, reference_logarithm


def plain_exponentials(q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.size(-1) ** 0.5
    powers = torch.exp(scores)  # wrong: AS208 plain_exponentials
    return torch.einsum("bhij,bhjd->bhid", powers / powers.sum(-1, keepdim=True), v)


def shifted_exponentials(q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.size(-1) ** 0.5
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    return torch.einsum("bhij,bhjd->bhid", powers / powers.sum(-1, keepdim=True), v)


def wrong_plain_exponentials(B, H, L, Dk):
    return plain_exponentials, _heads(B, H, L, Dk), {}


def right_plain_exponentials(B, H, L, Dk):
    return shifted_exponentials, _heads(B, H, L, Dk), {}


def reference_plain_exponentials(function, q, k, v):
    return attention(q, k, v)


def _with_padding(B, H, L, Dk):
    keep = torch.ones(B, L, dtype=torch.bool)
    keep[:, -1] = False
    return (*_heads(B, H, L, Dk), keep)


def _blockwise(q, k, v, keep, power):
    most, total = q.new_full((*q.shape[:-1], 1), -torch.inf), q.new_zeros(*q.shape[:-1], 1)
    context = torch.zeros_like(v)
    for keys, values, kept in zip(k.split(3, 2), v.split(3, 2), keep.split(3, 1), strict=True):
        scores = (q @ keys.mT * q.size(-1) ** -0.5).masked_fill(~kept[:, None, None], -torch.inf)
        larger = torch.maximum(most, scores.amax(-1, keepdim=True))
        powers, faded = power(scores, larger), power(most, larger)
        total, context = total * faded + powers.sum(-1, keepdim=True), context * faded + powers @ values
        most = larger
    return context / total


def blocks_of_hidden_keys(q, k, v, keep):
    def power(scores, most):
        return (scores - most).exp()  # wrong: AS306 blocks_of_hidden_keys

    return _blockwise(q, k, v, keep, power)


def blocks_of_keys(q, k, v, keep):
    def power(scores, most):
        return (scores - most.masked_fill(most.isinf(), 0)).exp()

    return _blockwise(q, k, v, keep, power)


def _merged(half_of, q, k, v, keep):
    middle = k.size(2) // 2
    one, first = half_of(q, k[:, :, :middle], v[:, :, :middle], keep[:, None, None, :middle])
    other, second = half_of(q, k[:, :, middle:], v[:, :, middle:], keep[:, None, None, middle:])
    both = torch.logaddexp(first, second)
    return (first - both).exp() * one + (second - both).exp() * other


def halves(q, k, v, keep):
    def half(q, k, v, keep):
        scores = (torch.einsum("bhid,bhjd->bhij", q, k) / q.size(-1) ** 0.5).masked_fill(~keep, -torch.inf)
        total = scores.logsumexp(-1, keepdim=True)
        return torch.where(keep, scores - total, -torch.inf).exp() @ v, total

    return _merged(half, q, k, v, keep)


def halves_merged(q, k, v, keep):
    def half(q, k, v, keep):
        scores = (torch.einsum("bhid,bhjd->bhij", q, k) / q.size(-1) ** 0.5).masked_fill(~keep, -torch.inf)
        total = scores.logsumexp(-1, keepdim=True)
        return (scores - total).exp() @ v, total  # wrong: AS306 halves_merged

    return _merged(half, q, k, v, keep)


class KeyByKey(nn.Module):
    """Reads one key after the other, as a decoder with a stream of keys does."""

    def fade(self, most, larger):
        return torch.where(most == larger, 1.0, torch.exp(most - larger))

    def forward(self, q, k, v, keep):
        most, total, context = q.new_full(q.shape[:-1], -torch.inf), q.new_zeros(q.shape[:-1]), torch.zeros_like(q)
        for place in range(k.size(2)):
            scores = torch.einsum("bhid,bhd->bhi", q, k[:, :, place]) / q.size(-1) ** 0.5
            scores = scores.masked_fill(~keep[:, place, None, None], -torch.inf)
            larger = torch.maximum(most, scores)
            faded, power = self.fade(most, larger), self.fade(scores, larger) * keep[:, place, None, None]
            total = total * faded + power
            context = context * faded[..., None] + power[..., None] * v[:, :, place, None]
            most = larger
        return context / total[..., None]


class PlainKeyByKey(KeyByKey):
    """Subtracts a maximum that may be -inf from itself."""

    def fade(self, most, larger):
        return torch.exp(most - larger)  # wrong: AS306 key_by_key


def wrong_blocks_of_hidden_keys(B, H, L, Dk):
    return blocks_of_hidden_keys, _with_padding(B, H, L, Dk), {}, ["keep=keep"]


def right_blocks_of_hidden_keys(B, H, L, Dk):
    return blocks_of_keys, _with_padding(B, H, L, Dk), {}, ["keep=keep"]


def wrong_halves_merged(B, H, L, Dk):
    return halves_merged, _with_padding(B, H, L, Dk), {}, ["keep=keep"]


def right_halves_merged(B, H, L, Dk):
    return halves, _with_padding(B, H, L, Dk), {}, ["keep=keep"]


def wrong_key_by_key(B, H, L, Dk):
    return PlainKeyByKey(), _with_padding(B, H, L, Dk), {}, ["keep=keep"]


def right_key_by_key(B, H, L, Dk):
    return KeyByKey(), _with_padding(B, H, L, Dk), {}, ["keep=keep"]


def reference_blocks_of_hidden_keys(called, q, k, v, keep):
    return attention(q, k, v, keep=keep[:, None, None])


reference_key_by_key = reference_halves_merged = reference_blocks_of_hidden_keys
