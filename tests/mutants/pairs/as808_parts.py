"""AS808: some of the features of one projection change the result and get no gradient."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, merge, project

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS808", "norms_without_grad", *SIZES),
    ("AS808", "half_detached", *SIZES),
    ("AS808", "query_data_scaled", *SIZES),
]


class UnitNorm(nn.Module):
    """Normalises queries and keys without parameters."""

    def forward(self, *tensors):
        return [F.layer_norm(one, one.shape[-1:]) for one in tensors]


class UnitNormWithoutGrad(UnitNorm):
    @torch.no_grad()
    def forward(self, *tensors):
        return [F.layer_norm(one, one.shape[-1:]) for one in tensors]  # wrong: AS808 norms_without_grad


class Fused(nn.Module):
    """Features of the projection are (3, H, Dk)."""

    def __init__(self, width, heads, norm):
        super().__init__()
        self.heads = heads
        self.norm = norm
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = self.norm(q, k)
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def wrong_norms_without_grad(B, H, L, Dk):
    return Fused(H * Dk, H, UnitNormWithoutGrad()), (torch.randn(B, L, H * Dk),), {}


def right_norms_without_grad(B, H, L, Dk):
    return Fused(H * Dk, H, UnitNorm()), (torch.randn(B, L, H * Dk),), {}


def reference_norms_without_grad(module, x):
    q, k, v = project(x, module.qkv).unflatten(-1, (3, module.heads, -1)).permute(2, 0, 3, 1, 4)
    return x + merge(attend(_normed(q), _normed(k), v), module.out)


def _normed(x):
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()


class KeysAndValues(nn.Module):
    """One projection of keys and values, of features (H, 2, Dk); its bias is a parameter of its own."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.pairs = nn.Linear(width, 2 * width, bias=False)
        self.shift = nn.Parameter(torch.randn(2 * width // heads))

    def split(self, pairs):
        return pairs.chunk(2, dim=-1)

    def forward(self, x):
        B, L, D = x.shape
        q = self.query(x).view(B, L, self.heads, -1).transpose(1, 2)
        pairs = self.pairs(x).view(B, L, self.heads, -1).transpose(1, 2) + self.shift
        k, v = self.split(pairs)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, L, D)


class ValuesDetached(KeysAndValues):
    def split(self, pairs):
        k, v = pairs.chunk(2, dim=-1)
        return k, v.detach()  # wrong: AS808 half_detached


def wrong_half_detached(B, H, L, Dk):
    return ValuesDetached(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_half_detached(B, H, L, Dk):
    return KeysAndValues(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_half_detached(module, x):
    pairs = project(x, module.pairs).unflatten(-1, (module.heads, 2, -1)) + module.shift.unflatten(-1, (2, -1))
    k, v = pairs.permute(3, 0, 2, 1, 4)
    q = project(x, module.query).unflatten(-1, (module.heads, -1)).transpose(1, 2)
    return merge(attend(q, k, v))


class Matrix(nn.Module):
    """Multiplies by one matrix, whose columns are (H, 3, Dk)."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.matrix = nn.Parameter(torch.randn(width, 3 * width) / width**0.5)

    def scaled(self, q):
        return q * q.shape[-1] ** -0.5

    def forward(self, x):
        q, k, v = (x @ self.matrix).unflatten(-1, (self.heads, 3, -1)).unbind(3)
        weights = torch.einsum("bihd,bjhd->bhij", self.scaled(q), k).softmax(-1)
        return torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)


class MatrixOfData(Matrix):
    def scaled(self, q):
        return q.data * q.shape[-1] ** -0.5  # wrong: AS808 query_data_scaled


def wrong_query_data_scaled(B, H, L, Dk):
    return MatrixOfData(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_query_data_scaled(B, H, L, Dk):
    return Matrix(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_query_data_scaled(module, x):
    columns = module.matrix.unflatten(-1, (module.heads, 3, -1))
    return merge(attend(*torch.einsum("bli,ihcd->cbhld", x, columns)))
