"""AS207: scores are a sum of products, and not all of them are scaled as the first one is."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge, project, turned, visible

LATENT = (
    {"B": 2, "H": 3, "L": 7, "C": 9, "Dn": 5, "R": 4, "Dv": 6},
    {"B": 3, "H": 2, "L": 9, "C": 11, "Dn": 7, "R": 4, "Dv": 5},
    {"B": 5, "H": 4, "L": 6, "C": 10, "Dn": 7, "R": 3, "Dv": 8},
)
ABSORBED = (
    {"B": 2, "H": 3, "L": 7, "C": 9, "Dk": 5, "R": 6, "Dv": 8},
    {"B": 4, "H": 2, "L": 6, "C": 11, "Dk": 7, "R": 5, "Dv": 9},
    {"B": 3, "H": 5, "L": 6, "C": 13, "Dk": 8, "R": 7, "Dv": 9},
)
BOXES = (
    {"B": 2, "H": 3, "Lq": 5, "Lk": 8, "Dk": 4, "P": 7},
    {"B": 5, "H": 2, "Lq": 7, "Lk": 6, "Dk": 8, "P": 3},
    {"B": 3, "H": 4, "Lq": 9, "Lk": 5, "Dk": 6, "P": 8},
)
TIMES = (
    {"B": 2, "H": 4, "L": 7, "Dk": 5, "T": 3},
    {"B": 4, "H": 3, "L": 8, "Dk": 7, "T": 5},
    {"B": 5, "H": 2, "L": 9, "Dk": 6, "T": 4},
)
PAIRS = [
    ("AS207", "rotary_part_unscaled", *LATENT),
    ("AS207", "absorbed_scaled_twice", *ABSORBED),
    ("AS207", "boxes_unscaled", *BOXES),
    ("AS207", "times_by_own_width", *TIMES),
    ("AS207", "layers_scale_content_only", *LATENT),
    ("AS207", "third_product_unscaled", *BOXES),
]


def rotate(x):
    """Rotate (B, L, …, width) by the positions, in halves."""
    half = x.shape[-1] // 2
    positions = torch.arange(x.shape[1], dtype=x.dtype)
    angles = positions[:, None] * 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    cos, sin = (t.reshape(-1, *[1] * (x.ndim - 3), half) for t in (angles.cos(), angles.sin()))
    one, other = x.chunk(2, dim=-1)
    return torch.cat((one * cos - other * sin, other * cos + one * sin), dim=-1)


class MLA(nn.Module):
    """Heads have a part without positions and a rotated one, whose keys all heads share."""

    def __init__(self, dim, n_heads, kv_rank, nope, rope, value):
        super().__init__()
        self.n_heads, self.nope, self.rope, self.kv_rank = n_heads, nope, rope, kv_rank
        self.wq = nn.Linear(dim, n_heads * (nope + rope), bias=False)
        self.wkv_a = nn.Linear(dim, kv_rank + rope, bias=False)
        self.kv_norm = nn.RMSNorm(kv_rank)
        self.wkv_b = nn.Linear(kv_rank, n_heads * (nope + value), bias=False)
        self.wo = nn.Linear(n_heads * value, dim, bias=False)
        self.softmax_scale = (nope + rope) ** -0.5

    def scores(self, q_nope, q_pe, k_nope, k_pe):
        content = torch.einsum("bshd,bthd->bsht", q_nope, k_nope)
        position = torch.einsum("bshr,btr->bsht", q_pe, k_pe)
        return (content + position) * self.softmax_scale

    def forward(self, x):
        bsz, seqlen, _ = x.shape
        q = self.wq(x).view(bsz, seqlen, self.n_heads, self.nope + self.rope)
        q_nope, q_pe = torch.split(q, [self.nope, self.rope], dim=-1)
        kv, k_pe = torch.split(self.wkv_a(x), [self.kv_rank, self.rope], dim=-1)
        kv = self.wkv_b(self.kv_norm(kv)).view(bsz, seqlen, self.n_heads, -1)
        k_nope, v = kv[..., : self.nope], kv[..., self.nope :]
        scores = self.scores(q_nope, rotate(q_pe), k_nope, rotate(k_pe))
        mask = torch.full((seqlen, seqlen), float("-inf")).triu(1).to(x)
        weights = (scores + mask.unsqueeze(1)).softmax(dim=-1)
        return self.wo(torch.einsum("bsht,bthd->bshd", weights, v).flatten(2))


class MLAUnscaled(MLA):
    def scores(self, q_nope, q_pe, k_nope, k_pe):
        scores = torch.einsum("bshd,bthd->bsht", q_nope, k_nope) * self.softmax_scale
        scores += torch.einsum("bshr,btr->bsht", q_pe, k_pe)  # wrong: AS207 rotary_part_unscaled
        return scores


def _latent(cls, B, H, L, C, Dn, R, Dv):
    return (
        cls(H * Dv + 1, H, C, Dn, 2 * R, Dv),
        (torch.randn(B, L, H * Dv + 1),),
        {},
        ["causal", "scale=1/sqrt(Dn+2*R)"],
    )


def wrong_rotary_part_unscaled(B, H, L, C, Dn, R, Dv):
    return _latent(MLAUnscaled, B, H, L, C, Dn, R, Dv)


def right_rotary_part_unscaled(B, H, L, C, Dn, R, Dv):
    return _latent(MLA, B, H, L, C, Dn, R, Dv)


def joined_latent(layer, x):
    """The attention of one layer with joined heads and one product."""
    at, nope = torch.arange(x.shape[1]), layer.nope
    q, shared = heads(x, layer.wq, layer.n_heads), project(x, layer.wkv_a)
    kv = heads(layer.kv_norm(shared[..., : layer.kv_rank]), layer.wkv_b, layer.n_heads)
    turned_key = turned(shared[..., layer.kv_rank :], at)[:, None].expand(-1, layer.n_heads, -1, -1)
    q = torch.cat((q[..., :nope], turned(q[..., nope:], at)), dim=-1)
    k = torch.cat((kv[..., :nope], turned_key), dim=-1)
    return merge(attend(q, k, kv[..., nope:], visible(x.shape[1], x.shape[1])), layer.wo)


def reference_rotary_part_unscaled(module, x):
    return joined_latent(module, x)


class Absorbed(nn.Module):
    """What would make keys of latents is part of the queries; all heads share the latents and the rotated keys."""

    def __init__(self, width, num_heads, rank, nope, rope, value):
        super().__init__()
        self.num_heads, self.nope, self.scale = num_heads, nope, 1 / math.sqrt(nope + rope)
        self.q_proj = nn.Linear(width, num_heads * (nope + rope), bias=False)
        self.kv_proj, self.k_rope_proj = nn.Linear(width, rank, bias=False), nn.Linear(width, rope, bias=False)
        self.k_up = nn.Parameter(torch.randn(num_heads, nope, rank) / rank**0.5)
        self.v_up = nn.Parameter(torch.randn(num_heads, rank, value) / rank**0.5)

    def queries(self, x):
        q_nope, q_rope = self.q_proj(x).unflatten(-1, (self.num_heads, -1)).tensor_split((self.nope,), dim=-1)
        return torch.einsum("bihd,hdc->bihc", q_nope, self.k_up), rotate(q_rope)

    def forward(self, x):
        q_latent, q_rope = self.queries(x)
        latents, turned_keys = self.kv_proj(x), rotate(self.k_rope_proj(x))
        scores = torch.matmul(q_latent, latents.mT.unsqueeze(1))
        scores = scores + torch.matmul(q_rope, turned_keys.mT.unsqueeze(1))  # wrong: AS207 absorbed_scaled_twice
        weights = (scores * self.scale).softmax(dim=-1)
        return torch.einsum("bihj,bjc,hcd->bihd", weights, latents, self.v_up).flatten(2)


class AbsorbedTwice(Absorbed):
    def queries(self, x):
        q_latent, q_rope = super().queries(x)
        return q_latent, q_rope * self.scale


def _absorbed(cls, B, H, L, C, Dk, R, Dv):
    return cls(H * Dk + 1, H, C, Dk, 2 * R, Dv), (torch.randn(B, L, H * Dk + 1),), {}, ["scale=1/sqrt(Dk+2*R)"]


def wrong_absorbed_scaled_twice(B, H, L, C, Dk, R, Dv):
    return _absorbed(AbsorbedTwice, B, H, L, C, Dk, R, Dv)


def right_absorbed_scaled_twice(B, H, L, C, Dk, R, Dv):
    return _absorbed(Absorbed, B, H, L, C, Dk, R, Dv)


def reference_absorbed_scaled_twice(module, x):
    at, nope = torch.arange(x.shape[1]), module.nope
    q = heads(x, module.q_proj, module.num_heads)
    latents, shared = project(x, module.kv_proj)[:, None], turned(project(x, module.k_rope_proj), at)[:, None]
    k = torch.cat((latents @ module.k_up.mT, shared.expand(-1, module.num_heads, -1, -1)), -1)
    q = torch.cat((q[..., :nope], turned(q[..., nope:], at)), -1)
    return merge(attend(q, k, latents @ module.v_up))


def attend_to_boxes(q, k, v, q_box, k_box):
    """Queries and keys are of contents and of boxes, with heads in the batch."""
    scale = (q.shape[-1] + q_box.shape[-1]) ** -0.5
    content = torch.bmm(q * scale, k.transpose(1, 2))
    scores = torch.baddbmm(content, q_box * scale, k_box.transpose(1, 2))
    return torch.bmm(F.softmax(scores, dim=-1), v)


def attend_to_unscaled_boxes(q, k, v, q_box, k_box):
    """Queries and keys are of contents and of boxes, with heads in the batch."""
    scale = (q.shape[-1] + q_box.shape[-1]) ** -0.5
    content = torch.bmm(q * scale, k.transpose(1, 2))
    scores = torch.baddbmm(content, q_box, k_box.transpose(1, 2))  # wrong: AS207 boxes_unscaled
    return torch.bmm(F.softmax(scores, dim=-1), v)


def _boxes(function, B, H, Lq, Lk, Dk, P):
    q, q_box = torch.randn(B * H, Lq, Dk), torch.randn(B * H, Lq, P)
    k, v, k_box = torch.randn(B * H, Lk, Dk), torch.randn(B * H, Lk, Dk), torch.randn(B * H, Lk, P)
    return function, (q, k, v, q_box, k_box), {}, ["scale=1/sqrt(Dk+P)"]


def wrong_boxes_unscaled(B, H, Lq, Lk, Dk, P):
    return _boxes(attend_to_unscaled_boxes, B, H, Lq, Lk, Dk, P)


def right_boxes_unscaled(B, H, Lq, Lk, Dk, P):
    return _boxes(attend_to_boxes, B, H, Lq, Lk, Dk, P)


def reference_boxes_unscaled(function, q, k, v, q_box, k_box):
    q, k = torch.cat((q, q_box), -1), torch.cat((k, k_box), -1)
    return attend(q[None], k[None], v[None])[0]


class TimeAware(nn.Module):
    """Events attend to events by what they are, and by features of when they are."""

    def __init__(self, d_model, n_heads, d_time):
        super().__init__()
        self.n_heads, self.d_head = n_heads, d_model // n_heads
        self.query, self.key, self.value, self.out = (nn.Linear(d_model, d_model) for _ in range(4))
        self.time_query, self.time_key = (nn.Linear(d_time, d_model) for _ in range(2))

    def divisor(self):
        return math.sqrt(2 * self.d_head)

    def forward(self, events, times):
        content_q, content_k, v = (p(events).chunk(self.n_heads, dim=-1) for p in (self.query, self.key, self.value))
        time_q, time_k = (p(times).chunk(self.n_heads, dim=-1) for p in (self.time_query, self.time_key))
        contexts = []
        for h in range(self.n_heads):
            by_content = content_q[h] @ content_k[h].mT / math.sqrt(2 * self.d_head)
            by_time = time_q[h] @ time_k[h].mT / self.divisor()  # wrong: AS207 times_by_own_width
            contexts.append((by_content + by_time).softmax(dim=-1) @ v[h])
        return self.out(torch.cat(contexts, dim=-1))


class TimeByItsWidth(TimeAware):
    def divisor(self):
        return math.sqrt(self.d_head)


def _times(cls, B, H, L, Dk, T):
    return cls(H * Dk, H, T), (torch.randn(B, L, H * Dk), torch.randn(B, L, T)), {}, ["scale=1/sqrt(2*Dk)"]


def wrong_times_by_own_width(B, H, L, Dk, T):
    return _times(TimeByItsWidth, B, H, L, Dk, T)


def right_times_by_own_width(B, H, L, Dk, T):
    return _times(TimeAware, B, H, L, Dk, T)


def reference_times_by_own_width(module, events, times):
    q, k = (
        torch.cat((heads(events, content, module.n_heads), heads(times, time, module.n_heads)), dim=-1)
        for content, time in ((module.query, module.time_query), (module.key, module.time_key))
    )
    return merge(attend(q, k, heads(events, module.value, module.n_heads)), module.out)


class MLAInQueries(MLA):
    """The queries are scaled in place of the scores."""

    def scaled(self, q_nope, q_pe):
        return q_nope * self.softmax_scale, q_pe * self.softmax_scale

    def scores(self, q_nope, q_pe, k_nope, k_pe):
        q_nope, q_pe = self.scaled(q_nope, q_pe)
        scores = torch.einsum("bshd,bthd->bsht", q_nope, k_nope)
        by_position = q_pe @ k_pe.mT.unsqueeze(1)  # wrong: AS207 layers_scale_content_only
        return scores + by_position


class MLAInContentQueries(MLAInQueries):
    def scaled(self, q_nope, q_pe):
        return q_nope * self.softmax_scale, q_pe


class Block(nn.Module):
    def __init__(self, attention, dim, *sizes):
        super().__init__()
        self.attn_norm, self.ffn_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.attn = attention(dim, *sizes)
        self.up, self.gate, self.down = nn.Linear(dim, 2 * dim), nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def ffn(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))

    def forward(self, x):
        x = x + self.attn(self.attn_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class LanguageModel(nn.Module):
    """Two layers over embedded tokens."""

    vocabulary = 31

    def __init__(self, attention, dim, *sizes):
        super().__init__()
        self.embed = nn.Embedding(self.vocabulary, dim)
        self.layers = nn.ModuleList(Block(attention, dim, *sizes) for _ in range(2))
        self.norm, self.head = nn.RMSNorm(dim), nn.Linear(dim, self.vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def _language(attention, B, H, L, C, Dn, R, Dv):
    module = LanguageModel(attention, H * Dv + 1, H, C, Dn, 2 * R, Dv)
    return module, (torch.randint(LanguageModel.vocabulary, (B, L)),), {}, ["causal", "scale=1/sqrt(Dn+2*R)"]


def wrong_layers_scale_content_only(B, H, L, C, Dn, R, Dv):
    return _language(MLAInContentQueries, B, H, L, C, Dn, R, Dv)


def right_layers_scale_content_only(B, H, L, C, Dn, R, Dv):
    return _language(MLAInQueries, B, H, L, C, Dn, R, Dv)


def reference_layers_scale_content_only(module, tokens):
    x = module.embed.weight[tokens]
    for layer in module.layers:
        x = x + joined_latent(layer.attn, layer.attn_norm(x))
        x = x + layer.ffn(layer.ffn_norm(x))
    return module.head(module.norm(x))


class Decoder(nn.Module):
    """Object queries read an image: contents, learned references and sizes of boxes are compared."""

    def __init__(self, width, n_heads, d_box):
        super().__init__()
        self.n_heads, self.d_box = n_heads, d_box
        self.q_content, self.k_content, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.q_center, self.k_center, self.q_size, self.k_size = (nn.Linear(4, n_heads * d_box) for _ in range(4))

    def split(self, x):
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def logits(self, content, center, size):
        width = content[0].shape[-1] + 2 * self.d_box
        logits = torch.einsum("bhqd,bhkd->bhqk", *content)
        logits = logits + torch.einsum("bhqd,bhkd->bhqk", *center)
        logits = logits + torch.einsum("bhqd,bhkd->bhqk", *size)
        return logits / math.sqrt(width)

    def forward(self, objects, pixels, object_boxes, pixel_boxes):
        content = self.split(self.q_content(objects)), self.split(self.k_content(pixels))
        center = self.split(self.q_center(object_boxes)), self.split(self.k_center(pixel_boxes))
        size = self.split(self.q_size(object_boxes)), self.split(self.k_size(pixel_boxes))
        weights = self.logits(content, center, size).softmax(dim=-1)
        return self.o((weights @ self.split(self.v(pixels))).transpose(1, 2).flatten(2))


class DecoderOfLateSizes(Decoder):
    def logits(self, content, center, size):
        width = content[0].shape[-1] + 2 * self.d_box
        logits = torch.einsum("bhqd,bhkd->bhqk", *content)
        logits = logits + torch.einsum("bhqd,bhkd->bhqk", *center)
        logits = logits / math.sqrt(width)
        return logits + torch.einsum("bhqd,bhkd->bhqk", *size)  # wrong: AS207 third_product_unscaled


def _decoder(cls, B, H, Lq, Lk, Dk, P):
    args = torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), torch.rand(B, Lq, 4), torch.rand(B, Lk, 4)
    return cls(H * Dk, H, P), args, {}, ["scale=1/sqrt(Dk+2*P)"]


def wrong_third_product_unscaled(B, H, Lq, Lk, Dk, P):
    return _decoder(DecoderOfLateSizes, B, H, Lq, Lk, Dk, P)


def right_third_product_unscaled(B, H, Lq, Lk, Dk, P):
    return _decoder(Decoder, B, H, Lq, Lk, Dk, P)


def reference_third_product_unscaled(module, objects, pixels, object_boxes, pixel_boxes):
    of_objects = ((objects, module.q_content), (object_boxes, module.q_center), (object_boxes, module.q_size))
    of_pixels = ((pixels, module.k_content), (pixel_boxes, module.k_center), (pixel_boxes, module.k_size))
    q, k = (torch.cat([heads(x, layer, module.n_heads) for x, layer in one], -1) for one in (of_objects, of_pixels))
    return merge(attend(q, k, heads(pixels, module.v, module.n_heads)), module.o)
