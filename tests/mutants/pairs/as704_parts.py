"""AS704: heads of a rotated and an unrotated part, which keys have in another order than queries."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.plain import attention, join

SIZES = (
    {"B": 2, "H": 3, "L": 7, "C": 8, "Dn": 5, "R": 4, "Dv": 6},
    {"B": 3, "H": 2, "L": 9, "C": 10, "Dn": 6, "R": 4, "Dv": 5},
    {"B": 5, "H": 4, "L": 6, "C": 9, "Dn": 7, "R": 3, "Dv": 8},
)
PAIRS = [
    ("AS704", "latent_key_joined_first", *SIZES),
    ("AS704", "rotated_width_in_front", *SIZES),
    ("AS704", "content_after_position", *SIZES),
]


def turned(x: Tensor) -> Tensor:
    """Rotate (…, L, width) by the positions, in halves."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * 100.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), dim=-1)


def _turned(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    positions = torch.arange(x.shape[-2], dtype=torch.float64)
    angles = torch.outer(positions, 100.0 ** (-torch.arange(half, dtype=torch.float64) / half))
    numbers = torch.complex(x[..., :half].double(), x[..., half:].double()) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.cat((numbers.real, numbers.imag), dim=-1).to(x.dtype)


class Latent(nn.Module):
    """Keys are a part of each head from a latent, and a rotated one that all heads share."""

    def __init__(self, width, heads, rank, nope, rope, v_dim):
        super().__init__()
        self.heads, self.parts, self.ranks = heads, (nope, rope), (rank, rope)
        self.wq = nn.Linear(width, heads * (nope + rope), bias=False)
        self.down = nn.Linear(width, rank + rope, bias=False)
        self.up = nn.Linear(rank, heads * (nope + v_dim), bias=False)

    def key(self, nope, rope):
        return torch.cat((nope, rope), dim=-1)

    def forward(self, x):
        q = self.wq(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q_nope, q_rope = q.split(self.parts, dim=-1)
        latent, k_rope = self.down(x).split(self.ranks, dim=-1)
        k_nope, v = self.up(latent).unflatten(-1, (self.heads, -1)).transpose(1, 2).tensor_split((self.parts[0],), -1)
        k_rope = turned(k_rope).unsqueeze(1).expand(-1, self.heads, -1, -1)
        q = torch.cat((q_nope, turned(q_rope)), dim=-1)
        weights = (q @ self.key(k_nope, k_rope).mT / q.shape[-1] ** 0.5).softmax(dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class LatentWithOtherKeys(Latent):
    def key(self, nope, rope):
        return torch.cat((rope, nope), dim=-1)  # wrong: AS704 latent_key_joined_first


def _latent(cls, B, H, L, C, Dn, R, Dv):
    return cls(H * Dv, H, C, Dn, 2 * R, Dv), (torch.randn(B, L, H * Dv),), {}, ["rope=half", "scale=1/sqrt(Dn+2*R)"]


def wrong_latent_key_joined_first(B, H, L, C, Dn, R, Dv):
    return _latent(LatentWithOtherKeys, B, H, L, C, Dn, R, Dv)


def right_latent_key_joined_first(B, H, L, C, Dn, R, Dv):
    return _latent(Latent, B, H, L, C, Dn, R, Dv)


def reference_latent_key_joined_first(module, x):
    nope = module.parts[0]
    q = torch.stack(module.wq(x).chunk(module.heads, -1), 1)
    down = module.down(x)
    rank = module.ranks[0]
    kv = torch.stack(module.up(down[..., :rank]).chunk(module.heads, -1), 1)
    k = torch.cat((kv[..., :nope], _turned(down[..., rank:]).unsqueeze(1).expand(-1, module.heads, -1, -1)), -1)
    q = torch.cat((q[..., :nope], _turned(q[..., nope:])), -1)
    return join(attention(q, k, kv[..., nope:]))


class Decoupled(nn.Module):
    """The rotated parts have projections of their own; torch's attention reads the joined heads."""

    def __init__(self, d_model, n_heads, content, turned_width, value):
        super().__init__()
        self.n_heads = n_heads
        self.q_content, self.k_content = (nn.Linear(d_model, n_heads * content) for _ in range(2))
        self.q_turned, self.k_turned = (nn.Linear(d_model, n_heads * turned_width) for _ in range(2))
        self.v = nn.Linear(d_model, n_heads * value)

    def forward(self, x):
        def heads(t):
            return t.view(*t.shape[:2], self.n_heads, -1).permute(0, 2, 1, 3)

        q = torch.cat([turned(heads(self.q_turned(x))), heads(self.q_content(x))], dim=3)
        k = torch.cat([turned(heads(self.k_turned(x))), heads(self.k_content(x))], dim=3)
        return F.scaled_dot_product_attention(q, k, heads(self.v(x)), is_causal=True).permute(0, 2, 1, 3).flatten(2)


class DecoupledTheOtherWay(Decoupled):
    def forward(self, x):
        def heads(t):
            return t.view(*t.shape[:2], self.n_heads, -1).permute(0, 2, 1, 3)

        q = torch.cat([turned(heads(self.q_turned(x))), heads(self.q_content(x))], dim=3)
        parts = heads(self.k_content(x)), turned(heads(self.k_turned(x)))
        k = torch.cat(parts, dim=3)  # wrong: AS704 rotated_width_in_front
        return F.scaled_dot_product_attention(q, k, heads(self.v(x)), is_causal=True).permute(0, 2, 1, 3).flatten(2)


def _decoupled(cls, B, H, L, C, Dn, R, Dv):
    return cls(C, H, Dn, 2 * R, Dv), (torch.randn(B, L, C),), {}, ["causal"]


def wrong_rotated_width_in_front(B, H, L, C, Dn, R, Dv):
    return _decoupled(DecoupledTheOtherWay, B, H, L, C, Dn, R, Dv)


def right_rotated_width_in_front(B, H, L, C, Dn, R, Dv):
    return _decoupled(Decoupled, B, H, L, C, Dn, R, Dv)


def reference_rotated_width_in_front(module, x):
    def heads(t):
        return torch.stack(t.chunk(module.n_heads, -1), 1)

    q, k = (
        torch.cat((heads(content(x)), _turned(heads(rotated(x)))), -1)
        for content, rotated in ((module.q_content, module.q_turned), (module.k_content, module.k_turned))
    )
    keep = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    return join(attention(q, k, heads(module.v(x)), keep=keep))


def one_key_for_all(x, wq, w_content, w_turned, wv, *, n_heads, width):
    """One key of two parts serves every head."""
    q = torch.einsum("bld,dhe->bhle", x, wq)
    q = torch.concat((q[..., :width], turned(q[..., width:])), -1)
    k = torch.concat((x @ w_content, turned(x @ w_turned)), -1)
    weights = torch.softmax(torch.einsum("bhie,bje->bhij", q, k) * q.shape[-1] ** -0.5, dim=-1)
    return torch.einsum("bhij,bje->bihe", weights, x @ wv).flatten(2)


def one_key_the_other_way(x, wq, w_content, w_turned, wv, *, n_heads, width):
    q = torch.einsum("bld,dhe->bhle", x, wq)
    q = torch.concat((q[..., :width], turned(q[..., width:])), -1)
    k = torch.concat((turned(x @ w_turned), x @ w_content), -1)  # wrong: AS704 content_after_position
    weights = torch.softmax(torch.einsum("bhie,bje->bhij", q, k) * q.shape[-1] ** -0.5, dim=-1)
    return torch.einsum("bhij,bje->bihe", weights, x @ wv).flatten(2)


def _one_key(function, B, H, L, C, Dn, R, Dv):
    weights = (torch.randn(C, H, Dn + 2 * R), torch.randn(C, Dn), torch.randn(C, 2 * R), torch.randn(C, Dv))
    return function, (torch.randn(B, L, C), *(w / C**0.5 for w in weights)), {"n_heads": H, "width": Dn}, ["rope=half"]


def wrong_content_after_position(B, H, L, C, Dn, R, Dv):
    return _one_key(one_key_the_other_way, B, H, L, C, Dn, R, Dv)


def right_content_after_position(B, H, L, C, Dn, R, Dv):
    return _one_key(one_key_for_all, B, H, L, C, Dn, R, Dv)


def reference_content_after_position(function, x, wq, w_content, w_turned, wv, *, n_heads, width):
    q = torch.stack([x @ wq[:, head] for head in range(n_heads)], 1)
    q = torch.cat((q[..., :width], _turned(q[..., width:])), -1)
    k = torch.cat((x @ w_content, _turned(x @ w_turned)), -1)
    return join(attention(q, k.unsqueeze(1), (x @ wv).unsqueeze(1)))
