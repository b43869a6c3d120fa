"""AS302: the rows of the weights don't sum to one."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.plain import attention, causal, multihead

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3},
    {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6},
    {"B": 5, "H": 3, "Lq": 4, "Lk": 9, "Dk": 6},
)
PAIRS = [
    ("AS302", "running_softmax", *CROSS),
    ("AS302", "logarithms", *SIZES),
    ("AS302", "peak_taken_once", *CROSS),
    ("AS302", "whole_plane", *SIZES),
    ("AS302", "best_keys_of_all", *CROSS),
    ("AS302", "best_weights", *CROSS),
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
