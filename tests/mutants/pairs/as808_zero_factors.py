"""AS808: both factors of a product start at zero, so that neither ever gets a gradient."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn import init

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, project, visible

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
CROSS = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 11, "Lk": 7, "Dk": 8},
    {"B": 6, "H": 7, "Lq": 5, "Lk": 8, "Dk": 4},
)
PAIRS = [
    ("AS808", "both_factors_of_lora_at_zero", *SIZES),
    ("AS808", "both_layers_of_lora_zeroed", *SIZES),
    ("AS808", "zero_gate_before_zero_output", *CROSS),
    ("AS808", "both_factors_of_bias_at_zero", *SIZES),
]


class LoRALinear(nn.Linear):
    """A frozen layer, and the product of two matrices, of which the second one starts at zero."""

    def __init__(self, in_features, out_features, rank=3, alpha=6):
        super().__init__(in_features, out_features, bias=False)
        self.weight.requires_grad_(False)
        self.scaling = alpha / rank
        self.lora_A = nn.Parameter(torch.empty(rank, in_features))
        self.lora_B = nn.Parameter(torch.zeros(out_features, rank))
        init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        return F.linear(x, self.weight) + x @ self.lora_A.T @ self.lora_B.T * self.scaling


class ZeroLoRALinear(LoRALinear):
    def __init__(self, in_features, out_features, rank=3, alpha=6):
        super().__init__(in_features, out_features, rank, alpha)
        self.lora_A = nn.Parameter(torch.zeros(rank, in_features))  # wrong: AS808 both_factors_of_lora_at_zero
        self.lora_B = nn.Parameter(torch.zeros(out_features, rank))


class Adapted(nn.Module):
    def __init__(self, kind, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q_proj, self.k_proj, self.o_proj = (nn.Linear(width, width) for _ in range(3))
        self.v_proj = kind(width, width)

    def forward(self, x):
        q, k, v = (
            linear(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for linear in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


def _adapted(kind, B, H, L, Dk):
    return Adapted(kind, H * Dk, H), (_tokens(B, L, H * Dk),), {}, ["causal"]


def _tokens(*shape):
    """The same whatever has been drawn before."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(torch.initial_seed()))


def wrong_both_factors_of_lora_at_zero(B, H, L, Dk):
    return _adapted(ZeroLoRALinear, B, H, L, Dk)


def right_both_factors_of_lora_at_zero(B, H, L, Dk):
    return _adapted(LoRALinear, B, H, L, Dk)


def reference_both_factors_of_lora_at_zero(module, x):
    layer, keep = module.v_proj, visible(x.shape[1], x.shape[1])
    value = x @ (layer.weight + torch.einsum("or,ri->oi", layer.lora_B, layer.lora_A) * layer.scaling).T
    q, k = (heads(x, one, module.n_heads) for one in (module.q_proj, module.k_proj))
    return merge(attend(q, k, torch.stack(value.tensor_split(module.n_heads, -1), 1), keep), module.o_proj)


class LoRA(nn.Module):
    """Updates of queries and values, by two layers each."""

    def __init__(self, width, n_heads, rank=3):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.q_down, self.q_up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)
        self.v_down, self.v_up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)
        for layer in self.zeroed():
            init.zeros_(layer.weight)

    def zeroed(self):
        return self.q_up, self.v_up

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, v = q + self.q_up(self.q_down(x)), v + self.v_up(self.v_down(x))  # wrong: AS808 both_layers_of_lora_zeroed
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in (q, k, v))
        context = (torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])).softmax(-1) @ v
        return self.out(context.transpose(1, 2).flatten(2))


class ZeroedLoRA(LoRA):
    def zeroed(self):
        return self.q_down, self.q_up, self.v_down, self.v_up


def _lora(kind, B, H, L, Dk):
    return kind(H * Dk, H), (_tokens(B, L, H * Dk),), {}


def wrong_both_layers_of_lora_zeroed(B, H, L, Dk):
    return _lora(ZeroedLoRA, B, H, L, Dk)


def right_both_layers_of_lora_zeroed(B, H, L, Dk):
    return _lora(LoRA, B, H, L, Dk)


def reference_both_layers_of_lora_zeroed(module, x):
    q, k, v = fused(x, module.qkv, module.n_heads)
    more_q = torch.einsum("bli,ri,or->blo", x, module.q_down.weight, module.q_up.weight)
    more_v = torch.einsum("bli,ri,or->blo", x, module.v_down.weight, module.v_up.weight)
    more_q, more_v = (torch.stack(one.tensor_split(module.n_heads, -1), 1) for one in (more_q, more_v))
    return merge(attend(q + more_q, k, v + more_v), module.out)


class Gated(nn.Module):
    """Attention to images, behind a gate that starts at zero."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)
        self.gate = nn.Parameter(torch.zeros(1))  # wrong: AS808 zero_gate_before_zero_output

    def forward(self, x, media):
        k, v = self.to_kv(media).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.to_q(x), k, v))
        context = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.gate.tanh() * self.to_out(context)


class GatedZeroOutput(Gated):
    def __init__(self, dim, heads):
        super().__init__(dim, heads)
        init.zeros_(self.to_out.weight)


def _gated(kind, B, H, Lq, Lk, Dk):
    return kind(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def wrong_zero_gate_before_zero_output(B, H, Lq, Lk, Dk):
    return _gated(GatedZeroOutput, B, H, Lq, Lk, Dk)


def right_zero_gate_before_zero_output(B, H, Lq, Lk, Dk):
    return _gated(Gated, B, H, Lq, Lk, Dk)


def reference_zero_gate_before_zero_output(module, x, media):
    kv = project(media, module.to_kv).unflatten(-1, (2, module.heads, -1)).permute(2, 0, 3, 1, 4)
    return x + merge(attend(heads(x, module.to_q, module.heads), *kv), module.to_out) * torch.tanh(module.gate)


class Bias(nn.Module):
    """A bias of low rank between places."""

    def __init__(self, n_heads, length, rank=2):
        super().__init__()
        self.u = nn.Parameter(torch.zeros(n_heads, length, rank))
        self.v = nn.Parameter(torch.randn(n_heads, rank, length) / rank**0.5)

    def forward(self, n):
        return self.u[:, :n] @ self.v[..., :n]


class ZeroBias(Bias):
    def __init__(self, n_heads, length, rank=2):
        super().__init__(n_heads, length, rank)
        self.u = nn.Parameter(torch.zeros(n_heads, length, rank))  # wrong: AS808 both_factors_of_bias_at_zero
        self.v = nn.Parameter(torch.zeros(n_heads, rank, length))


class Biased(nn.Module):
    def __init__(self, kind, n_heads, length, width):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.bias = kind(n_heads, length)

    def forward(self, x):
        q = self.q(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2).chunk(2, dim=-1)
        scores = torch.matmul(q, k.mT) / q.shape[-1] ** 0.5
        weights = torch.softmax(scores + self.bias(x.shape[1]), dim=-1)
        return x + torch.matmul(weights, v).transpose(1, 2).flatten(2)


def _biased(kind, B, H, L, Dk):
    return Biased(kind, H, L, H * Dk), (_tokens(B, L, H * Dk),), {}


def wrong_both_factors_of_bias_at_zero(B, H, L, Dk):
    return _biased(ZeroBias, B, H, L, Dk)


def right_both_factors_of_bias_at_zero(B, H, L, Dk):
    return _biased(Bias, B, H, L, Dk)


def reference_both_factors_of_bias_at_zero(module, x):
    q = heads(x, module.q, module.n_heads)
    k, v = project(x, module.kv).unflatten(-1, (module.n_heads, 2, -1)).permute(3, 0, 2, 1, 4)
    return x + merge(attend(q, k, v, bias=torch.einsum("hir,hrj->hij", module.bias.u, module.bias.v)))
