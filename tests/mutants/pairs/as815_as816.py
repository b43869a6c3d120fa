"""AS815 and AS816: residual connections that start from something else than their stream, or drop parts of it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.plain import attention, join, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 6},
    {"B": 3, "H": 2, "Lq": 9, "Lk": 11, "Dk": 5},
    {"B": 5, "H": 3, "Lq": 7, "Lk": 8, "Dk": 4},
)
PAIRS = [
    ("AS815", "stream_normalised_before_memory", *CROSS),
    ("AS815", "half_steps_around_attention", *SIZES),
    ("AS815", "spelled_norm_added", *SIZES),
    ("AS815", "memory_added_to_the_input", *CROSS),
    ("AS815", "feed_forward_after_norm", *SIZES),
    ("AS815", "last_sum_from_the_input", *SIZES),
    ("AS816", "sum_dropped_in_a_block", *SIZES),
    ("AS816", "sum_dropped_in_a_function", *SIZES),
    ("AS816", "dropped_after_adding_in_place", *CROSS),
]


class Attend(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x, memory=None):
        memory = x if memory is None else memory
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.q(x), *self.kv(memory).chunk(2, dim=-1))
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def _attend(layer: Attend, x: Tensor, memory: Tensor) -> Tensor:
    q, k, v = (split(t, layer.heads) for t in (layer.q(x), *layer.kv(memory).chunk(2, dim=-1)))
    return layer.out(join(attention(q, k, v)))


def _norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def _feed_forward(width):
    return nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))


class DecoderLayer(nn.Module):
    """Normalises what each of its three branches reads."""

    def __init__(self, width, heads):
        super().__init__()
        self.own, self.cross = Attend(width, heads), Attend(width, heads)
        self.ff = _feed_forward(width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))

    def forward(self, x, memory):
        x = x + self.own(self.norms[0](x))
        y = self.norms[1](x)
        x = x + self.cross(y, memory)
        return x + self.ff(self.norms[2](x))


class NormalisedStream(DecoderLayer):
    def forward(self, x, memory):
        x = x + self.own(self.norms[0](x))
        x = self.norms[1](x)  # wrong: AS815 stream_normalised_before_memory
        x = x + self.cross(x, memory)
        return x + self.ff(self.norms[2](x))


class AddedToTheInput(DecoderLayer):
    def forward(self, x, memory):
        own = x + self.own(self.norms[0](x))
        read = x + self.cross(self.norms[1](own), memory)  # wrong: AS815 memory_added_to_the_input
        return read + self.ff(self.norms[2](read))


def _of_memory(cls, B, H, Lq, Lk, Dk):
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def wrong_stream_normalised_before_memory(B, H, Lq, Lk, Dk):
    return _of_memory(NormalisedStream, B, H, Lq, Lk, Dk)


def right_stream_normalised_before_memory(B, H, Lq, Lk, Dk):
    return _of_memory(DecoderLayer, B, H, Lq, Lk, Dk)


def reference_stream_normalised_before_memory(layer, x, memory):
    y = _norm(layer.norms[0], x)
    x = x + _attend(layer.own, y, y)
    x = x + _attend(layer.cross, _norm(layer.norms[1], x), memory)
    return x + layer.ff(_norm(layer.norms[2], x))


def wrong_memory_added_to_the_input(B, H, Lq, Lk, Dk):
    return _of_memory(AddedToTheInput, B, H, Lq, Lk, Dk)


right_memory_added_to_the_input = right_stream_normalised_before_memory
reference_memory_added_to_the_input = reference_stream_normalised_before_memory


class SpeechBlock(nn.Module):
    """Attention between two feed-forward layers, each of which is added half."""

    def __init__(self, n_bands, n_head):
        super().__init__()
        self.mha = Attend(n_bands, n_head)
        self.ff_before, self.ff_after = _feed_forward(n_bands), _feed_forward(n_bands)
        self.ln_before, self.ln_mha, self.ln_after = (nn.LayerNorm(n_bands) for _ in range(3))

    def forward(self, frames):
        frames = frames + 0.5 * self.ff_before(self.ln_before(frames))
        frames = frames + self.mha(self.ln_mha(frames))
        return frames + 0.5 * self.ff_after(self.ln_after(frames))


class NormalisedFrames(SpeechBlock):
    def forward(self, frames):
        frames = frames + 0.5 * self.ff_before(self.ln_before(frames))
        frames = self.ln_mha(frames)  # wrong: AS815 half_steps_around_attention
        frames = frames + self.mha(frames)
        return frames + 0.5 * self.ff_after(self.ln_after(frames))


def wrong_half_steps_around_attention(B, H, L, Dk):
    return NormalisedFrames(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_half_steps_around_attention(B, H, L, Dk):
    return SpeechBlock(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_half_steps_around_attention(block, frames):
    frames = frames + block.ff_before(_norm(block.ln_before, frames)) / 2
    y = _norm(block.ln_mha, frames)
    frames = frames + _attend(block.mha, y, y)
    return frames + block.ff_after(_norm(block.ln_after, frames)) / 2


def rms(x, gain):
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-6) * gain


def _heads_of(x, w, heads):
    q, k, v = (x @ w).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    weights = torch.softmax(q @ k.mT * k.shape[-1] ** -0.5, dim=-1)
    return (weights @ v).transpose(1, 2).reshape(x.shape)


def tower(x, gains, mixing, width_up, width_down, n_heads):
    """Three branches, each of which reads a norm of the stream."""
    x = x + _heads_of(rms(x, gains[0]), mixing[0], n_heads)
    normed = rms(x, gains[1])
    x = x + F.silu(normed @ width_up) @ width_down
    return x + _heads_of(rms(x, gains[2]), mixing[1], n_heads)


def tower_from_norm(x, gains, mixing, width_up, width_down, n_heads):
    x = x + _heads_of(rms(x, gains[0]), mixing[0], n_heads)
    normed = rms(x, gains[1])
    x = normed + F.silu(normed @ width_up) @ width_down  # wrong: AS815 spelled_norm_added
    return x + _heads_of(rms(x, gains[2]), mixing[1], n_heads)


def _tower(function, B, H, L, Dk):
    D = H * Dk
    weights = (torch.rand(3, D) + 0.5, torch.randn(2, D, 3 * D) / D**0.5, torch.randn(D, 2 * D), torch.randn(2 * D, D))
    return function, (torch.randn(B, L, D), *weights), {"n_heads": H}


def wrong_spelled_norm_added(B, H, L, Dk):
    return _tower(tower_from_norm, B, H, L, Dk)


def right_spelled_norm_added(B, H, L, Dk):
    return _tower(tower, B, H, L, Dk)


def reference_spelled_norm_added(function, x, gains, mixing, width_up, width_down, n_heads):
    def attend(x, w):
        return join(attention(*(split(t, n_heads) for t in (x @ w).chunk(3, dim=-1))))

    def normed(x, gain):
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain

    x = x + attend(normed(x, gains[0]), mixing[0])
    hidden = normed(x, gains[1]) @ width_up
    x = x + (hidden * hidden.sigmoid()) @ width_down
    return x + attend(normed(x, gains[2]), mixing[1])


class Encoder(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.attn, self.mlp = Attend(d_model, n_head), _feed_forward(d_model)
        self.ln_1, self.ln_2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.drop = nn.Dropout(0.2)

    def forward(self, h):
        h = h + self.attn(self.ln_1(h))
        return h + self.mlp(self.ln_2(h))


class FeedForwardAfterNorm(Encoder):
    def forward(self, h):
        h = h + self.attn(self.ln_1(h))
        h = self.ln_2(h)  # wrong: AS815 feed_forward_after_norm
        return h + self.mlp(h)


class NormsAfterwards(Encoder):
    def forward(self, h):
        out = self.ln_1(h + self.attn(h))
        return self.ln_2(out + self.mlp(out))


class FromTheInput(Encoder):
    def forward(self, h):
        out = self.ln_1(h + self.attn(h))
        return self.ln_2(h + self.mlp(out))  # wrong: AS815 last_sum_from_the_input


def _encoder(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def _encoded(layer, h):
    y = _norm(layer.ln_1, h)
    h = h + _attend(layer.attn, y, y)
    return h + layer.mlp(_norm(layer.ln_2, h))


def wrong_feed_forward_after_norm(B, H, L, Dk):
    return _encoder(FeedForwardAfterNorm, B, H, L, Dk)


def right_feed_forward_after_norm(B, H, L, Dk):
    return _encoder(Encoder, B, H, L, Dk)


reference_feed_forward_after_norm = _encoded


def wrong_last_sum_from_the_input(B, H, L, Dk):
    return _encoder(FromTheInput, B, H, L, Dk)


def right_last_sum_from_the_input(B, H, L, Dk):
    return _encoder(NormsAfterwards, B, H, L, Dk)


def reference_last_sum_from_the_input(layer, h):
    out = _norm(layer.ln_1, h + _attend(layer.attn, h, h))
    return _norm(layer.ln_2, out + layer.mlp(out))


class DropsBranches(Encoder):
    def forward(self, h):
        h = h + self.drop(self.attn(self.ln_1(h)))
        return h + self.drop(self.mlp(self.ln_2(h)))


class DropsTheSum(Encoder):
    def forward(self, h):
        h = self.drop(h + self.attn(self.ln_1(h)))  # wrong: AS816 sum_dropped_in_a_block
        return h + self.drop(self.mlp(self.ln_2(h)))


def wrong_sum_dropped_in_a_block(B, H, L, Dk):
    return _encoder(DropsTheSum, B, H, L, Dk)


def right_sum_dropped_in_a_block(B, H, L, Dk):
    return _encoder(DropsBranches, B, H, L, Dk)


reference_sum_dropped_in_a_block = _encoded


class Pixels(nn.Module):
    """Rows of pixels attend to each other; a function adds what they read."""

    def __init__(self, channels, n_heads):
        super().__init__()
        self.attend = Attend(channels, n_heads)

    def forward(self, rows):
        return self.add(rows, self.attend(rows))

    def add(self, rows, update):
        return torch.add(rows, F.dropout(update, 0.3, self.training))


class DropsPixels(Pixels):
    def add(self, rows, update):
        return F.dropout(torch.add(rows, update), 0.3, self.training)  # wrong: AS816 sum_dropped_in_a_function


def wrong_sum_dropped_in_a_function(B, H, L, Dk):
    return _encoder(DropsPixels, B, H, L, Dk)


def right_sum_dropped_in_a_function(B, H, L, Dk):
    return _encoder(Pixels, B, H, L, Dk)


def reference_sum_dropped_in_a_function(module, rows):
    return rows + _attend(module.attend, rows, rows)


class Reader(nn.Module):
    """Latent queries read a memory in two steps."""

    def __init__(self, width, heads):
        super().__init__()
        self.steps = nn.ModuleList(Attend(width, heads) for _ in range(2))
        self.dropout = nn.Dropout(0.1)

    def forward(self, latents, memory):
        latents = latents.clone()
        for step in self.steps:
            latents += self.dropout(step(latents, memory))
        return latents


class DropsLatents(Reader):
    def forward(self, latents, memory):
        latents = latents.clone()
        for step in self.steps:
            latents += step(latents, memory)
            latents = self.dropout(latents)  # wrong: AS816 dropped_after_adding_in_place
        return latents


def wrong_dropped_after_adding_in_place(B, H, Lq, Lk, Dk):
    return _of_memory(DropsLatents, B, H, Lq, Lk, Dk)


def right_dropped_after_adding_in_place(B, H, Lq, Lk, Dk):
    return _of_memory(Reader, B, H, Lq, Lk, Dk)


def reference_dropped_after_adding_in_place(module, latents, memory):
    for step in module.steps:
        latents = latents + _attend(step, latents, memory)
    return latents
