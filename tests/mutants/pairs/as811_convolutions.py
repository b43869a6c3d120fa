"""AS811: convolutions, norms and embeddings in a plain container, which their module doesn't register."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
MAPS = (
    {"B": 3, "H": 2, "Dk": 7, "rows": 5, "columns": 4},
    {"B": 2, "H": 5, "Dk": 6, "rows": 3, "columns": 7},
    {"B": 4, "H": 3, "Dk": 5, "rows": 6, "columns": 8},
)
PAIRS = [
    ("AS811", "depthwise_by_name", *MAPS),
    ("AS811", "norms_beside_layers", *SIZES),
    ("AS811", "embeddings_of_columns", *SIZES),
    ("AS811", "kernels_of_several_widths", *SIZES),
]


class ConvAttention(nn.Module):
    """Queries, keys and values of a map come from depthwise convolutions, as in CvT."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        convolutions = {name: nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False) for name in "qkv"}
        self.local = self.kept(convolutions)  # wrong: AS811 depthwise_by_name
        self.proj = nn.Conv2d(width, width, 1)

    def kept(self, convolutions):
        return nn.ModuleDict(convolutions)

    def forward(self, x):
        q, k, v = (
            self.local[name](x).flatten(2).unflatten(1, (self.n_heads, -1)).transpose(2, 3) for name in ("q", "k", "v")
        )
        context = F.scaled_dot_product_attention(q, k, v).transpose(2, 3)
        return self.proj(context.reshape(x.shape))


class ForgetfulConvAttention(ConvAttention):
    def kept(self, convolutions):
        return convolutions


def _map(cls, B, H, Dk, rows, columns):
    return cls(H * Dk, H), (torch.randn(B, H * Dk, rows, columns),), {}


def wrong_depthwise_by_name(B, H, Dk, rows, columns):
    return _map(ForgetfulConvAttention, B, H, Dk, rows, columns)


def right_depthwise_by_name(B, H, Dk, rows, columns):
    return _map(ConvAttention, B, H, Dk, rows, columns)


def reference_depthwise_by_name(module, x):
    near = F.pad(x, (1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1)
    q, k, v = (torch.einsum("bcxyij,cij->bcxy", near, module.local[name].weight[:, 0]) for name in "qkv")
    q, k, v = (one.flatten(2).mT.unflatten(-1, (module.n_heads, -1)).transpose(1, 2) for one in (q, k, v))
    out = merge(attend(q, k, v)) @ module.proj.weight[..., 0, 0].T + module.proj.bias
    return out.mT.unflatten(-1, x.shape[2:])


class Encoder(nn.Module):
    """Each layer has a norm before its attention."""

    depth = 3

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(self.depth))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(self.depth))
        self.norms = self.kept(nn.LayerNorm(width) for _ in range(self.depth))  # wrong: AS811 norms_beside_layers

    def kept(self, norms):
        return nn.ModuleList(norms)

    def forward(self, x):
        for norm, qkv, out in zip(self.norms, self.qkv, self.out, strict=True):
            q, k, v = qkv(norm(x)).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
            weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)
            x = x + out((weights @ v).transpose(1, 2).flatten(2))
        return x


class ForgetfulEncoder(Encoder):
    def kept(self, norms):
        return list(norms)


def _tokens(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_norms_beside_layers(B, H, L, Dk):
    return _tokens(ForgetfulEncoder, B, H, L, Dk)


def right_norms_beside_layers(B, H, L, Dk):
    return _tokens(Encoder, B, H, L, Dk)


def reference_norms_beside_layers(module, x):
    for norm, qkv, out in zip(module.norms, module.qkv, module.out, strict=True):
        centred = x - x.mean(-1, keepdim=True)
        unit = centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
        x = x + merge(attend(*fused(unit * norm.weight + norm.bias, qkv, module.n_heads)), out)
    return x


class Tabular(nn.Module):
    """Each column of a table has an embedding of its own, and the columns of a row attend to each other."""

    def __init__(self, width, n_heads, cardinalities):
        super().__init__()
        embeddings = [nn.Embedding(number, width) for number in cardinalities]
        self.columns = self.kept(embeddings)  # wrong: AS811 embeddings_of_columns
        self.attention = nn.MultiheadAttention(width, n_heads, batch_first=True)

    def kept(self, embeddings):
        return nn.ModuleList(embeddings)

    def forward(self, rows):
        tokens = torch.stack([column(rows[:, number]) for number, column in enumerate(self.columns)], dim=1)
        return tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]


class ForgetfulTabular(Tabular):
    def kept(self, embeddings):
        return dict(enumerate(embeddings))

    def forward(self, rows):
        tokens = torch.stack([column(rows[:, number]) for number, column in self.columns.items()], dim=1)
        return tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]


def _rows(cls, B, H, L, Dk):
    cardinalities = [3 + column % 4 for column in range(L)]
    rows = torch.stack([torch.randint(number, (B,)) for number in cardinalities], dim=1)
    return cls(H * Dk, H, cardinalities), (rows,), {}


def wrong_embeddings_of_columns(B, H, L, Dk):
    return _rows(ForgetfulTabular, B, H, L, Dk)


def right_embeddings_of_columns(B, H, L, Dk):
    return _rows(Tabular, B, H, L, Dk)


def reference_embeddings_of_columns(module, rows):
    one_hots = [rows[:, [number]] == torch.arange(len(one.weight)) for number, one in enumerate(module.columns)]
    tokens = [one_hot.to(one.weight) @ one.weight for one_hot, one in zip(one_hots, module.columns, strict=True)]
    x, attention = torch.stack(tokens, dim=1), module.attention
    qkv = x @ attention.in_proj_weight.T + attention.in_proj_bias
    q, k, v = qkv.unflatten(-1, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
    return x + merge(attend(q, k, v), attention.out_proj)


class Kernels(nn.Module):
    """Tokens are convolved by kernels of several widths before attention."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        kernels = (nn.Conv1d(width, width, size, padding=size // 2) for size in (1, 3, 5))
        self.kernels = self.kept(kernels)  # wrong: AS811 kernels_of_several_widths
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def kept(self, kernels):
        return nn.ModuleList(kernels)

    def forward(self, x):
        mixed = sum(kernel(x.transpose(1, 2)) for kernel in self.kernels).transpose(1, 2)
        q, k, v = (layer(mixed).unflatten(-1, (self.n_heads, -1)) for layer in (self.q, self.k, self.v))
        weights = torch.einsum("bqhd,bkhd->bhqk", q * q.shape[-1] ** -0.5, k).softmax(-1)
        return x + self.o(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2))


class ForgetfulKernels(Kernels):
    def kept(self, kernels):
        return tuple(kernels)


def wrong_kernels_of_several_widths(B, H, L, Dk):
    return _tokens(ForgetfulKernels, B, H, L, Dk)


def right_kernels_of_several_widths(B, H, L, Dk):
    return _tokens(Kernels, B, H, L, Dk)


def reference_kernels_of_several_widths(module, x):
    mixed = torch.zeros_like(x)
    for kernel in module.kernels:
        size = kernel.weight.shape[-1]
        near = F.pad(x, (0, 0, size // 2, size // 2)).unfold(1, size, 1)
        mixed = mixed + torch.einsum("blis,ois->blo", near, kernel.weight) + kernel.bias
    q, k, v = (heads(mixed, layer, module.n_heads) for layer in (module.q, module.k, module.v))
    return x + merge(attend(q, k, v), module.o)
