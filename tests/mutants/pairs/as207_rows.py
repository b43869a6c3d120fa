"""AS207 in attention that rows of an alignment share: scores are sums over the rows too."""

import torch
from torch import nn

from tests.mutants.plain import softmax

SIZES = (
    {"B": 2, "R": 5, "L": 7, "H": 4, "Dk": 6},
    {"B": 4, "R": 3, "L": 6, "H": 2, "Dk": 7},
    {"B": 5, "R": 4, "L": 9, "H": 3, "Dk": 8},
)
PAIRS = [
    ("AS207", "tied_rows_by_columns", *SIZES),
]


class TiedRows(nn.Module):
    """Tokens are (rows, columns, batch, features); all rows of an alignment have the same weights."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.scaling = num_heads, (embed_dim // num_heads) ** -0.5
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def align_scaling(self, q):
        return self.scaling / q.shape[0] ** 0.5

    def forward(self, x):
        num_rows, num_cols, batch_size, embed_dim = x.shape
        shape = num_rows, num_cols, batch_size, self.num_heads, embed_dim // self.num_heads
        q, k, v = (proj(x).view(shape) for proj in (self.q_proj, self.k_proj, self.v_proj))
        q = q * self.align_scaling(q)  # wrong: AS207 tied_rows_by_columns
        attn_weights = torch.einsum("rinhd,rjnhd->hnij", q, k)
        context = torch.einsum("hnij,rjnhd->rinhd", attn_weights.softmax(-1), v)
        return self.out_proj(context.reshape(num_rows, num_cols, batch_size, embed_dim))


class TiedRowsByColumns(TiedRows):
    def align_scaling(self, q):
        return self.scaling / q.shape[1] ** 0.5


def _tied(cls, B, R, L, H, Dk):
    return cls(H * Dk, H), (torch.randn(R, L, B, H * Dk),), {}, ["scale=1/sqrt(R*Dk)"]


def wrong_tied_rows_by_columns(B, R, L, H, Dk):
    return _tied(TiedRowsByColumns, B, R, L, H, Dk)


def right_tied_rows_by_columns(B, R, L, H, Dk):
    return _tied(TiedRows, B, R, L, H, Dk)


def reference_tied_rows_by_columns(module, x):
    each = []
    for alignment in x.unbind(2):
        parts = (module.q_proj(alignment), module.k_proj(alignment), module.v_proj(alignment))
        contexts = []
        for q, k, v in zip(*(part.chunk(module.num_heads, -1) for part in parts), strict=True):
            scores = sum(one @ other.T for one, other in zip(q, k, strict=True))
            contexts.append(softmax(scores / (q.shape[0] * q.shape[2]) ** 0.5) @ v)
        each.append(module.out_proj(torch.cat(contexts, dim=-1)))
    return torch.stack(each, dim=2)
