"""AS302: the rows of the weights don't sum to one."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.plain import attention, causal, join, multihead, softmax, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3},
    {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6},
    {"B": 5, "H": 3, "Lq": 4, "Lk": 9, "Dk": 6},
)
LINEAR = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7}, {"B": 4, "H": 3, "L": 5, "Dk": 8})
PAIRS = [
    ("AS302", "running_softmax", *CROSS),
    ("AS302", "logarithms", *SIZES),
    ("AS302", "peak_taken_once", *CROSS),
    ("AS302", "whole_plane", *SIZES),
    ("AS302", "best_keys_of_all", *CROSS),
    ("AS302", "best_weights", *CROSS),
    ("AS302", "softmaxes_of_the_other_axes", *LINEAR),
    ("AS302", "denominator_of_sums", *LINEAR),
    ("AS302", "denominator_of_own_keys", *LINEAR),
    ("AS302", "recurrent_denominator", *LINEAR),
]


def running(q: Tensor, k: Tensor, v: Tensor, block: int = 2) -> Tensor:
    """Go through the keys block by block and keep a running maximum and sum, in (B, H, L, Dk)."""
    q = q * q.shape[-1] ** -0.5
    peak = q.new_full((*q.shape[:-1], 1), float("-inf"))
    total, output = torch.zeros_like(peak), torch.zeros_like(q)
    for start in range(0, k.shape[-2], block):
        scores = q @ k[..., start : start + block, :].mT
        higher = torch.maximum(peak, scores.amax(-1, keepdim=True))
        p = torch.exp(scores - higher)
        shrink = torch.exp(peak - higher)
        total = total * shrink + p.sum(-1, keepdim=True)
        output = output * shrink + p @ v[..., start : start + block, :]
        peak = higher
    return output / total


def running_unshrunk(q: Tensor, k: Tensor, v: Tensor, block: int = 2) -> Tensor:
    """Go through the keys block by block and keep a running maximum and sum, in (B, H, L, Dk)."""
    q = q * q.shape[-1] ** -0.5
    peak = q.new_full((*q.shape[:-1], 1), float("-inf"))
    total, output = torch.zeros_like(peak), torch.zeros_like(q)
    for start in range(0, k.shape[-2], block):
        scores = q @ k[..., start : start + block, :].mT
        higher = torch.maximum(peak, scores.amax(-1, keepdim=True))
        p = torch.exp(scores - higher)
        total = total * torch.exp(peak - higher) + p.sum(-1, keepdim=True)
        output = output + p @ v[..., start : start + block, :]
        peak = higher
    return output / total


def _heads(B, H, Lq, Lk, Dk):
    return torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)


def wrong_running_softmax(B, H, Lq, Lk, Dk):
    return running_unshrunk, _heads(B, H, Lq, Lk, Dk), {}


def right_running_softmax(B, H, Lq, Lk, Dk):
    return running, _heads(B, H, Lq, Lk, Dk), {}


def reference_running_softmax(function, q, k, v):
    return attention(q, k, v)


class Decoder(nn.Module):
    """A causal block; the weights are a method."""

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.ln = nn.LayerNorm(n_embd)
        self.attn, self.proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)

    def weights(self, scores):
        T = scores.shape[-1]
        keep = torch.ones(T, T, dtype=torch.bool, device=scores.device).tril()
        return F.softmax(scores.masked_fill(~keep, torch.finfo(scores.dtype).min), dim=-1)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.attn(self.ln(x)).view(B, T, 3, self.n_head, C // self.n_head).permute(2, 0, 3, 1, 4)
        y = self.weights(q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5) @ v
        return x + self.proj(y.transpose(1, 2).reshape(B, T, C))


class Encoder(Decoder):
    """The same block, bidirectional."""

    def weights(self, scores):
        return F.softmax(scores, dim=-1)


class EncoderLogarithms(Decoder):
    def weights(self, scores):
        return F.log_softmax(scores, dim=-1)  # wrong: AS302 logarithms


class DecoderPlane(Decoder):
    def weights(self, scores):
        T = scores.shape[-1]
        keep = torch.ones(T, T, dtype=torch.bool, device=scores.device).tril()
        powers = torch.exp(scores).masked_fill(~keep, 0.0)
        return powers / powers.sum(dim=(-2, -1), keepdim=True)  # wrong: AS302 whole_plane


def wrong_logarithms(B, H, L, Dk):
    return EncoderLogarithms(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_logarithms(B, H, L, Dk):
    return Encoder(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_logarithms(module, x):
    return x + module.proj(multihead(*module.attn(module.ln(x)).chunk(3, dim=-1), module.n_head))


def wrong_whole_plane(B, H, L, Dk):
    return DecoderPlane(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_whole_plane(B, H, L, Dk):
    return Decoder(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_whole_plane(module, x):
    q, k, v = module.attn(module.ln(x)).chunk(3, dim=-1)
    return x + module.proj(multihead(q, k, v, module.n_head, keep=causal(x.shape[1], x.shape[1])))


def stable(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend in (B, L, H, Dk), the softmax written out."""
    logits = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    shifted = logits - logits.max(dim=-1, keepdim=True).values
    weights = torch.exp(shifted) / torch.exp(shifted).sum(dim=-1, keepdim=True)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def unstable(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend in (B, L, H, Dk), the softmax written out."""
    logits = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    shifted = logits - logits.max(dim=-1, keepdim=True).values
    weights = torch.exp(shifted) / torch.exp(logits).sum(dim=-1, keepdim=True)  # wrong: AS302 peak_taken_once
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def _heads_third(B, H, Lq, Lk, Dk):
    return torch.randn(B, Lq, H, Dk), torch.randn(B, Lk, H, Dk), torch.randn(B, Lk, H, Dk)


def wrong_peak_taken_once(B, H, Lq, Lk, Dk):
    return unstable, _heads_third(B, H, Lq, Lk, Dk), {}


def right_peak_taken_once(B, H, Lq, Lk, Dk):
    return stable, _heads_third(B, H, Lq, Lk, Dk), {}


def reference_peak_taken_once(function, q, k, v):
    return attention(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)


def best_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend to the three keys with the largest scores, in (B, H, L, Dk)."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    least = scores.topk(3, dim=-1).values[..., -1:]
    return scores.masked_fill(scores < least, float("-inf")).softmax(-1) @ v


def best_keys_of_all(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend to the three keys with the largest scores, in (B, H, L, Dk)."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    least = scores.topk(3, dim=-1).values[..., -1:]
    weights = scores.softmax(-1).masked_fill(scores < least, 0)  # wrong: AS302 best_keys_of_all
    return weights @ v


def wrong_best_keys_of_all(B, H, Lq, Lk, Dk):
    return best_keys_of_all, _heads(B, H, Lq, Lk, Dk), {}


def right_best_keys_of_all(B, H, Lq, Lk, Dk):
    return best_keys, _heads(B, H, Lq, Lk, Dk), {}


def reference_best_keys_of_all(function, q, k, v):
    scores = q @ k.mT
    return attention(q, k, v, keep=scores >= scores.sort(dim=-1, descending=True).values[..., 2:3])


def best_weights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Keep the two largest weights of each row, in (B, L, H, Dk)."""
    weights = F.softmax(torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5, dim=3)
    kept = weights * (weights >= weights.topk(2, dim=3).values.amin(3, keepdim=True))
    return torch.einsum("bhqk,bkhd->bqhd", kept / kept.sum(3, keepdim=True), v)


def best_weights_as_they_are(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Keep the two largest weights of each row, in (B, L, H, Dk)."""
    weights = F.softmax(torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5, dim=3)
    kept = weights * (weights >= weights.topk(2, dim=3).values.amin(3, keepdim=True))  # wrong: AS302 best_weights
    return torch.einsum("bhqk,bkhd->bqhd", kept, v)


def wrong_best_weights(B, H, Lq, Lk, Dk):
    return best_weights_as_they_are, _heads_third(B, H, Lq, Lk, Dk), {}


def right_best_weights(B, H, Lq, Lk, Dk):
    return best_weights, _heads_third(B, H, Lq, Lk, Dk), {}


def reference_best_weights(function, q, k, v):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    scores = q @ k.mT
    return attention(q, k, v, keep=scores >= scores.sort(dim=-1, descending=True).values[..., 1:2]).transpose(1, 2)


class ChannelsFirstEfficient(nn.Module):
    """Queries are distributions over features, features of keys distributions over tokens; all (B, H, Dk, L)."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Conv1d(heads * depth, 3 * heads * depth, 1, bias=False)

    def distributions(self, q, k):
        return q.softmax(dim=2), k.softmax(dim=3)

    def forward(self, x):
        q, k, v = self.to_qkv(x).unflatten(1, (3, self.heads, -1)).unbind(1)
        q, k = self.distributions(q, k)
        return torch.einsum("bhdl,bhde->bhel", q, torch.einsum("bhdm,bhem->bhde", k, v)).flatten(1, 2)


class LastAxesExchanged(ChannelsFirstEfficient):
    def distributions(self, q, k):
        return q.softmax(dim=3), k.softmax(dim=2)  # wrong: AS302 softmaxes_of_the_other_axes


def _channels_first(cls, B, H, L, Dk):
    return cls(H, Dk), (torch.randn(B, H * Dk, L),), {}


def wrong_softmaxes_of_the_other_axes(B, H, L, Dk):
    return _channels_first(LastAxesExchanged, B, H, L, Dk)


def right_softmaxes_of_the_other_axes(B, H, L, Dk):
    return _channels_first(ChannelsFirstEfficient, B, H, L, Dk)


def reference_softmaxes_of_the_other_axes(module, x):
    rows = x.mT @ module.to_qkv.weight[..., 0].T
    q, k, v = (split(t, module.heads) for t in rows.chunk(3, dim=-1))
    weights = softmax(q) @ softmax(k.mT)
    return join(weights @ v).mT


def kernel_attention(q, k, v):
    """Causal attention with positive features, all (B, L, H, Dk): running sums of keys and of keys times values."""
    q, k = q.exp(), k.exp()
    total = (q * k.cumsum(1)).sum(-1)
    state = torch.einsum("blhd,blhe->blhde", k, v).cumsum(1)
    return torch.einsum("blhd,blhde->blhe", q, state) / total[..., None]


def kernel_attention_of_sums(q, k, v):
    """Causal attention with positive features, all (B, L, H, Dk): running sums of keys and of keys times values."""
    q, k = q.exp(), k.exp()
    total = q.sum(-1) * k.sum(-1).cumsum(1)  # wrong: AS302 denominator_of_sums
    state = torch.einsum("blhd,blhe->blhde", k, v).cumsum(1)
    return torch.einsum("blhd,blhde->blhe", q, state) / total[..., None]


def _causal_heads_third(function, B, H, L, Dk):
    return function, tuple(torch.randn(B, L, H, Dk) for _ in range(3)), {}, ["causal"]


def wrong_denominator_of_sums(B, H, L, Dk):
    return _causal_heads_third(kernel_attention_of_sums, B, H, L, Dk)


def right_denominator_of_sums(B, H, L, Dk):
    return _causal_heads_third(kernel_attention, B, H, L, Dk)


def _kernel_reference(q, k, v, keep=None):
    """Attend with the exponentials of queries and keys as features, (B, H, L, Dk)."""
    weights = q.exp() @ k.exp().mT
    weights = weights if keep is None else weights * keep
    return weights / weights.sum(-1, keepdim=True) @ v


def reference_denominator_of_sums(function, q, k, v):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return _kernel_reference(q, k, v, causal(q.shape[2], q.shape[2])).transpose(1, 2)


class LinearKernel(nn.Module):
    """Reads the sum of keys times values, without ever forming scores."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(heads * depth, heads * depth) for _ in range(3))

    def total(self, q, k):
        return q @ k.sum(dim=-2).unsqueeze(-1)

    def forward(self, x):
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        q, k = q.exp(), k.exp()
        return (q @ (k.mT @ v) / self.total(q, k)).transpose(1, 2).flatten(2)


class LinearKernelOfOwnKeys(LinearKernel):
    def total(self, q, k):
        return (q * k).sum(dim=-1, keepdim=True)  # wrong: AS302 denominator_of_own_keys


def wrong_denominator_of_own_keys(B, H, L, Dk):
    return LinearKernelOfOwnKeys(H, Dk), (torch.randn(B, L, H * Dk),), {}


def right_denominator_of_own_keys(B, H, L, Dk):
    return LinearKernel(H, Dk), (torch.randn(B, L, H * Dk),), {}


def reference_denominator_of_own_keys(module, x):
    return join(
        _kernel_reference(*(split(layer(x), module.heads) for layer in (module.query, module.key, module.value)))
    )


def recurrent(q, k, v):
    """One token after the other, (B, H, L, Dk); the state holds the sum of the keys times the values so far."""
    q, k = torch.exp(q), torch.exp(k)
    state, read = 0, []
    for t in range(q.shape[2]):
        state = state + torch.matmul(k[:, :, t, :, None], v[:, :, t, None, :])
        read.append(torch.matmul(q[:, :, t, None, :], state))
    total = torch.einsum("bhld,bhld->bhl", q, k.cumsum(dim=2))
    return torch.cat(read, dim=2) / total.unsqueeze(-1)


def recurrent_with_each_key(q, k, v):
    """One token after the other, (B, H, L, Dk); the state holds the sum of the keys times the values so far."""
    q, k = torch.exp(q), torch.exp(k)
    state, read = 0, []
    for t in range(q.shape[2]):
        state = state + torch.matmul(k[:, :, t, :, None], v[:, :, t, None, :])
        read.append(torch.matmul(q[:, :, t, None, :], state))
    total = torch.einsum("bhld,bhld->bhl", q, k)  # wrong: AS302 recurrent_denominator
    return torch.cat(read, dim=2) / total.unsqueeze(-1)


def _causal_heads_second(function, B, H, L, Dk):
    return function, tuple(torch.randn(B, H, L, Dk) for _ in range(3)), {}, ["causal"]


def wrong_recurrent_denominator(B, H, L, Dk):
    return _causal_heads_second(recurrent_with_each_key, B, H, L, Dk)


def right_recurrent_denominator(B, H, L, Dk):
    return _causal_heads_second(recurrent, B, H, L, Dk)


def reference_recurrent_denominator(function, q, k, v):
    return _kernel_reference(q, k, v, causal(q.shape[2], q.shape[2]))
