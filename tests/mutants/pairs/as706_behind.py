"""AS706: linear biases of attention in both directions, which rise for the keys behind the query."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 3, "H": 8, "L": 6, "Dk": 5})
PAIRS = [
    ("AS706", "encoder_without_triangle", *SELF),
    ("AS706", "positions_of_keys_tiled", *SELF),
    ("AS706", "offsets_in_einsum", *SELF),
]


def published(n_heads):
    """The slopes of ALiBi for any number of heads."""
    return [2.0 ** (-8 * (head + 1) / n_heads) for head in range(n_heads)]


class Encoder(nn.Module):
    """Attention of an encoder's layer, with a linear bias for the distance."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("slopes", torch.tensor(published(n_heads)).view(-1, 1, 1))

    def alibi(self, L):
        place = torch.arange(L)
        return self.slopes * -(place[None, :] - place[:, None]).abs()

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=self.alibi(x.shape[1]).to(q))
        return x + self.out(context.transpose(1, 2).flatten(2))


class EncoderOfDecoder(Encoder):
    def alibi(self, L):
        place = torch.arange(L)
        return self.slopes * (place[None, :] - place[:, None])  # wrong: AS706 encoder_without_triangle


def _encoder(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["alibi"]


def wrong_encoder_without_triangle(B, H, L, Dk):
    return _encoder(EncoderOfDecoder, B, H, L, Dk)


def right_encoder_without_triangle(B, H, L, Dk):
    return _encoder(Encoder, B, H, L, Dk)


def penalty(L, slopes):
    """H L L: what is added for the distance on both sides."""
    rows = [[[-slope * abs(i - j) for j in range(L)] for i in range(L)] for slope in slopes]
    return torch.tensor(rows, dtype=torch.float64)


def reference_encoder_without_triangle(module, x):
    q, k, v = fused(module.norm(x), module.qkv, module.n_heads)
    return x + merge(attend(q, k, v, bias=penalty(x.shape[1], module.slopes.flatten().tolist())), module.out)


class Layer(nn.Module):
    """The bias is tiled for the batch, and added within the product of queries and keys, as in BLOOM."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.query, self.key, self.value, self.dense = (nn.Linear(width, width) for _ in range(4))

    def fold(self, x):
        return x.view(*x.shape[:2], self.n_heads, -1).transpose(1, 2).reshape(x.shape[0] * self.n_heads, x.shape[1], -1)

    def forward(self, x, alibi):
        q, k, v = self.fold(self.query(x)), self.fold(self.key(x)), self.fold(self.value(x))
        scores = torch.baddbmm(alibi, q, k.transpose(1, 2), beta=1.0, alpha=q.shape[-1] ** -0.5)
        context = torch.bmm(F.softmax(scores, dim=-1), v).view(x.shape[0], self.n_heads, x.shape[1], -1)
        return x + self.dense(context.transpose(1, 2).reshape(x.shape))


class Reader(nn.Module):
    """Two layers over tokens that see each other in both directions."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.embedding = nn.Embedding(19, width)
        self.layers = nn.ModuleList(Layer(width, n_heads) for _ in range(2))
        self.n_heads, self.norm = n_heads, nn.LayerNorm(width)

    def alibi(self, slopes, place):
        return slopes[:, None, None] * -torch.abs(place[:, None] - place)

    def forward(self, tokens):
        B, L = tokens.shape
        x = self.embedding(tokens)
        slopes = 2.0 ** (-8.0 / self.n_heads * torch.arange(1, self.n_heads + 1, dtype=x.dtype))
        alibi = self.alibi(slopes, torch.arange(L, dtype=x.dtype)).expand(-1, L, -1).repeat(B, 1, 1)
        for layer in self.layers:
            x = layer(x, alibi)
        return self.norm(x)


class ReaderOfPositions(Reader):
    def alibi(self, slopes, place):
        return slopes[:, None, None] * place[None, None, :]  # wrong: AS706 positions_of_keys_tiled


def _reader(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randint(19, (B, L)),), {}, ["alibi"]


def wrong_positions_of_keys_tiled(B, H, L, Dk):
    return _reader(ReaderOfPositions, B, H, L, Dk)


def right_positions_of_keys_tiled(B, H, L, Dk):
    return _reader(Reader, B, H, L, Dk)


def reference_positions_of_keys_tiled(module, tokens):
    x = module.embedding.weight[tokens]
    for layer in module.layers:
        q, k, v = (heads(x, linear, module.n_heads) for linear in (layer.query, layer.key, layer.value))
        x = x + merge(attend(q, k, v, bias=penalty(x.shape[1], published(module.n_heads))), layer.dense)
    return module.norm(x)


def near_first(x, w_in, w_out, slopes):
    """Attend with less weight for tokens that are further away: L B D, by (3, D, H, Dk), (H, Dk, D) and (H,)."""
    q, k, v = torch.einsum("lbi,tihd->tbhld", x, w_in)
    place = torch.arange(x.shape[0], dtype=x.dtype)
    bias = torch.einsum("h,ij->hij", -slopes, (place[:, None] - place[None, :]).abs())
    weights = (torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5 + bias).softmax(-1)
    return torch.einsum("bhid,hdo->ibo", torch.einsum("bhij,bhjd->bhid", weights, v), w_out)


def near_first_of_past(x, w_in, w_out, slopes):
    """Attend with less weight for tokens that are further away: L B D, by (3, D, H, Dk), (H, Dk, D) and (H,)."""
    q, k, v = torch.einsum("lbi,tihd->tbhld", x, w_in)
    place = torch.arange(x.shape[0], dtype=x.dtype)
    bias = torch.einsum("h,ij->hij", -slopes, place[:, None] - place[None, :])  # wrong: AS706 offsets_in_einsum
    weights = (torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5 + bias).softmax(-1)
    return torch.einsum("bhid,hdo->ibo", torch.einsum("bhij,bhjd->bhid", weights, v), w_out)


def _near(function, B, H, L, Dk):
    weights = torch.randn(3, H * Dk, H, Dk) / (H * Dk) ** 0.5, torch.randn(H, Dk, H * Dk) / (H * Dk) ** 0.5
    return function, (torch.randn(L, B, H * Dk), *weights, torch.tensor(published(H))), {}, ["alibi"]


def wrong_offsets_in_einsum(B, H, L, Dk):
    return _near(near_first_of_past, B, H, L, Dk)


def right_offsets_in_einsum(B, H, L, Dk):
    return _near(near_first, B, H, L, Dk)


def reference_offsets_in_einsum(_, x, w_in, w_out, slopes):
    out = torch.zeros_like(x)
    for h, slope in enumerate(slopes.tolist()):
        q, k, v = (torch.einsum("lbi,id->bld", x, weight[:, h]) for weight in w_in)
        context = attend(q[:, None], k[:, None], v[:, None], bias=penalty(len(x), [slope]))[:, 0]
        out += (context @ w_out[h]).transpose(0, 1)
    return out
