"""AS807: joined weights of which one part is selected twice, and another one never."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, join, split

LATENT = (
    {"B": 2, "H": 3, "Lk": 7, "C": 8, "Dn": 5, "Dv": 4},
    {"B": 3, "H": 2, "Lk": 9, "C": 10, "Dn": 6, "Dv": 5},
    {"B": 5, "H": 4, "Lk": 6, "C": 9, "Dn": 8, "Dv": 7},
)
SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 8, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 7})
PAIRS = [
    ("AS807", "values_from_the_rows_of_keys", *LATENT),
    ("AS807", "third_selected_again", *SIZES),
    ("AS807", "heads_of_a_joined_parameter", *SIZES),
]


def absorbed(q, latents, up):
    """Read the latents of all tokens in one step: `up` holds the keys' rows of each head, then the values'."""
    width = q.shape[-1]
    scores = torch.einsum("bhd,hdc,bsc->bhs", q, up[:, :width], latents) / width**0.5
    read = torch.einsum("bhs,bsc->bhc", scores.softmax(dim=-1), latents)
    to_values = up[:, width:]
    return torch.einsum("bhc,hvc->bhv", read, to_values)


def absorbed_from_the_first_row(q, latents, up):
    width = q.shape[-1]
    scores = torch.einsum("bhd,hdc,bsc->bhs", q, up[:, :width], latents) / width**0.5
    read = torch.einsum("bhs,bsc->bhc", scores.softmax(dim=-1), latents)
    to_values = up[:, : up.shape[1] - width]  # wrong: AS807 values_from_the_rows_of_keys
    return torch.einsum("bhc,hvc->bhv", read, to_values)


def _absorbed(function, B, H, Lk, C, Dn, Dv):
    return function, (torch.randn(B, H, Dn), torch.randn(B, Lk, C), torch.randn(H, Dn + Dv, C)), {}


def wrong_values_from_the_rows_of_keys(B, H, Lk, C, Dn, Dv):
    return _absorbed(absorbed_from_the_first_row, B, H, Lk, C, Dn, Dv)


def right_values_from_the_rows_of_keys(B, H, Lk, C, Dn, Dv):
    return _absorbed(absorbed, B, H, Lk, C, Dn, Dv)


def reference_values_from_the_rows_of_keys(function, q, latents, up):
    kv = torch.einsum("hrc,bsc->bhsr", up, latents)
    k, v = kv[..., : q.shape[-1]], kv[..., q.shape[-1] :]
    return attention(q.unsqueeze(2), k, v).squeeze(2)


def joined(x, weight, *, n_heads):
    """Attend with one weight for queries, keys and values: (D, 3*D)."""
    width = x.shape[-1]
    q, k, v = (
        torch.matmul(x, part).unflatten(-1, (n_heads, -1)).transpose(1, 2)
        for part in (weight[:, :width], weight[:, width : 2 * width], weight[:, 2 * width :])
    )
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def joined_again(x, weight, *, n_heads):
    width = x.shape[-1]
    to_q, to_k = weight[:, :width], weight[:, width : 2 * width]
    to_v = weight.narrow(1, width, width)  # wrong: AS807 third_selected_again
    q, k, v = (torch.matmul(x, part).unflatten(-1, (n_heads, -1)).transpose(1, 2) for part in (to_q, to_k, to_v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def _joined(function, B, H, L, Dk):
    return function, (torch.randn(B, L, H * Dk), torch.randn(H * Dk, 3 * H * Dk) / (H * Dk) ** 0.5), {"n_heads": H}


def wrong_third_selected_again(B, H, L, Dk):
    return _joined(joined_again, B, H, L, Dk)


def right_third_selected_again(B, H, L, Dk):
    return _joined(joined, B, H, L, Dk)


def reference_third_selected_again(function, x, weight, *, n_heads):
    return join(attention(*(split(t, n_heads) for t in (x @ weight).chunk(3, dim=-1))))


class PerHead(nn.Module):
    """One parameter has the keys' and the values' columns of every head, one after the other."""

    def __init__(self, heads, width, depth):
        super().__init__()
        self.depth = depth
        self.to_q = nn.Parameter(torch.randn(heads, width, depth) / width**0.5)
        self.to_kv = nn.Parameter(torch.randn(heads, width, 2 * depth) / width**0.5)

    def columns(self):
        return self.to_kv[..., : self.depth], self.to_kv[..., self.depth :]

    def forward(self, x):
        q, k, v = (torch.einsum("bld,hde->bhle", x, weight) for weight in (self.to_q, *self.columns()))
        weights = torch.softmax(q @ k.mT * self.depth**-0.5, dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class PerHeadAgain(PerHead):
    def columns(self):
        keys = self.to_kv[..., self.depth :]
        return keys, self.to_kv[..., self.depth :]  # wrong: AS807 heads_of_a_joined_parameter


def _per_head(cls, B, H, L, Dk):
    return cls(H, H * Dk, Dk), (torch.randn(B, L, H * Dk),), {}


def wrong_heads_of_a_joined_parameter(B, H, L, Dk):
    return _per_head(PerHeadAgain, B, H, L, Dk)


def right_heads_of_a_joined_parameter(B, H, L, Dk):
    return _per_head(PerHead, B, H, L, Dk)


def reference_heads_of_a_joined_parameter(module, x):
    q, k, v = (x.unsqueeze(1) @ weight for weight in (module.to_q, *module.to_kv.chunk(2, dim=-1)))
    return join(attention(q, k, v))
