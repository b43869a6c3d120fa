"""AS808: a parameter, or what attention reads, changes the result and gets no gradient."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge, project

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
RECURRENT = (
    {"B": 4, "H": 5, "L": 7, "Lp": 9, "Dk": 6},
    {"B": 5, "H": 4, "L": 9, "Lp": 6, "Dk": 8},
    {"B": 6, "H": 7, "L": 5, "Lp": 8, "Dk": 4},
)
PAIRS = [
    ("AS808", "keys_detached", *SIZES),
    ("AS808", "bias_from_data", *SIZES),
    ("AS808", "values_without_grad", *SIZES),
    ("AS808", "slopes_as_integers", *SIZES),
    ("AS808", "weight_detached", *SIZES),
    ("AS808", "tokens_detached_with_memory", *RECURRENT),
    ("AS808", "norm_of_data", *SIZES),
    ("AS808", "norm_without_grad", *SIZES),
]


class Attention(nn.Module):
    def __init__(self, heads, length, width):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(heads * width, heads * width, bias=False) for _ in range(3))
        self.bias = nn.Parameter(torch.randn(heads, length, length))

    def split(self, x):
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def keys(self, x):
        return self.split(self.key(x))

    def table(self):
        return self.bias

    def values(self, x):
        return self.split(self.value(x))

    def forward(self, x):
        q, k = self.split(self.query(x)), self.keys(x)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)) + self.table()
        return (scores.softmax(-1) @ self.values(x)).transpose(1, 2).flatten(2)


class KeysDetached(Attention):
    def keys(self, x):
        return self.split(self.key(x).detach())  # wrong: AS808 keys_detached


class BiasFromData(Attention):
    def table(self):
        return self.bias.data  # wrong: AS808 bias_from_data


class ValuesWithoutGrad(Attention):
    @torch.no_grad()
    def values(self, x):
        return self.split(self.value(x))  # wrong: AS808 values_without_grad


class WeightDetached(Attention):
    def keys(self, x):
        weight = self.key.weight.detach()  # wrong: AS808 weight_detached
        return self.split(torch.einsum("bli,oi->blo", x, weight))


def _case(kind, H, B, L, Dk):
    return kind(H, L, Dk), (torch.randn(B, L, H * Dk),), {}


def wrong_keys_detached(B, H, L, Dk):
    return _case(KeysDetached, H, B, L, Dk)


def wrong_bias_from_data(B, H, L, Dk):
    return _case(BiasFromData, H, B, L, Dk)


def wrong_values_without_grad(B, H, L, Dk):
    return _case(ValuesWithoutGrad, H, B, L, Dk)


def wrong_weight_detached(B, H, L, Dk):
    return _case(WeightDetached, H, B, L, Dk)


def right_keys_detached(B, H, L, Dk):
    return _case(Attention, H, B, L, Dk)


right_bias_from_data = right_values_without_grad = right_weight_detached = right_keys_detached


def reference_keys_detached(module, x):
    q, k, v = (heads(x, linear, module.heads) for linear in (module.query, module.key, module.value))
    return merge(attend(q, k, v, bias=module.bias))


reference_bias_from_data = reference_values_without_grad = reference_weight_detached = reference_keys_detached


class Slopes(nn.Module):
    """Learned slopes, by which scores fall with the distance."""

    def __init__(self, heads):
        super().__init__()
        self.slopes = nn.Parameter(10 * torch.rand(heads) + 1.5)

    def steepness(self):
        return self.slopes

    def forward(self, q, k, v):
        places = torch.arange(q.size(-2), device=q.device)
        distance = (places[:, None] - places).abs()
        bias = -distance * self.steepness()[:, None, None] / len(places)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))


class IntegerSlopes(Slopes):
    def steepness(self):
        return self.slopes.long()  # wrong: AS808 slopes_as_integers


def wrong_slopes_as_integers(B, H, L, Dk):
    return IntegerSlopes(H), tuple(torch.randn(3, B, H, L, Dk)), {}


def right_slopes_as_integers(B, H, L, Dk):
    return Slopes(H), tuple(torch.randn(3, B, H, L, Dk)), {}


def reference_slopes_as_integers(module, q, k, v):
    L = q.shape[-2]
    distance = torch.tensor([[abs(i - j) for j in range(L)] for i in range(L)], dtype=q.dtype)
    return attend(q, k, v, bias=torch.einsum("h,ij->hij", -module.slopes / L, distance))


class Recurrent(nn.Module):
    """Attends to the tokens of the last segment, too, into which no gradient flows."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query, self.pairs, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def known(self, memory, x):
        return torch.cat((memory.detach(), x), dim=1)

    def forward(self, x, memory):
        known = self.norm(self.known(memory, x))
        q = self.query(known[:, memory.size(1) :])
        k, v = self.pairs(known).chunk(2, dim=-1)
        q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (q, k, v))
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class RecurrentWithoutGradient(Recurrent):
    def known(self, memory, x):
        return torch.cat((memory, x), dim=1).detach()  # wrong: AS808 tokens_detached_with_memory


def _recurrent(kind, B, H, L, Lp, Dk):
    return kind(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(B, Lp, H * Dk)), {}


def wrong_tokens_detached_with_memory(B, H, L, Lp, Dk):
    return _recurrent(RecurrentWithoutGradient, B, H, L, Lp, Dk)


def right_tokens_detached_with_memory(B, H, L, Lp, Dk):
    return _recurrent(Recurrent, B, H, L, Lp, Dk)


def reference_tokens_detached_with_memory(module, x, memory):
    known = F.layer_norm(torch.cat((memory, x), dim=1), x.shape[-1:], module.norm.weight, module.norm.bias)
    pairs = project(known, module.pairs).unflatten(-1, (2, module.heads, -1)).permute(2, 0, 3, 1, 4)
    return x + merge(attend(heads(known[:, memory.shape[1] :], module.query, module.heads), *pairs), module.out)


class PreNorm(nn.Module):
    """Normalises without parameters; features are (H, 3, Dk)."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)

    def normed(self, x):
        return F.layer_norm(x, x.shape[-1:])

    def forward(self, x):
        q, k, v = self.qkv(self.normed(x)).unflatten(-1, (self.heads, 3, -1)).unbind(3)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
        context = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(2)
        return torch.add(context, x)


class PreNormOfData(PreNorm):
    def normed(self, x):
        return F.layer_norm(x.data, x.shape[-1:])  # wrong: AS808 norm_of_data


class PreNormWithoutGrad(PreNorm):
    def normed(self, x):
        with torch.no_grad():
            return F.layer_norm(x, x.shape[-1:])  # wrong: AS808 norm_without_grad


def _pre_norm(kind, B, H, L, Dk):
    return kind(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_norm_of_data(B, H, L, Dk):
    return _pre_norm(PreNormOfData, B, H, L, Dk)


def wrong_norm_without_grad(B, H, L, Dk):
    return _pre_norm(PreNormWithoutGrad, B, H, L, Dk)


def right_norm_of_data(B, H, L, Dk):
    return _pre_norm(PreNorm, B, H, L, Dk)


right_norm_without_grad = right_norm_of_data


def reference_norm_of_data(module, x):
    normed = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    weight = module.qkv.weight.unflatten(0, (module.heads, 3, -1)).transpose(0, 1)
    return x + merge(attend(*torch.einsum("bli,chdi->cbhld", normed, weight)))


reference_norm_without_grad = reference_norm_of_data
