"""Claimed rotations of a part of each head, and of tokens that are decoded one by one."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as7_latent import Joined, Latent, TokenByToken, turn_halves, turn_pairs

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8})
UNUSUAL = [
    ("latent_in_sdpa", *SIZES),
    ("rotated_part_first", *SIZES),
    ("complex_with_norms", *SIZES),
    ("one_pair", *SIZES),
    ("prompt_then_tokens", *SIZES),
    ("tokens_in_pairs", *SIZES),
    ("tokens_in_fused_steps", *SIZES),
]


class InSDPA(Latent):
    def forward(self, x):
        q_fixed, k_fixed, v, q_turned, k_turned = self.parts(x)
        shared = k_turned[:, None].expand(-1, self.heads, -1, -1)
        q, k = torch.cat((q_fixed, q_turned), dim=-1), torch.cat((k_fixed, shared), dim=-1)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class PartFirst(Joined):
    def scores(self, q_fixed, k_fixed, q_turned, k_turned):
        shared = k_turned.unsqueeze(1).repeat(1, self.heads, 1, 1)
        q, k = torch.cat((q_turned, q_fixed), dim=-1), torch.cat((shared, k_fixed), dim=-1)
        return torch.einsum("bhid,bhjd->bhij", q, k)


class ComplexWithNorms(nn.Module):
    """As in DeepSeek: queries come from a latent too, and rotations multiply complex numbers."""

    def __init__(self, width, heads, rotated):
        super().__init__()
        self.heads, self.rotated = heads, rotated
        self.q_down, self.q_norm = nn.Linear(width, 11), nn.LayerNorm(11)
        self.q_up, self.q_turned = nn.Linear(11, heads * 5), nn.Linear(11, heads * rotated)
        self.down, self.norm = nn.Linear(width, 9), nn.LayerNorm(9)
        self.k_up, self.v_up = nn.Linear(9, heads * 5), nn.Linear(9, heads * 4)
        self.k_turned = nn.Linear(width, rotated)
        self.out = nn.Linear(heads * 4, width)

    def turn(self, x):
        half, length = x.shape[-1] // 2, x.shape[1]
        angle = torch.outer(torch.arange(length).double(), 50.0 ** (-torch.arange(half).double() / half))
        factors = torch.polar(torch.ones_like(angle), angle).reshape(1, length, *[1] * (x.ndim - 3), half)
        numbers = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(numbers * factors).flatten(-2).type_as(x)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1))

    def forward(self, x):
        of_queries, latent = self.q_norm(self.q_down(x)), self.norm(self.down(x))
        q, q_turned = self.split(self.q_up(of_queries)), self.turn(self.split(self.q_turned(of_queries)))
        k, k_turned = self.split(self.k_up(latent)), self.turn(self.k_turned(x))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) + torch.einsum("bihd,bjd->bhij", q_turned, k_turned)
        weights = (scores / (5 + self.rotated) ** 0.5).softmax(dim=-1)
        return self.out(torch.einsum("bhij,bjhd->bihd", weights, self.split(self.v_up(latent))).flatten(2))


class PromptThenTokens(TokenByToken):
    def forward(self, x):
        outputs, keys, values = [], [], []
        half, start = x.shape[1] // 2, 0
        for piece in (x[:, :half], *x[:, half:].split(1, dim=1)):
            q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(piece).chunk(3, dim=-1))
            keys, values = [*keys, self.turn(k, start)], [*values, v]
            scores = self.turn(q, start) @ torch.cat(keys, dim=2).mT / q.shape[-1] ** 0.5
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(start + 1)
            weights = scores.masked_fill(later, -torch.inf).softmax(dim=-1)
            outputs.append((weights @ torch.cat(values, dim=2)).transpose(1, 2).flatten(2))
            start += piece.shape[1]
        return self.out(torch.cat(outputs, dim=1))


class TokensInPairs(TokenByToken):
    def turn(self, x, start):
        return turn_pairs(x, torch.arange(start, start + x.shape[-2], dtype=x.dtype))


class TokensInSDPA(TokenByToken):
    def forward(self, x):
        keys = values = None
        outputs = []
        for place in range(x.shape[1]):
            q, k, v = self.qkv(x[:, place : place + 1]).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            position = torch.tensor([place], dtype=x.dtype)
            q, k = turn_halves(q, position), turn_halves(k, position)
            keys = k if keys is None else torch.cat((keys, k), dim=2)
            values = v if values is None else torch.cat((values, v), dim=2)
            outputs.append(F.scaled_dot_product_attention(q, keys, values).transpose(1, 2).flatten(2))
        return self.out(torch.cat(outputs, dim=1))


def _case(cls, layout, width, B, H, L, Dk):
    return cls(width, H, Dk), (torch.randn(B, L, width),), {}, [f"rope={layout}"]


def case_latent_in_sdpa(B, H, L, Dk):
    return _case(InSDPA, "interleaved", H * Dk + 1, B, H, L, Dk)


def case_rotated_part_first(B, H, L, Dk):
    return _case(PartFirst, "half", H * Dk + 1, B, H, L, Dk)


def case_complex_with_norms(B, H, L, Dk):
    return _case(ComplexWithNorms, "interleaved", H * Dk + 1, B, H, L, Dk)


def case_one_pair(B, H, L, Dk):
    return _case(Latent, "half", H * Dk + 1, B, H, L, 2)


def _steps(cls, layout, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal", f"rope={layout}"]


def case_prompt_then_tokens(B, H, L, Dk):
    return _steps(PromptThenTokens, "half", B, H, L, Dk)


def case_tokens_in_pairs(B, H, L, Dk):
    return _steps(TokensInPairs, "interleaved", B, H, L, Dk)


def case_tokens_in_fused_steps(B, H, L, Dk):
    return _steps(TokensInSDPA, "half", B, H, L, Dk)
