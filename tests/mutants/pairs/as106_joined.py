"""AS106: the tokens of two inputs attend in one sequence, and are split again in another order."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge, project

SIZES = (
    {"B": 4, "H": 3, "L": 11, "T": 7, "Dk": 8},
    {"B": 2, "H": 5, "L": 9, "T": 13, "Dk": 6},
    {"B": 3, "H": 4, "L": 10, "T": 6, "Dk": 7},
)
MAPS = (
    {"B": 4, "rows": 3, "columns": 5, "T": 7, "C": 9},
    {"B": 2, "rows": 4, "columns": 3, "T": 5, "C": 11},
    {"B": 3, "rows": 2, "columns": 7, "T": 4, "C": 10},
)
PAIRS = [
    ("AS106", "image_before_its_text", *SIZES),
    ("AS106", "streams_of_a_block", *SIZES),
    ("AS106", "words_beside_a_map", *MAPS),
    ("AS106", "sound_and_frames", *SIZES),
]


class JointAttention(nn.Module):
    """Image and text tokens attend to one another, and have projections of their own before and after it."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv, self.add_qkv = nn.Linear(dim, 3 * dim), nn.Linear(dim, 3 * dim)
        self.to_out, self.to_add_out = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def apart(self, out, image, text):
        return out[:, : image.shape[1]], out[:, image.shape[1] :]

    def forward(self, image, text):
        both = zip(self.to_qkv(image).chunk(3, dim=-1), self.add_qkv(text).chunk(3, dim=-1), strict=True)
        q, k, v = (torch.cat(pair, dim=1).unflatten(-1, (self.heads, -1)).transpose(1, 2) for pair in both)
        out = F.scaled_dot_product_attention(q, k, v)
        image, text = self.apart(out.transpose(1, 2).flatten(2), image, text)
        return self.to_out(image), self.to_add_out(text)


class JointAttentionBackwards(JointAttention):
    def apart(self, out, image, text):
        length = text.shape[1]
        return out[:, length:], out[:, :length]  # wrong: AS106 image_before_its_text


def _streams(cls, B, H, L, T, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(B, T, H * Dk)), {}


def wrong_image_before_its_text(B, H, L, T, Dk):
    return _streams(JointAttentionBackwards, B, H, L, T, Dk)


def right_image_before_its_text(B, H, L, T, Dk):
    return _streams(JointAttention, B, H, L, T, Dk)


def of_both(first, second, first_qkv, second_qkv, heads):
    """Return the contexts of the tokens of two inputs that attend to all tokens of both."""
    (q1, k1, v1), (q2, k2, v2) = fused(first, first_qkv, heads), fused(second, second_qkv, heads)
    k, v = torch.cat((k1, k2), dim=2), torch.cat((v1, v2), dim=2)
    return merge(attend(q1, k, v)), merge(attend(q2, k, v))


def reference_image_before_its_text(module, image, text):
    of_image, _ = of_both(image, text, module.to_qkv, module.add_qkv, module.heads)
    return project(of_image, module.to_out)


class Stream(nn.Module):
    """What the tokens of one kind have for themselves."""

    def __init__(self, dim):
        super().__init__()
        self.norm, self.qkv, self.proj = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def updated(self, x, attn):
        x = x + self.proj(attn)
        return x + self.mlp(x)


class DoubleStream(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.txt, self.img = Stream(dim), Stream(dim)

    def apart(self, attn, txt, img):
        return attn.split((txt.shape[1], img.shape[1]), dim=1)

    def forward(self, img, txt):
        qkv = torch.cat((self.txt.qkv(self.txt.norm(txt)), self.img.qkv(self.img.norm(img))), dim=1)
        q, k, v = rearrange(qkv, "B L (K H D) -> K B H L D", K=3, H=self.heads)
        attn = rearrange(torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v, "B H L D -> B L (H D)")
        txt_attn, img_attn = self.apart(attn, txt, img)
        return self.img.updated(img, img_attn), self.txt.updated(txt, txt_attn)


class DoubleStreamBackwards(DoubleStream):
    def apart(self, attn, txt, img):
        img_attn, txt_attn = attn.split((img.shape[1], txt.shape[1]), dim=1)  # wrong: AS106 streams_of_a_block
        return txt_attn, img_attn


def wrong_streams_of_a_block(B, H, L, T, Dk):
    return _streams(DoubleStreamBackwards, B, H, L, T, Dk)


def right_streams_of_a_block(B, H, L, T, Dk):
    return _streams(DoubleStream, B, H, L, T, Dk)


def reference_streams_of_a_block(module, img, txt):
    normed = module.img.norm(img), module.txt.norm(txt)
    context, _ = of_both(*normed, module.img.qkv, module.txt.qkv, module.heads)
    img = img + project(context, module.img.proj)
    return img + module.img.mlp(img)


class MapAndWords(nn.Module):
    """The pixels of a map and words attend together, channels first, with one head."""

    def __init__(self, channels):
        super().__init__()
        self.norm, self.qkv = nn.GroupNorm(1, channels), nn.Conv1d(channels, 3 * channels, 1)
        self.of_map, self.of_words = nn.Conv2d(channels, channels, 1), nn.Conv1d(channels, channels, 1)

    def apart(self, h, pixels, words):
        return h[..., words:], h[..., :words]

    def forward(self, x, words):
        both = torch.cat((words, self.norm(x).flatten(2)), dim=2)
        q, k, v = self.qkv(both).chunk(3, dim=1)
        weights = torch.einsum("bct,bcs->bts", q * q.shape[1] ** -0.5, k).softmax(-1)
        h = torch.einsum("bts,bcs->bct", weights, v)
        pixels, rest = self.apart(h, x[0, 0].numel(), words.shape[2])
        return x + self.of_map(pixels.unflatten(2, x.shape[2:])), words + self.of_words(rest)


class MapAndWordsBackwards(MapAndWords):
    def apart(self, h, pixels, words):
        return h.tensor_split((pixels,), dim=-1)  # wrong: AS106 words_beside_a_map


def _map(cls, B, rows, columns, T, C):
    return cls(C), (torch.randn(B, C, rows, columns), torch.randn(B, C, T)), {}


def wrong_words_beside_a_map(B, rows, columns, T, C):
    return _map(MapAndWordsBackwards, B, rows, columns, T, C)


def right_words_beside_a_map(B, rows, columns, T, C):
    return _map(MapAndWords, B, rows, columns, T, C)


def reference_words_beside_a_map(module, x, words):
    pixels = module.norm(x).flatten(2).mT
    every = torch.cat((pixels, words.mT), 1)
    (wq, wk, wv), (bq, bk, bv) = module.qkv.weight.squeeze(-1).chunk(3), module.qkv.bias.chunk(3)
    scores = (pixels @ wq.T + bq) @ (every @ wk.T + bk).mT / math.sqrt(x.shape[1])
    weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
    out = weights @ (every @ wv.T + bv) @ module.of_map.weight[..., 0, 0].T + module.of_map.bias
    return x + out.mT.unflatten(-1, x.shape[2:])


def joint(apart, sound, frames, w_in, w_out):
    """Attend over both, (tokens, B, D), with w_in (3, D, H, Dk); w_out (2, H, Dk, D) has a part for each."""
    q, k, v = torch.einsum("nbc,tchd->tnbhd", torch.cat((sound, frames)), w_in)
    weights = torch.einsum("qbhd,kbhd->bhqk", q, k).div(q.shape[-1] ** 0.5).softmax(-1)
    parts = apart(torch.einsum("bhqk,kbhd->qbhd", weights, v), len(sound), len(frames))
    return tuple(x + torch.einsum("nbhd,hdc->nbc", *own) for x, *own in zip((sound, frames), parts, w_out, strict=True))


def in_order(out, of_sound, of_frames):
    return out.narrow(0, 0, of_sound), out.narrow(0, of_sound, of_frames)


def backwards(out, of_sound, of_frames):
    return out.narrow(0, of_frames, of_sound), out.narrow(0, 0, of_frames)  # wrong: AS106 sound_and_frames


def _sound(function, B, H, L, T, Dk):
    D = H * Dk
    weights = torch.randn(3, D, H, Dk) / D**0.5, torch.randn(2, H, Dk, D) / D**0.5
    return function, (torch.randn(L, B, D), torch.randn(T, B, D), *weights), {}


def wrong_sound_and_frames(B, H, L, T, Dk):
    return _sound(partial(joint, backwards), B, H, L, T, Dk)


def right_sound_and_frames(B, H, L, T, Dk):
    return _sound(partial(joint, in_order), B, H, L, T, Dk)


def reference_sound_and_frames(function, sound, frames, w_in, w_out):
    out = sound.clone()
    for element in range(sound.shape[1]):
        both = torch.cat((sound[:, element], frames[:, element]))
        for h in range(w_in.shape[2]):
            wq, wk, wv = w_in[:, :, h]
            scores = (sound[:, element] @ wq) @ (both @ wk).T / math.sqrt(wq.shape[1])
            weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
            out[:, element] += weights @ (both @ wv) @ w_out[0, h]
    return out
