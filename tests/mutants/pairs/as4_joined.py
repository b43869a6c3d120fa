"""AS401 and AS407: keys of several sequences are joined, and a mask has the tokens of one of them only."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, multihead, split

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
CROSS = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 11, "Lk": 7, "Dk": 8},
    {"B": 6, "H": 7, "Lq": 5, "Lk": 8, "Dk": 4},
)
TWO = (
    {"B": 4, "H": 5, "P": 7, "T": 9, "Dk": 6},
    {"B": 5, "H": 4, "P": 11, "T": 7, "Dk": 8},
    {"B": 6, "H": 7, "P": 5, "T": 8, "Dk": 4},
)
PAIRS = [
    ("AS401", "latents_after_tokens", *SELF),
    ("AS401", "learned_keys_in_front", *SELF),
    ("AS401", "padding_of_the_prompt", *CROSS),
    ("AS407", "image_before_prompt", *CROSS),
    ("AS407", "padded_at_the_other_end", *SELF),
    ("AS407", "pairs_and_memory", *SELF),
    ("AS407", "text_before_image", *TWO),
    ("AS407", "class_token_in_front", *SELF),
]


def random_keep(*shape):
    keep = torch.rand(shape) < 0.6
    keep[..., 0] = True
    keep[..., -1] = False
    keep[0, ..., 1], keep[1, ..., 1] = True, False
    return keep


class Resampler(nn.Module):
    """A few latents read the tokens and themselves, in two layers."""

    def __init__(self, dim, heads, latents=4):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(1, latents, dim))
        self.layers = nn.ModuleList(nn.MultiheadAttention(dim, heads, batch_first=True) for _ in range(2))

    def read(self, layer, latents, keys, seen):
        return layer(latents, keys, keys, key_padding_mask=~seen, need_weights=False)[0]

    def forward(self, tokens, keep):
        latents = self.latents.expand(len(tokens), -1, -1)
        seen = torch.cat([keep, keep.new_ones(latents.shape[:2])], dim=1)
        for layer in self.layers:
            latents = latents + self.read(layer, latents, torch.cat([tokens, latents], dim=1), seen)
        return latents


class InvertedResampler(Resampler):
    def read(self, layer, latents, keys, seen):
        return layer(latents, keys, keys, key_padding_mask=seen)[0]  # wrong: AS401 latents_after_tokens


def _resampler(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), random_keep(B, L)), {}, ["keep=keep"]


def wrong_latents_after_tokens(B, H, L, Dk):
    return _resampler(InvertedResampler, B, H, L, Dk)


def right_latents_after_tokens(B, H, L, Dk):
    return _resampler(Resampler, B, H, L, Dk)


def reference_latents_after_tokens(module, tokens, keep):
    latents = module.latents.expand(len(tokens), -1, -1)
    visible = torch.cat([keep, torch.ones(latents.shape[:2], dtype=torch.bool)], 1)[:, None, None]
    for layer in module.layers:
        read = torch.cat([tokens, latents], 1)
        weights, biases = layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3)
        q, k, v = (F.linear(x, w, b) for x, w, b in zip((latents, read, read), weights, biases, strict=True))
        latents = latents + layer.out_proj(multihead(q, k, v, layer.num_heads, keep=visible))
    return latents


class LearnedKeys(nn.Module):
    """Self-attention whose queries also see learned keys, which no padding hides."""

    def __init__(self, dim, heads, slots=3):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.slots = nn.Parameter(torch.randn(2, heads, slots, dim // heads))
        self.out = nn.Linear(dim, dim)

    def hides(self, padding):
        return F.pad(padding, (self.slots.shape[2], 0), value=False)

    def forward(self, x, padding):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        k, v = (torch.cat([s.expand(len(x), -1, -1, -1), t], 2) for s, t in zip(self.slots, (k, v), strict=True))
        scores = torch.matmul(q, k.mT) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(self.hides(padding)[:, None, None], float("-inf"))
        return self.out(torch.matmul(scores.softmax(-1), v).transpose(1, 2).flatten(2))


class InvertedLearnedKeys(LearnedKeys):
    def hides(self, padding):
        return F.pad(~padding, (self.slots.shape[2], 0), value=False)  # wrong: AS401 learned_keys_in_front


class LearnedKeysAfterwards(LearnedKeys):
    def hides(self, padding):
        return F.pad(padding, (0, self.slots.shape[2]), value=False)  # wrong: AS407 padded_at_the_other_end


def _learned_keys(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), ~random_keep(B, L)), {}, ["padding=drop"]


def wrong_learned_keys_in_front(B, H, L, Dk):
    return _learned_keys(InvertedLearnedKeys, B, H, L, Dk)


def right_learned_keys_in_front(B, H, L, Dk):
    return _learned_keys(LearnedKeys, B, H, L, Dk)


def reference_learned_keys_in_front(module, x, padding):
    q, k, v = (split(t, module.heads) for t in module.qkv(x).chunk(3, -1))
    slots = module.slots.unsqueeze(1).expand(-1, len(x), -1, -1, -1)
    seen = torch.cat([torch.ones(len(x), slots.shape[3], dtype=torch.bool), ~padding], 1)[:, None, None]
    out = attention(q, torch.cat([slots[0], k], 2), torch.cat([slots[1], v], 2), keep=seen)
    return module.out(out.transpose(1, 2).flatten(2))


def wrong_padded_at_the_other_end(B, H, L, Dk):
    return _learned_keys(LearnedKeysAfterwards, B, H, L, Dk)


right_padded_at_the_other_end = right_learned_keys_in_front
reference_padded_at_the_other_end = reference_learned_keys_in_front


class Joint(nn.Module):
    """Joint attention of the tokens of a prompt, which is padded, and of those of an image."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.of_image, self.of_prompt = nn.Linear(dim, 3 * dim), nn.Linear(dim, 3 * dim)
        self.to_image, self.to_prompt = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def visible(self, keep, image):
        return torch.cat([keep, keep.new_ones(image.shape[:2])], dim=1)

    def forward(self, image, prompt, keep):
        joint = torch.cat([self.of_prompt(prompt), self.of_image(image)], dim=1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in joint.chunk(3, dim=-1))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=self.visible(keep, image)[:, None, None, :])
        of_prompt, of_image = out.transpose(1, 2).flatten(2).split([prompt.shape[1], image.shape[1]], dim=1)
        return self.to_image(of_image), self.to_prompt(of_prompt)


class InvertedJoint(Joint):
    def visible(self, keep, image):
        return torch.cat([keep == 0, keep.new_ones(image.shape[:2])], dim=1)  # wrong: AS401 padding_of_the_prompt


class ImageFirst(Joint):
    def visible(self, keep, image):
        return torch.cat([keep.new_ones(image.shape[:2]), keep], dim=1)  # wrong: AS407 image_before_prompt


def _joint(cls, B, H, Lq, Lk, Dk):
    args = torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), random_keep(B, Lk)
    return cls(H * Dk, H), args, {}, ["keep=keep"]


def wrong_padding_of_the_prompt(B, H, Lq, Lk, Dk):
    return _joint(InvertedJoint, B, H, Lq, Lk, Dk)


def right_padding_of_the_prompt(B, H, Lq, Lk, Dk):
    return _joint(Joint, B, H, Lq, Lk, Dk)


def reference_padding_of_the_prompt(module, image, prompt, keep):
    joint = zip(module.of_prompt(prompt).chunk(3, -1), module.of_image(image).chunk(3, -1), strict=True)
    q, k, v = (torch.cat(pair, 1) for pair in joint)
    seen = torch.cat([keep, torch.ones(image.shape[:2], dtype=torch.bool)], 1)[:, None, None]
    out = multihead(q, k, v, module.heads, keep=seen)
    return module.to_image(out[:, prompt.shape[1] :]), module.to_prompt(out[:, : prompt.shape[1]])


def wrong_image_before_prompt(B, H, Lq, Lk, Dk):
    return _joint(ImageFirst, B, H, Lq, Lk, Dk)


right_image_before_prompt = right_padding_of_the_prompt
reference_image_before_prompt = reference_padding_of_the_prompt


def _with_memory(visible, slots=2):
    """Return attention of tokens to a memory of learned keys and to each other, by a mask of pairs."""

    def attend(q, k, v, memory, pairs):
        k, v = (torch.cat([memory.expand(len(q), -1, -1, -1), t], dim=2) for t in (k, v))
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
        scores = torch.where(visible(pairs, slots).unsqueeze(1), scores, -1e30)
        return torch.einsum("bhij,bhjd->bhid", torch.softmax(scores, dim=-1), v)

    return attend


def _pairs(visible, B, H, L, Dk):
    pairs = random_keep(B, L, L) | torch.eye(L, dtype=torch.bool)
    args = *(torch.randn(B, H, L, Dk) for _ in range(3)), torch.randn(H, 2, Dk), pairs
    return _with_memory(visible), args, {}, ["pairs=keep"]


def wrong_pairs_and_memory(B, H, L, Dk):
    def visible(pairs, slots):
        return torch.cat([pairs, pairs.new_ones(*pairs.shape[:2], slots)], -1)  # wrong: AS407 pairs_and_memory

    return _pairs(visible, B, H, L, Dk)


def right_pairs_and_memory(B, H, L, Dk):
    def visible(pairs, slots):
        return torch.cat([pairs.new_ones(*pairs.shape[:2], slots), pairs], -1)

    return _pairs(visible, B, H, L, Dk)


def reference_pairs_and_memory(attend, q, k, v, memory, pairs):
    k, v = (torch.cat([memory[None].expand(len(q), -1, -1, -1), t], 2) for t in (k, v))
    return attention(q, k, v, keep=torch.cat([torch.ones(len(q), q.shape[2], 2, dtype=torch.bool), pairs], -1)[:, None])


class Block(nn.Module):
    """Attention of the patches of an image to a text, which stands in front of them, and to each other."""

    def __init__(self, dim, heads):
        super().__init__()
        self.attend = nn.MultiheadAttention(dim, heads, batch_first=True)

    def expand(self, text_mask, length):
        expanded = torch.ones(len(text_mask), length, dtype=torch.bool)
        expanded[:, : text_mask.shape[1]] = text_mask
        return expanded

    def forward(self, patches, text, text_mask):
        keys = torch.cat([text, patches], dim=1)
        seen = self.expand(text_mask, keys.shape[1])
        return patches + self.attend(patches, keys, keys, key_padding_mask=~seen, need_weights=False)[0]


class BlockFilledAtTheEnd(Block):
    def expand(self, text_mask, length):
        expanded = torch.ones(len(text_mask), length, dtype=torch.bool)
        expanded[:, length - text_mask.shape[1] :] = text_mask  # wrong: AS407 text_before_image
        return expanded


def _block(cls, B, H, P, T, Dk):
    args = torch.randn(B, P, H * Dk), torch.randn(B, T, H * Dk), random_keep(B, T)
    return cls(H * Dk, H), args, {}, ["text_mask=keep"]


def wrong_text_before_image(B, H, P, T, Dk):
    return _block(BlockFilledAtTheEnd, B, H, P, T, Dk)


def right_text_before_image(B, H, P, T, Dk):
    return _block(Block, B, H, P, T, Dk)


def reference_text_before_image(module, patches, text, text_mask):
    layer, keys = module.attend, torch.cat([text, patches], 1)
    weights, biases = layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3)
    q, k, v = (F.linear(x, w, b) for x, w, b in zip((patches, keys, keys), weights, biases, strict=True))
    seen = torch.cat([text_mask, torch.ones(patches.shape[:2], dtype=torch.bool)], 1)[:, None, None]
    return patches + layer.out_proj(multihead(q, k, v, layer.num_heads, keep=seen))


class Encoder(nn.Module):
    """Self-attention of a class token and the words behind it."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.cls = nn.Parameter(torch.randn(dim))
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def visible(self, mask):
        return F.pad(mask, (1, 0), value=True)

    def forward(self, words, mask):
        x = torch.cat([self.cls.expand(len(words), 1, -1), words], dim=1)
        q, k, v = (linear(x).unflatten(-1, (self.heads, -1)) for linear in (self.q, self.k, self.v))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
        scores = scores + torch.where(self.visible(mask), 0.0, -1e9)[:, None, None]
        return self.out(torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(2))


class EncoderPaddedBehind(Encoder):
    def visible(self, mask):
        return F.pad(mask, (0, 1), value=True)  # wrong: AS407 class_token_in_front


def _encoder(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), random_keep(B, L)), {}, ["mask=keep"]


def wrong_class_token_in_front(B, H, L, Dk):
    return _encoder(EncoderPaddedBehind, B, H, L, Dk)


def right_class_token_in_front(B, H, L, Dk):
    return _encoder(Encoder, B, H, L, Dk)


def reference_class_token_in_front(module, words, mask):
    x = torch.cat([module.cls.expand(len(words), 1, -1), words], 1)
    seen = torch.cat([torch.ones(len(words), 1, dtype=torch.bool), mask], 1)[:, None, None]
    q, k, v = module.q(x), module.k(x), module.v(x)
    return module.out(multihead(q, k, v, module.heads, keep=seen))
