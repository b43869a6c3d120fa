"""AS805: queries and keys are split into parts, and one part of the keys is made from the queries."""

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, project, turned, visible

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
CROSS = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 11, "Lk": 7, "Dk": 8},
    {"B": 6, "H": 7, "Lq": 5, "Lk": 8, "Dk": 4},
)
TOKENS = (
    {"B": 4, "H": 5, "L": 7, "Dk": 6, "V": 13},
    {"B": 5, "H": 4, "L": 9, "Dk": 8, "V": 11},
    {"B": 6, "H": 7, "L": 5, "Dk": 4, "V": 17},
)
PAIRS = [
    ("AS805", "rest_of_the_query_in_the_key", *SIZES),
    ("AS805", "columns_of_the_query_in_the_key", *SIZES),
    ("AS805", "fixed_part_of_the_query_in_the_key", *SIZES),
    ("AS805", "half_of_the_query_in_the_key", *SIZES),
    ("AS805", "contents_of_the_query_in_the_key", *TOKENS),
    ("AS805", "part_of_the_key_in_the_value", *SIZES),
    ("AS805", "part_of_the_key_in_the_value_of_a_memory", *CROSS),
]


def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def angles(positions, width, dtype):
    """Each angle twice, for the first and for the second half of the features."""
    inv_freq = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    freqs = positions.double()[:, None] * inv_freq
    return torch.cat((freqs, freqs), dim=-1).cos().to(dtype), torch.cat((freqs, freqs), dim=-1).sin().to(dtype)


def turn(x):
    cos, sin = angles(torch.arange(x.shape[-2]), x.shape[-1], x.dtype)
    return x * cos + rotate_half(x) * sin


class PartialRotary(nn.Module):
    """One projection, whose features are (3, H, Dk); only the first features of each head are rotated."""

    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.rotary_ndims = 2 * (hidden_size // num_heads // 4)
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def join(self, query, key):
        cos, sin = angles(torch.arange(query.shape[-2]), self.rotary_ndims, query.dtype)
        query_rot, query_pass = query[..., : self.rotary_ndims], query[..., self.rotary_ndims :]
        key_rot, key_pass = key[..., : self.rotary_ndims], key[..., self.rotary_ndims :]
        query = torch.cat((query_rot * cos + rotate_half(query_rot) * sin, query_pass), dim=-1)
        key = torch.cat((key_rot * cos + rotate_half(key_rot) * sin, key_pass), dim=-1)
        return query, key

    def forward(self, x):
        B, L, D = x.shape
        qkv = self.query_key_value(x).view(B, L, 3, self.num_heads, -1)
        query, key, value = qkv[:, :, 0].transpose(1, 2), qkv[:, :, 1].transpose(1, 2), qkv[:, :, 2].transpose(1, 2)
        query, key = self.join(query, key)
        scores = query @ key.transpose(-1, -2) / query.size(-1) ** 0.5
        later = torch.ones(L, L, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, torch.finfo(scores.dtype).min).softmax(dim=-1)
        return self.dense((weights @ value).transpose(1, 2).reshape(B, L, D))


class QueryPassTwice(PartialRotary):
    def join(self, query, key):
        cos, sin = angles(torch.arange(query.shape[-2]), self.rotary_ndims, query.dtype)
        query_rot, query_pass = query[..., : self.rotary_ndims], query[..., self.rotary_ndims :]
        key_rot, key_pass = key[..., : self.rotary_ndims], key[..., self.rotary_ndims :]  # noqa: F841
        query = torch.cat((query_rot * cos + rotate_half(query_rot) * sin, query_pass), dim=-1)
        key_rot = key_rot * cos + rotate_half(key_rot) * sin
        key = torch.cat((key_rot, query_pass), dim=-1)  # wrong: AS805 rest_of_the_query_in_the_key
        return query, key


def _partial(kind, B, H, L, Dk):
    return kind(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_rest_of_the_query_in_the_key(B, H, L, Dk):
    return _partial(QueryPassTwice, B, H, L, Dk)


def right_rest_of_the_query_in_the_key(B, H, L, Dk):
    return _partial(PartialRotary, B, H, L, Dk)


def reference_rest_of_the_query_in_the_key(module, x):
    L, width = x.shape[1], module.rotary_ndims
    q, k, v = fused(x, module.query_key_value, module.num_heads)
    q, k = (torch.cat((turned(t[..., :width], torch.arange(L)), t[..., width:]), -1) for t in (q, k))
    return merge(attend(q, k, v, visible(L, L)), module.dense)


class Axial(nn.Module):
    """Tokens of an image, row by row: half of each head is turned by the row, the other half by the column."""

    columns = 3

    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def turn(self, x, place):
        cos, sin = angles(place, x.shape[-1], x.dtype)
        return x * cos + rotate_half(x) * sin

    def rotate(self, q, k):
        place = torch.arange(q.shape[2])
        row, column = place // self.columns, place % self.columns
        q_rows, q_columns = q.chunk(2, dim=-1)
        k_rows, k_columns = k.chunk(2, dim=-1)
        q = torch.cat((self.turn(q_rows, row), self.turn(q_columns, column)), dim=-1)
        k = torch.cat((self.turn(k_rows, row), self.turn(k_columns, column)), dim=-1)
        return q, k

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (
            linear(h).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for linear in (self.to_q, self.to_k, self.to_v)
        )
        q, k = self.rotate(q, k)
        return x + self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class ColumnsOfQuery(Axial):
    def rotate(self, q, k):
        place = torch.arange(q.shape[2])
        row, column = place // self.columns, place % self.columns
        q_rows, q_columns = q.chunk(2, dim=-1)
        k_rows, k_columns = k.chunk(2, dim=-1)  # noqa: RUF059
        q_rows, k_rows = self.turn(q_rows, row), self.turn(k_rows, row)
        q_columns = self.turn(q_columns, column)
        k = torch.cat((k_rows, q_columns), dim=-1)  # wrong: AS805 columns_of_the_query_in_the_key
        return torch.cat((q_rows, q_columns), dim=-1), k


def _axial(kind, B, H, L, Dk):
    return kind(2 * H * Dk, H), (torch.randn(B, L, 2 * H * Dk),), {}


def wrong_columns_of_the_query_in_the_key(B, H, L, Dk):
    return _axial(ColumnsOfQuery, B, H, L, Dk)


def right_columns_of_the_query_in_the_key(B, H, L, Dk):
    return _axial(Axial, B, H, L, Dk)


def reference_columns_of_the_query_in_the_key(module, x):
    place = torch.arange(x.shape[1])
    h = F.layer_norm(x, x.shape[-1:], module.norm.weight, module.norm.bias)
    q, k, v = (heads(h, one, module.n_heads) for one in (module.to_q, module.to_k, module.to_v))
    row, column = place.div(3, rounding_mode="floor"), place.remainder(3)
    q, k = (
        torch.cat([turned(half, where) for half, where in zip(t.tensor_split(2, -1), (row, column), strict=True)], -1)
        for t in (q, k)
    )
    return x + merge(attend(q, k, v), module.to_out)


class Latent(nn.Module):
    """Keys and values from a latent of few features, and rotated features of the keys that all heads share."""

    rank, fixed = 11, 3

    def __init__(self, hidden_size, num_heads, rotated):
        super().__init__()
        self.num_heads, self.rotated = num_heads, rotated
        self.q_proj = nn.Linear(hidden_size, num_heads * (self.fixed + rotated), bias=False)
        self.kv_a_proj = nn.Linear(hidden_size, self.rank + rotated, bias=False)
        self.kv_a_norm = nn.LayerNorm(self.rank)
        self.kv_b_proj = nn.Linear(self.rank, num_heads * 2 * self.fixed, bias=False)
        self.o_proj = nn.Linear(num_heads * self.fixed, hidden_size, bias=False)

    def split(self, x, *widths):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2).split(widths, dim=-1)

    def attend(self, query_states, key_states, value_states):
        out = F.scaled_dot_product_attention(query_states, key_states, value_states, is_causal=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def forward(self, hidden_states):
        q_nope, q_pe = self.split(self.q_proj(hidden_states), self.fixed, self.rotated)
        latent, k_pe = self.kv_a_proj(hidden_states).split((self.rank, self.rotated), dim=-1)
        k_nope, value_states = self.split(self.kv_b_proj(self.kv_a_norm(latent)), self.fixed, self.fixed)
        q_pe, k_pe = turn(q_pe), turn(k_pe[:, None]).expand(-1, self.num_heads, -1, -1)
        query_states = torch.cat((q_nope, q_pe), dim=-1)
        key_states = torch.cat((k_nope, k_pe), dim=-1)
        return self.attend(query_states, key_states, value_states)


class FixedOfQuery(Latent):
    def forward(self, hidden_states):
        q_nope, q_pe = self.split(self.q_proj(hidden_states), self.fixed, self.rotated)
        latent, k_pe = self.kv_a_proj(hidden_states).split((self.rank, self.rotated), dim=-1)
        k_nope, value_states = self.split(self.kv_b_proj(self.kv_a_norm(latent)), self.fixed, self.fixed)  # noqa: RUF059
        q_pe, k_pe = turn(q_pe), turn(k_pe[:, None]).expand(-1, self.num_heads, -1, -1)
        query_states = torch.cat((q_nope, q_pe), dim=-1)
        key_states = torch.cat((q_nope, k_pe), dim=-1)  # wrong: AS805 fixed_part_of_the_query_in_the_key
        return self.attend(query_states, key_states, value_states)


def _latent(kind, B, H, L, Dk):
    return kind(H * Dk + 1, H, Dk), (torch.randn(B, L, H * Dk + 1),), {}, ["causal"]


def wrong_fixed_part_of_the_query_in_the_key(B, H, L, Dk):
    return _latent(FixedOfQuery, B, H, L, Dk)


def right_fixed_part_of_the_query_in_the_key(B, H, L, Dk):
    return _latent(Latent, B, H, L, Dk)


def reference_fixed_part_of_the_query_in_the_key(module, x):
    place, H, fixed = torch.arange(x.shape[1]), module.num_heads, module.fixed
    down = project(x, module.kv_a_proj)
    latent = down[..., : module.rank]
    normed = (latent - latent.mean(-1, keepdim=True)) / (latent.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    q, kv = heads(x, module.q_proj, H), heads(normed * module.kv_a_norm.weight, module.kv_b_proj, H)
    shared = turned(down[..., module.rank :], place)
    q_turned = turned(q[..., fixed:], place)
    fixed_scores = torch.einsum("bhid,bhjd->bhij", q[..., :fixed], kv[..., :fixed])
    scores = (fixed_scores + torch.einsum("bhid,bjd->bhij", q_turned, shared)) / q.shape[-1] ** 0.5
    odds = torch.where(visible(*scores.shape[-2:]), scores.exp(), 0.0)
    return merge(odds / odds.sum(-1, keepdim=True) @ kv[..., fixed:], module.o_proj)


def half_rotary(x, weight_q, weight_k, weight_v):
    """Weights are (D, H, Dk); the first half of each head is rotated."""
    q, k, v = (torch.einsum("bli,ihd->bhld", x, weight) for weight in (weight_q, weight_k, weight_v))
    half = q.shape[-1] // 2
    q_turned, q_rest = q.narrow(-1, 0, half), q.narrow(-1, half, half)
    k_turned, k_rest = k.narrow(-1, 0, half), k.narrow(-1, half, half)
    q = torch.cat([turn(q_turned), q_rest], dim=-1)
    k = torch.cat([turn(k_turned), k_rest], dim=-1)
    weights = torch.einsum("bhid,bhjd->bhij", q * q.shape[-1] ** -0.5, k).softmax(-1)
    return torch.einsum("bhij,bhjd->bihd", weights, v)


def half_rotary_of_query(x, weight_q, weight_k, weight_v):
    q, k, v = (torch.einsum("bli,ihd->bhld", x, weight) for weight in (weight_q, weight_k, weight_v))
    half = q.shape[-1] // 2
    q_turned, q_rest = q.narrow(-1, 0, half), q.narrow(-1, half, half)
    k_turned, k_rest = k.narrow(-1, 0, half), k.narrow(-1, half, half)  # noqa: F841
    q = torch.cat([turn(q_turned), q_rest], dim=-1)
    k = torch.cat([turn(k_turned), q_rest], dim=-1)  # wrong: AS805 half_of_the_query_in_the_key
    weights = torch.einsum("bhid,bhjd->bhij", q * q.shape[-1] ** -0.5, k).softmax(-1)
    return torch.einsum("bhij,bhjd->bihd", weights, v)


def _half_rotary(function, B, H, L, Dk):
    return function, (torch.randn(B, L, H * Dk), *(torch.randn(3, H * Dk, H, 2 * Dk) / (H * Dk) ** 0.5)), {}


def wrong_half_of_the_query_in_the_key(B, H, L, Dk):
    return _half_rotary(half_rotary_of_query, B, H, L, Dk)


def right_half_of_the_query_in_the_key(B, H, L, Dk):
    return _half_rotary(half_rotary, B, H, L, Dk)


def reference_half_of_the_query_in_the_key(function, x, weight_q, weight_k, weight_v):
    q, k, v = (torch.stack([x @ one for one in weight.unbind(1)], 1) for weight in (weight_q, weight_k, weight_v))
    place, half = torch.arange(x.shape[1]), q.shape[-1] // 2
    q, k = (torch.cat((turned(t[..., :half], place), t[..., half:]), -1) for t in (q, k))
    return attend(q, k, v).transpose(1, 2)


class Layer(nn.Module):
    """A pre-norm layer; each head has features for contents and others, with a place added, for positions."""

    def __init__(self, width, n_heads, places):
        super().__init__()
        self.n_heads = n_heads
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.places = nn.Parameter(torch.randn(places, width // n_heads // 2))

    def split(self, x):
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def place(self, q, k):
        q_content, q_place = q.chunk(2, dim=-1)
        k_content, k_place = k.chunk(2, dim=-1)
        places = self.places[: q.shape[-2]]
        return torch.cat((q_content, q_place + places), dim=-1), torch.cat((k_content, k_place + places), dim=-1)

    def forward(self, x):
        h = self.norm(x)
        q, k = self.place(self.split(self.q(h)), self.split(self.k(h)))
        context = F.scaled_dot_product_attention(q, k, self.split(self.v(h)), is_causal=True)
        return x + self.out(context.transpose(1, 2).flatten(2))


class LayerOfQuery(Layer):
    def place(self, q, k):
        q_content, q_place = q.chunk(2, dim=-1)
        k_content, k_place = k.chunk(2, dim=-1)  # noqa: RUF059
        places = self.places[: q.shape[-2]]
        k = torch.cat((q_content, k_place + places), dim=-1)  # wrong: AS805 contents_of_the_query_in_the_key
        return torch.cat((q_content, q_place + places), dim=-1), k


class Decoder(nn.Module):
    def __init__(self, kind, width, n_heads, places, vocabulary):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(kind(width, n_heads, places) for _ in range(2))

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return x @ self.embed.weight.T


def _decoder(kind, B, H, L, Dk, V):
    return Decoder(kind, 2 * H * Dk, H, L, V), (torch.randint(V, (B, L)),), {}, ["causal"]


def wrong_contents_of_the_query_in_the_key(B, H, L, Dk, V):
    return _decoder(LayerOfQuery, B, H, L, Dk, V)


def right_contents_of_the_query_in_the_key(B, H, L, Dk, V):
    return _decoder(Layer, B, H, L, Dk, V)


def reference_contents_of_the_query_in_the_key(module, tokens):
    x = module.embed.weight[tokens]
    for layer in module.layers:
        h = F.layer_norm(x, x.shape[-1:], layer.norm.weight, layer.norm.bias)
        q, k, v = (heads(h, one, layer.n_heads) for one in (layer.q, layer.k, layer.v))
        places = F.pad(layer.places, (q.shape[-1] // 2, 0))
        x = x + merge(attend(q + places, k + places, v, visible(*tokens.shape[1:] * 2)), layer.out)
    return torch.einsum("bld,vd->blv", x, module.embed.weight)


def shifted(x):
    """The features of the token before."""
    return F.pad(x, (0, 0, 1, -1))


class Shifted(nn.Module):
    """Half of the features of keys and values are those of the token before."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def mix(self, k, v):
        k_before, k_own = k.tensor_split(2, dim=-1)
        v_before, v_own = v.tensor_split(2, dim=-1)
        k = torch.cat((shifted(k_before), k_own), dim=-1)
        v = torch.cat((shifted(v_before), v_own), dim=-1)
        return k, v

    def forward(self, x):
        q, k, v = rearrange(self.qkv(x), "b n (h c d) -> c b h n d", c=3, h=self.n_heads)
        k, v = self.mix(k, v)
        bias = torch.zeros(x.shape[1], x.shape[1], dtype=x.dtype).masked_fill(
            torch.ones(x.shape[1], x.shape[1]).triu(1) > 0, -torch.inf
        )
        weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5 + bias, dim=-1)
        return self.out(rearrange(weights @ v, "b h n d -> b n (h d)"))


class OwnOfKey(Shifted):
    def mix(self, k, v):
        k_before, k_own = k.tensor_split(2, dim=-1)
        v_before, v_own = v.tensor_split(2, dim=-1)  # noqa: RUF059
        k = torch.cat((shifted(k_before), k_own), dim=-1)
        v = torch.cat((shifted(v_before), k_own), dim=-1)  # wrong: AS805 part_of_the_key_in_the_value
        return k, v


def _shifted(kind, B, H, L, Dk):
    return kind(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_part_of_the_key_in_the_value(B, H, L, Dk):
    return _shifted(OwnOfKey, B, H, L, Dk)


def right_part_of_the_key_in_the_value(B, H, L, Dk):
    return _shifted(Shifted, B, H, L, Dk)


def reference_part_of_the_key_in_the_value(module, x):
    q, k, v = project(x, module.qkv).unflatten(-1, (module.n_heads, 3, -1)).permute(3, 0, 2, 1, 4)
    half, L = q.shape[-1] // 2, x.shape[1]
    back = torch.diag(torch.ones(L - 1, dtype=x.dtype), -1)
    k, v = (torch.cat((torch.einsum("ij,bhjd->bhid", back, t[..., :half]), t[..., half:]), -1) for t in (k, v))
    return merge(attend(q, k, v, visible(L, L)), module.out)


class Normalised(nn.Module):
    """Attends to a memory; half of the features of each head are of unit length."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.to_q, self.to_k, self.to_v = (nn.Parameter(torch.randn(width, width) / width**0.5) for _ in range(3))

    def project(self, x, weight):
        return rearrange(x @ weight, "b n (h half d) -> half b h n d", h=self.n_heads, half=2)

    def join(self, *halves):
        return torch.cat(halves, dim=-1)

    def forward(self, x, memory):
        (q_free, q_unit), (k_free, k_unit) = self.project(x, self.to_q), self.project(memory, self.to_k)
        v_free, v_unit = self.project(memory, self.to_v)
        q = self.join(q_free, F.normalize(q_unit, dim=-1))
        k = self.join(k_free, F.normalize(k_unit, dim=-1))
        v = self.join(v_free, F.normalize(v_unit, dim=-1))
        context = F.scaled_dot_product_attention(q, k, v)
        return rearrange(context, "b h n d -> b n (h d)")


class UnitOfKey(Normalised):
    def forward(self, x, memory):
        (q_free, q_unit), (k_free, k_unit) = self.project(x, self.to_q), self.project(memory, self.to_k)
        v_free, v_unit = self.project(memory, self.to_v)  # noqa: RUF059
        q = self.join(q_free, F.normalize(q_unit, dim=-1))
        k_unit = F.normalize(k_unit, dim=-1)
        k = torch.cat((k_free, k_unit), dim=-1)
        v = torch.cat((v_free, k_unit), dim=-1)  # wrong: AS805 part_of_the_key_in_the_value_of_a_memory
        context = F.scaled_dot_product_attention(q, k, v)
        return rearrange(context, "b h n d -> b n (h d)")


def _normalised(kind, B, H, Lq, Lk, Dk):
    return kind(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def wrong_part_of_the_key_in_the_value_of_a_memory(B, H, Lq, Lk, Dk):
    return _normalised(UnitOfKey, B, H, Lq, Lk, Dk)


def right_part_of_the_key_in_the_value_of_a_memory(B, H, Lq, Lk, Dk):
    return _normalised(Normalised, B, H, Lq, Lk, Dk)


def reference_part_of_the_key_in_the_value_of_a_memory(module, x, memory):
    def halves(tokens, weight):
        parts = torch.einsum("bli,ihcd->cbhld", tokens, weight.unflatten(-1, (module.n_heads, 2, -1)))
        return torch.cat((parts[0], parts[1] / parts[1].square().sum(-1, keepdim=True).sqrt()), dim=-1)

    return merge(attend(halves(x, module.to_q), halves(memory, module.to_k), halves(memory, module.to_v)))
