"""AS808: parameters that are multiplied all start at zero; and right code where one of them alone does."""

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
IMAGES = (
    {"B": 5, "H": 7, "rows": 3, "columns": 4, "Dk": 6},
    {"B": 7, "H": 3, "rows": 5, "columns": 2, "Dk": 8},
    {"B": 3, "H": 5, "rows": 2, "columns": 7, "Dk": 4},
)
PAIRS = [
    ("AS808", "gate_and_output_at_zero", *CROSS),
    ("AS808", "modulation_and_output_at_zero", *SIZES),
    ("AS808", "vectors_of_update_at_zero", *SIZES),
    ("AS808", "layers_of_bottleneck_at_zero", *SIZES),
    ("AS808", "matrices_of_bottleneck_at_zero", *SIZES),
    ("AS808", "tables_of_axes_at_zero", *IMAGES),
    ("AS808", "strengths_and_table_at_zero", *SIZES),
    ("AS808", "first_factor_detached", *SIZES),
    ("AS808", "factor_of_bias_as_data", *SIZES),
    ("AS808", "zero_gate_of_data", *SIZES),
    ("AS808", "context_detached_before_zero_output", *SIZES),
]


class GatedCross(nn.Module):
    """Attention to images, of which a language model starts to read nothing."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)
        self.gate = nn.Parameter(torch.zeros(1))  # wrong: AS808 gate_and_output_at_zero
        init.zeros_(self.to_out.weight)

    def strength(self):
        return 2 * self.gate.sigmoid()

    def forward(self, x, media):
        k, v = self.to_kv(media).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.to_q(self.norm(x)), k, v))
        context = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.strength() * self.to_out(context)


class TanhGatedCross(GatedCross):
    def strength(self):
        return self.gate.tanh()


def _gated_cross(kind, B, H, Lq, Lk, Dk):
    return kind(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def wrong_gate_and_output_at_zero(B, H, Lq, Lk, Dk):
    return _gated_cross(TanhGatedCross, B, H, Lq, Lk, Dk)


def right_gate_and_output_at_zero(B, H, Lq, Lk, Dk):
    return _gated_cross(GatedCross, B, H, Lq, Lk, Dk)


def reference_gate_and_output_at_zero(module, x, media):
    normed = _normed(x) * module.norm.weight + module.norm.bias
    kv = project(media, module.to_kv).unflatten(-1, (2, module.heads, -1)).permute(2, 0, 3, 1, 4)
    context = attend(heads(normed, module.to_q, module.heads), *kv)
    return x + merge(context, module.to_out) * (2 / (1 + torch.exp(-module.gate)))


def _normed(x):
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()


class Modulated(nn.Module):
    """A block whose norm is shifted and scaled, and whose result is gated, by a condition."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.modulation = nn.Parameter(torch.zeros(width, 3 * width))  # wrong: AS808 modulation_and_output_at_zero
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        init.constant_(self.proj.weight, 0.0)

    def gated(self, branch, gate):
        return branch * (1 + gate)

    def attention(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.n_heads, C // self.n_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = (q @ k.transpose(-2, -1) * (C // self.n_heads) ** -0.5).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))

    def forward(self, x, condition):
        shift, scale, gate = (F.silu(condition) @ self.modulation).unsqueeze(1).chunk(3, dim=-1)
        return x + self.gated(self.attention(F.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift), gate)


class GatedFromZero(Modulated):
    def gated(self, branch, gate):
        return branch * gate


def _modulated(kind, B, H, L, Dk):
    return kind(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(B, H * Dk)), {}


def wrong_modulation_and_output_at_zero(B, H, L, Dk):
    return _modulated(GatedFromZero, B, H, L, Dk)


def right_modulation_and_output_at_zero(B, H, L, Dk):
    return _modulated(Modulated, B, H, L, Dk)


def reference_modulation_and_output_at_zero(module, x, condition):
    modulation = torch.einsum("bi,io->bo", condition / (1 + torch.exp(-condition)), module.modulation)
    shift, scale, gate = (part[:, None] for part in modulation.tensor_split(3, dim=-1))
    context = attend(*fused(_normed(x) * (scale + 1) + shift, module.qkv, module.n_heads))
    return x + merge(context, module.proj) * (gate + 1)


class VectorUpdate(nn.Linear):
    """A frozen layer, and an update by two random projections that are frozen too: only their scales are trained."""

    def __init__(self, in_features, out_features, rank=3):
        super().__init__(in_features, out_features, bias=False)
        self.weight.requires_grad_(False)
        self.register_buffer("down", torch.randn(rank, in_features) / in_features**0.5)
        self.register_buffer("up", torch.randn(out_features, rank) / rank**0.5)
        self.inner = nn.Parameter(torch.zeros(rank))  # wrong: AS808 vectors_of_update_at_zero
        self.outer = nn.Parameter(torch.zeros(out_features))

    def between(self, x):
        return F.linear(x, self.down) * (1 + self.inner)

    def forward(self, x):
        return super().forward(x) + F.linear(self.between(x), self.up) * self.outer


class VectorUpdateFromZero(VectorUpdate):
    def between(self, x):
        return F.linear(x, self.down) * self.inner


class Updated(nn.Module):
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


def _updated(kind, B, H, L, Dk):
    return Updated(kind, H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_vectors_of_update_at_zero(B, H, L, Dk):
    return _updated(VectorUpdateFromZero, B, H, L, Dk)


def right_vectors_of_update_at_zero(B, H, L, Dk):
    return _updated(VectorUpdate, B, H, L, Dk)


def _of_updated(module, x, weight):
    keep, value = visible(x.shape[1], x.shape[1]), x @ weight.T
    q, k = (heads(x, one, module.n_heads) for one in (module.q_proj, module.k_proj))
    return merge(attend(q, k, torch.stack(value.tensor_split(module.n_heads, -1), 1), keep), module.o_proj)


def reference_vectors_of_update_at_zero(module, x):
    layer = module.v_proj
    change = torch.einsum("o,or,r,ri->oi", layer.outer, layer.up, layer.inner + 1, layer.down)
    return _of_updated(module, x, layer.weight + change)


class Bottleneck(nn.Module):
    """Attention, and a bottleneck after it that starts without effect."""

    def __init__(self, width, n_heads, between=3):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.down, self.up = nn.Linear(width, between, bias=False), nn.Linear(between, width, bias=False)
        for layer in (self.down, self.up):
            init.zeros_(layer.weight)

    def activated(self, x):
        return x.sigmoid()

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        context = (torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])).softmax(-1) @ v
        out = self.out(context.transpose(1, 2).flatten(2))
        return out + self.up(self.activated(self.down(out)))  # wrong: AS808 layers_of_bottleneck_at_zero


class BottleneckThroughZero(Bottleneck):
    def activated(self, x):
        return F.gelu(x)


def _bottleneck(kind, B, H, L, Dk):
    return kind(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_layers_of_bottleneck_at_zero(B, H, L, Dk):
    return _bottleneck(BottleneckThroughZero, B, H, L, Dk)


def right_layers_of_bottleneck_at_zero(B, H, L, Dk):
    return _bottleneck(Bottleneck, B, H, L, Dk)


def reference_layers_of_bottleneck_at_zero(module, x):
    out = merge(attend(*fused(x, module.qkv, module.n_heads)), module.out)
    return out + project(1 / (1 + torch.exp(-project(out, module.down))), module.up)


class Matrix(nn.Module):
    """Multiplies by a matrix that starts at zero."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.matrix = nn.Parameter(torch.zeros(inputs, outputs))  # wrong: AS808 matrices_of_bottleneck_at_zero

    def forward(self, x):
        return torch.einsum("...i,io->...o", x, self.matrix)


class ParallelAdapter(nn.Module):
    """Beside the projection of the values, a bottleneck of two matrices; its features are added to the first inputs."""

    def __init__(self, width, n_heads, between=3):
        super().__init__()
        self.n_heads, self.between = n_heads, between
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.narrow, self.wide = Matrix(width, between), Matrix(between, width)

    def inner(self, x):
        return x[..., : self.between] + self.narrow(x)

    def forward(self, x):
        v = self.value(x) + self.wide(self.inner(x))
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)) for t in (self.query(x), self.key(x), v))
        weights = torch.einsum("bihd,bjhd->bhij", q, k).mul(q.shape[-1] ** -0.5).softmax(dim=-1)
        return torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)


class PlainParallelAdapter(ParallelAdapter):
    def inner(self, x):
        return self.narrow(x)


def wrong_matrices_of_bottleneck_at_zero(B, H, L, Dk):
    return _bottleneck(PlainParallelAdapter, B, H, L, Dk)


def right_matrices_of_bottleneck_at_zero(B, H, L, Dk):
    return _bottleneck(ParallelAdapter, B, H, L, Dk)


def reference_matrices_of_bottleneck_at_zero(module, x):
    q, k, v = (heads(x, one, module.n_heads) for one in (module.query, module.key, module.value))
    eye = torch.eye(x.shape[-1], module.between, dtype=x.dtype)
    more = x @ ((eye + module.narrow.matrix) @ module.wide.matrix)
    return merge(attend(q, k, v + torch.stack(more.tensor_split(module.n_heads, -1), 1)))


class Image(nn.Module):
    """Tokens of an image, row by row, with a learned bias of the distances along rows and columns."""

    def __init__(self, n_heads, rows, columns, width):
        super().__init__()
        self.n_heads, self.rows, self.columns = n_heads, rows, columns
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.by_row = nn.Parameter(torch.zeros(n_heads, 2 * rows - 1))  # wrong: AS808 tables_of_axes_at_zero
        self.by_column = nn.Parameter(torch.zeros(n_heads, 2 * columns - 1))

    def combined(self, of_rows, of_columns):
        return of_rows + of_columns

    def bias(self):
        place = torch.arange(self.rows * self.columns)
        row, column = place // self.columns, place % self.columns
        of_rows = self.by_row[:, row[:, None] - row + self.rows - 1]
        return self.combined(of_rows, self.by_column[:, column[:, None] - column + self.columns - 1])

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias())
        return self.proj(context.transpose(1, 2).flatten(2))


class ImageOfProducts(Image):
    def combined(self, of_rows, of_columns):
        return of_rows * of_columns


def _image(kind, B, H, rows, columns, Dk):
    return kind(H, rows, columns, H * Dk), (torch.randn(B, rows * columns, H * Dk),), {}


def wrong_tables_of_axes_at_zero(B, H, rows, columns, Dk):
    return _image(ImageOfProducts, B, H, rows, columns, Dk)


def right_tables_of_axes_at_zero(B, H, rows, columns, Dk):
    return _image(Image, B, H, rows, columns, Dk)


def reference_tables_of_axes_at_zero(module, x):
    places = [(row, column) for row in range(module.rows) for column in range(module.columns)]
    bias = torch.stack(
        [
            module.by_row[:, row - other + module.rows - 1] + module.by_column[:, column - further + module.columns - 1]
            for row, column in places
            for other, further in places
        ],
        dim=-1,
    )
    return merge(attend(*fused(x, module.qkv, module.n_heads), bias=bias.unflatten(-1, [len(places)] * 2)), module.proj)


class Distances(nn.Module):
    """A table of distances that all heads share, and how strong it is for each of them."""

    def __init__(self, n_heads, length):
        super().__init__()
        self.strengths = nn.Parameter(torch.zeros(n_heads))  # wrong: AS808 strengths_and_table_at_zero
        self.table = nn.Parameter(torch.zeros(2 * length - 1))

    def factors(self):
        return self.strengths.exp()

    def forward(self, n):
        place = torch.arange(n)
        middle = len(self.table) // 2
        return torch.einsum("h,ij->hij", self.factors(), self.table[place - place[:, None] + middle])


class DistancesFromZero(Distances):
    def factors(self):
        return self.strengths


class Biased(nn.Module):
    def __init__(self, bias, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.bias = bias
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)

    def forward(self, x):
        q = self.q(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2).chunk(2, dim=-1)
        scores = torch.matmul(q, k.mT) / q.shape[-1] ** 0.5
        weights = torch.softmax(scores + self.bias(x.shape[1]), dim=-1)
        return x + torch.matmul(weights, v).transpose(1, 2).flatten(2)


def _biased(kind, B, H, L, Dk):
    return Biased(kind(H, L), H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_strengths_and_table_at_zero(B, H, L, Dk):
    return _biased(DistancesFromZero, B, H, L, Dk)


def right_strengths_and_table_at_zero(B, H, L, Dk):
    return _biased(Distances, B, H, L, Dk)


def _of_biased(module, x, bias):
    q = heads(x, module.q, module.n_heads)
    k, v = project(x, module.kv).unflatten(-1, (module.n_heads, 2, -1)).permute(3, 0, 2, 1, 4)
    return x + merge(attend(q, k, v, bias=bias))


def reference_strengths_and_table_at_zero(module, x):
    L, table = x.shape[1], module.bias.table
    distances = torch.stack([torch.stack([table[j - i + L - 1] for j in range(L)]) for i in range(L)])
    return _of_biased(module, x, torch.exp(module.bias.strengths)[:, None, None] * distances)


class LowRank(nn.Linear):
    """A frozen layer, and the product of two matrices, of which the second one starts at zero."""

    def __init__(self, in_features, out_features, rank=3, alpha=6):
        super().__init__(in_features, out_features, bias=False)
        self.weight.requires_grad_(False)
        self.scaling = alpha / rank
        self.lora_A = nn.Parameter(torch.empty(rank, in_features))
        self.lora_B = nn.Parameter(torch.zeros(out_features, rank))
        init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def lowered(self, x):
        return x @ self.lora_A.transpose(0, 1)

    def forward(self, x):
        return F.linear(x, self.weight) + self.lowered(x) @ self.lora_B.transpose(0, 1) * self.scaling


class LowRankDetached(LowRank):
    def lowered(self, x):
        return x @ self.lora_A.detach().transpose(0, 1)  # wrong: AS808 first_factor_detached


def wrong_first_factor_detached(B, H, L, Dk):
    return _updated(LowRankDetached, B, H, L, Dk)


def right_first_factor_detached(B, H, L, Dk):
    return _updated(LowRank, B, H, L, Dk)


def reference_first_factor_detached(module, x):
    layer = module.v_proj
    change = torch.einsum("or,ri->oi", layer.lora_B, layer.lora_A) * layer.scaling
    return _of_updated(module, x, layer.weight + change)


class Factors(nn.Module):
    """A bias of low rank between places: the product of random factors and of others that start at zero."""

    def __init__(self, n_heads, length, rank=2):
        super().__init__()
        self.u = nn.Parameter(torch.zeros(n_heads, length, rank))
        self.v = nn.Parameter(torch.randn(n_heads, rank, length) / rank**0.5)

    def merged(self):
        return self.u @ self.v

    def forward(self, n):
        return self.merged()[:, :n, :n]


class FactorsOfData(Factors):
    def merged(self):
        return self.u @ self.v.data  # wrong: AS808 factor_of_bias_as_data


def wrong_factor_of_bias_as_data(B, H, L, Dk):
    return _biased(FactorsOfData, B, H, L, Dk)


def right_factor_of_bias_as_data(B, H, L, Dk):
    return _biased(Factors, B, H, L, Dk)


def reference_factor_of_bias_as_data(module, x):
    return _of_biased(module, x, torch.einsum("hir,hrj->hij", module.bias.u, module.bias.v))


class Layer(nn.Module):
    """A layer without norms; what it adds to the stream starts at zero."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.weight_of_attention = nn.Parameter(torch.zeros(()))
        self.weight_of_features = nn.Parameter(torch.zeros(()))
        for one in (self.qkv, self.out, self.inner, self.outer):
            init.zeros_(one.bias)

    def gates(self):
        return self.weight_of_attention, self.weight_of_features

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        context = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        one, two = self.gates()
        x = x + one * self.out(context)
        return x + two * self.outer(F.relu(self.inner(x)))


class LayerOfData(Layer):
    def gates(self):
        return self.weight_of_attention.data, self.weight_of_features  # wrong: AS808 zero_gate_of_data


def _layer(kind, B, H, L, Dk):
    return kind(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_zero_gate_of_data(B, H, L, Dk):
    return _layer(LayerOfData, B, H, L, Dk)


def right_zero_gate_of_data(B, H, L, Dk):
    return _layer(Layer, B, H, L, Dk)


def reference_zero_gate_of_data(module, x):
    x = x + module.weight_of_attention * merge(attend(*fused(x, module.qkv, module.n_heads)), module.out)
    inner = project(x, module.inner)
    return x + module.weight_of_features * project(torch.where(inner > 0, inner, 0.0), module.outer)


class ZeroOutput(nn.Module):
    """All biases and the last projection start at zero, also the positions that are added in front."""

    def __init__(self, n_heads, length, width):
        super().__init__()
        self.n_heads = n_heads
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        for layer in (self.query, self.key, self.value, self.output):
            init.zeros_(layer.bias)
        init.zeros_(self.output.weight)

    def project(self, context):
        return self.output(context)

    def forward(self, x):
        x = x + self.positions
        h = self.norm(x)
        q, k, v = (
            layer(h).view(*x.shape[:2], self.n_heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        weights = F.softmax(q @ k.transpose(2, 3) / math.sqrt(q.shape[-1]), dim=-1)
        return x + self.project((weights @ v).transpose(1, 2).flatten(2))


class ZeroOutputDetached(ZeroOutput):
    def project(self, context):
        return self.output(context.detach())  # wrong: AS808 context_detached_before_zero_output


def _zero_output(kind, B, H, L, Dk):
    return kind(H, L, H * Dk), (torch.randn(B, L, H * Dk),), {}


def wrong_context_detached_before_zero_output(B, H, L, Dk):
    return _zero_output(ZeroOutputDetached, B, H, L, Dk)


def right_context_detached_before_zero_output(B, H, L, Dk):
    return _zero_output(ZeroOutput, B, H, L, Dk)


def reference_context_detached_before_zero_output(module, x):
    x = x + module.positions
    h = _normed(x) * module.norm.weight + module.norm.bias
    q, k, v = (heads(h, one, module.n_heads) for one in (module.query, module.key, module.value))
    return x + merge(attend(q, k, v), module.output)
