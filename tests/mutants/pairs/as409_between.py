"""AS409: a slot between others that were written gets weight: memory is shifted early, or a slot is left out."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge, visible

WINDOWS = (
    {"B": 4, "H": 5, "L": 9, "Dk": 6, "W": 7},
    {"B": 5, "H": 3, "L": 10, "Dk": 8, "W": 6},
    {"B": 6, "H": 7, "L": 8, "Dk": 4, "W": 5},
)
PROMPTS = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 3, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 8, "Dk": 4})
PAIRS = [
    ("AS409", "shifted_a_step_early", *WINDOWS),
    ("AS409", "rolled_when_nearly_full", *WINDOWS),
    ("AS409", "slot_behind_prompt_left_out", *PROMPTS),
]


class Window:
    """The last tokens in slots; once all slots are written, they move up for the next token."""

    def __init__(self, like, size):
        self.size = size
        self.keys, self.values = (like.new_zeros(*like.shape[:2], size, like.shape[3]) for _ in range(2))

    def is_full(self, step):
        return step >= self.size

    def update(self, k, v, step):
        moved = torch.arange(self.size) + int(self.is_full(step))
        place = torch.tensor([min(step, self.size - 1)])
        self.keys = self.keys[:, :, moved % self.size].index_copy(2, place, k)
        self.values = self.values[:, :, moved % self.size].index_copy(2, place, v)
        return self.keys, self.values


class EarlyWindow(Window):
    def is_full(self, step):
        return step >= self.size - 1


class RightSteps(nn.Module):
    """Decodes token by token with the keys and values of a window."""

    window = Window

    def __init__(self, width, n_heads, size):
        super().__init__()
        self.n_heads, self.size = n_heads, size
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def weights(self, scores):
        return scores.softmax(dim=-1)

    def step(self, x, window, step):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        keys, values = window.update(k, v, step)
        scores = (q @ keys.mT) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(torch.arange(self.size) > step, -torch.inf)
        return self.out((self.weights(scores) @ values).transpose(1, 2).flatten(2))

    def forward(self, x):
        window = self.window(x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2), self.size)
        return torch.cat([self.step(x[:, i : i + 1], window, i) for i in range(x.shape[1])], dim=1)


class WrongSteps(RightSteps):
    window = EarlyWindow

    def weights(self, scores):
        return scores.softmax(dim=-1)  # wrong: AS409 shifted_a_step_early


def _decoding(cls, B, H, L, Dk, W):
    return cls(H * Dk, H, W), (torch.randn(B, L, H * Dk),)


def wrong_shifted_a_step_early(B, H, L, Dk, W):
    return _decoding(WrongSteps, B, H, L, Dk, W)


def right_shifted_a_step_early(B, H, L, Dk, W):
    return _decoding(RightSteps, B, H, L, Dk, W)


def reference_shifted_a_step_early(module, x):
    q, k, v = fused(x, module.qkv, module.n_heads)
    return merge(attend(q, k, v, visible(x.shape[1], x.shape[1], module.size)), module.out)


def _rolled(full, attention):
    """Return attention in which memory is rolled in place, and each token is written to the first free slot."""

    def attend_with(q, k, v, size):
        memory = torch.zeros(2, *k.shape[:2], size, k.shape[3], dtype=k.dtype)
        contexts = []
        for step in range(q.shape[2]):
            if step >= full(size):
                memory[:, :, :, :-1] = memory[:, :, :, 1:].clone()
            memory[0, :, :, min(step, size - 1)] = k[:, :, step]
            memory[1, :, :, min(step, size - 1)] = v[:, :, step]
            contexts.append(attention(q[:, :, step : step + 1], *memory, torch.arange(size) <= step))
        return torch.cat(contexts, dim=2)

    return attend_with


def _fused(q, k, v, keep):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep[None])


def wrong_rolled_when_nearly_full(B, H, L, Dk, W):
    def attention(q, k, v, keep):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=keep[None])  # wrong: AS409 rolled_when_nearly_full

    return _rolled(lambda size: size - 1, attention), (*(torch.randn(B, H, L, Dk) for _ in range(3)), W)


def right_rolled_when_nearly_full(B, H, L, Dk, W):
    return _rolled(lambda size: size, _fused), (*(torch.randn(B, H, L, Dk) for _ in range(3)), W)


def reference_rolled_when_nearly_full(attend_with, q, k, v, size):
    return attend(q, k, v, visible(q.shape[2], q.shape[2], size))


class RightPrompt(nn.Module):
    """A prompt is written to the first slots of a buffer in one call, and then a token in each step."""

    behind = 0

    def __init__(self, width, n_heads, slots):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.slots = slots

    def attended(self, q, keys, values, seen):
        scores = torch.einsum("bqhd,bkhd->bhqk", q, keys[:, : seen.shape[-1]]) * q.shape[-1] ** -0.5
        weights = torch.softmax(torch.where(seen, scores, torch.finfo(scores.dtype).min), dim=3)
        return torch.einsum("bhqk,bkhd->bqhd", weights, values[:, : seen.shape[-1]])

    def forward(self, x):
        tokens, prompt = x.shape[1], x.shape[1] - 3
        q = self.q(x).unflatten(-1, (self.n_heads, -1))
        k, v = self.kv(x).unflatten(-1, (2, self.n_heads, -1)).unbind(2)
        keys, values = (x.new_zeros(len(x), self.slots, *k.shape[2:]) for _ in range(2))
        keys[:, :prompt], values[:, :prompt] = k[:, :prompt], v[:, :prompt]
        causal = torch.ones(prompt, prompt, dtype=torch.bool).tril()
        contexts = [self.attended(q[:, :prompt], keys, values, causal)]
        for token in range(prompt, tokens):
            place = token + self.behind
            keys[:, place], values[:, place] = k[:, token], v[:, token]
            contexts.append(self.attended(q[:, token : token + 1], keys, values, torch.ones(1, place + 1).bool()))
        return self.out(torch.cat(contexts, dim=1).flatten(2))


class WrongPrompt(RightPrompt):
    behind = 1

    def attended(self, q, keys, values, seen):
        scores = torch.einsum("bqhd,bkhd->bhqk", q, keys[:, : seen.shape[-1]]) * q.shape[-1] ** -0.5
        scores = torch.where(seen, scores, torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores, dim=3)  # wrong: AS409 slot_behind_prompt_left_out
        return torch.einsum("bhqk,bkhd->bqhd", weights, values[:, : seen.shape[-1]])


def wrong_slot_behind_prompt_left_out(B, H, L, Dk):
    return WrongPrompt(H * Dk, H, 2 * L), (torch.randn(B, L, H * Dk),)


def right_slot_behind_prompt_left_out(B, H, L, Dk):
    return RightPrompt(H * Dk, H, 2 * L), (torch.randn(B, L, H * Dk),)


def reference_slot_behind_prompt_left_out(module, x):
    tokens = x.shape[1]
    q = module.q(x).unflatten(-1, (module.n_heads, -1)).transpose(1, 2)
    k, v = module.kv(x).unflatten(-1, (2, module.n_heads, -1)).permute(2, 0, 3, 1, 4)
    return merge(attend(q, k, v, visible(tokens, tokens)), module.out)
