"""AS106: learned tokens are joined with those of the input, and tokens of the input are cut off in their place."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge, project
from tests.mutants.plain import multihead

SIZES = (
    {"B": 4, "H": 5, "L": 11, "Dk": 6, "R": 3},
    {"B": 5, "H": 3, "L": 14, "Dk": 8, "R": 2},
    {"B": 6, "H": 4, "L": 13, "Dk": 7, "R": 5},
)
SELF = ({"B": 5, "H": 2, "L": 9, "Dk": 7}, {"B": 4, "H": 3, "L": 11, "Dk": 6}, {"B": 6, "H": 4, "L": 13, "Dk": 8})
PAIRS = [
    ("AS106", "registers_of_two_blocks", *SIZES),
    ("AS106", "memory_tokens_narrowed", *SIZES),
    ("AS106", "special_tokens_split_off", *SIZES),
    ("AS106", "prompts_in_einsum", *SIZES),
    ("AS106", "registers_behind_the_stream", *SIZES),
    ("AS106", "last_pixels_left_out", *SIZES),
    ("AS106", "one_class_token", *SELF),
    ("AS106", "residual_outside", *SIZES),
]


class Block(nn.Module):
    """Attention and a feed-forward network, each with a norm before it and a residual connection."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def attention(self, x):
        B, N, D = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        attn = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        return self.proj((attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, N, D))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Encoder(nn.Module):
    """Registers are joined in front of the patches, and left out of the features."""

    depth = 2

    def __init__(self, width, heads, registers):
        super().__init__()
        self.registers = nn.Parameter(torch.randn(1, registers, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(self.depth))
        self.norm = nn.LayerNorm(width)

    def patches(self, x, count):
        return x[:, self.registers.shape[1] :]

    def forward(self, x):
        count = x.shape[1]
        x = torch.cat((self.registers.expand(x.shape[0], -1, -1), x), dim=1)
        for block in self.blocks:
            x = block(x)
        return self.norm(self.patches(x, count))


class EncoderOfFirst(Encoder):
    def patches(self, x, count):
        return x[:, :count]  # wrong: AS106 registers_of_two_blocks


def _joined(cls, B, H, L, Dk, R):
    return cls(H * Dk, H, R), (torch.randn(B, L, H * Dk),), {}


def wrong_registers_of_two_blocks(B, H, L, Dk, R):
    return _joined(EncoderOfFirst, B, H, L, Dk, R)


def right_registers_of_two_blocks(B, H, L, Dk, R):
    return _joined(Encoder, B, H, L, Dk, R)


def _normed(x, norm):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def reference_registers_of_two_blocks(module, x):
    count = module.registers.shape[1]
    stream = torch.stack([torch.cat((module.registers[0], element)) for element in x])
    for block in module.blocks:
        stream = stream + merge(attend(*fused(_normed(stream, block.norm1), block.qkv, block.heads)), block.proj)
        wide, _, narrow = block.mlp
        hidden = project(_normed(stream, block.norm2), wide)
        stream = stream + project(hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2, narrow)
    return torch.stack([_normed(stream[:, token], module.norm) for token in range(count, stream.shape[1])], dim=1)


class MemoryTokens(nn.Module):
    """Memory tokens take part in torch's fused attention, and stand behind the tokens of the input."""

    def __init__(self, width, heads, count):
        super().__init__()
        self.heads = heads
        self.memory = nn.Parameter(torch.randn(count, width))
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_kv = nn.Linear(width, 2 * width, bias=False)
        self.to_out = nn.Linear(width, width)

    def without_memory(self, out):
        return out.narrow(1, 0, out.size(1) - len(self.memory))

    def forward(self, x):
        x = torch.cat([x, self.memory.expand(len(x), *self.memory.shape)], dim=1)
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.to_q(x), *self.to_kv(x).chunk(2, dim=-1))
        )
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.to_out(self.without_memory(out))


class MemoryTokensOfFront(MemoryTokens):
    def without_memory(self, out):
        count = len(self.memory)
        return out.narrow(1, count, out.size(1) - count)  # wrong: AS106 memory_tokens_narrowed


def wrong_memory_tokens_narrowed(B, H, L, Dk, R):
    return _joined(MemoryTokensOfFront, B, H, L, Dk, R)


def right_memory_tokens_narrowed(B, H, L, Dk, R):
    return _joined(MemoryTokens, B, H, L, Dk, R)


def reference_memory_tokens_narrowed(module, x):
    both = torch.stack([torch.cat((element, module.memory)) for element in x])
    key, value = module.to_kv.weight.chunk(2)
    context = multihead(x @ module.to_q.weight.T, both @ key.T, both @ value.T, module.heads)
    return project(context, module.to_out)


class Dense(nn.Module):
    """A layer of torch's over special tokens and patches; a linear layer says what each patch shows."""

    def __init__(self, width, heads, special):
        super().__init__()
        self.special = nn.Parameter(torch.randn(1, special, width))
        self.layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, 17)

    def split(self, x, special, patches):
        return x.split([special, patches], dim=1)[1]

    def forward(self, patches):
        x = torch.cat([self.special.repeat(patches.size(0), 1, 1), patches], dim=1)
        return self.head(self.split(self.layer(x), self.special.size(1), patches.size(1)))


class DenseOfFirst(Dense):
    def split(self, x, special, patches):
        return x.split([patches, special], dim=1)[0]  # wrong: AS106 special_tokens_split_off


def wrong_special_tokens_split_off(B, H, L, Dk, R):
    return _joined(DenseOfFirst, B, H, L, Dk, R)


def right_special_tokens_split_off(B, H, L, Dk, R):
    return _joined(Dense, B, H, L, Dk, R)


def reference_special_tokens_split_off(module, patches):
    layer = module.layer
    attention = layer.self_attn
    both = torch.stack([torch.cat((module.special[0], element)) for element in patches])
    (wq, wk, wv), (bq, bk, bv) = attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3)
    context = multihead(patches @ wq.T + bq, both @ wk.T + bk, both @ wv.T + bv, attention.num_heads)
    x = _normed(patches + project(context, attention.out_proj), layer.norm1)
    hidden = project(x, layer.linear1).clamp(min=0)
    return project(_normed(x + project(hidden, layer.linear2), layer.norm2), module.head)


def prompted(x, prompts, w_qkv, w_out):
    """Attend over prompts and the tokens after them; w_qkv is (3, H, D, Dk), w_out (H, Dk, D)."""
    tokens = torch.cat((prompts.unsqueeze(0).expand(x.shape[0], -1, -1), x), 1)
    q, k, v = torch.einsum("bnc,thcd->tbhnd", tokens, w_qkv).unbind(0)
    weights = torch.einsum("bhid,bhjd->bhij", q, k).div(math.sqrt(q.shape[-1])).softmax(-1)
    tokens = tokens + torch.einsum("bhij,bhjd,hdc->bic", weights, v, w_out)
    return tokens[:, -x.shape[1] :]


def prompted_at_end(x, prompts, w_qkv, w_out):
    """Attend over prompts and the tokens after them; w_qkv is (3, H, D, Dk), w_out (H, Dk, D)."""
    tokens = torch.cat((prompts.unsqueeze(0).expand(x.shape[0], -1, -1), x), 1)
    q, k, v = torch.einsum("bnc,thcd->tbhnd", tokens, w_qkv).unbind(0)
    weights = torch.einsum("bhid,bhjd->bhij", q, k).div(math.sqrt(q.shape[-1])).softmax(-1)
    tokens = tokens + torch.einsum("bhij,bhjd,hdc->bic", weights, v, w_out)
    return tokens[:, : -len(prompts)]  # wrong: AS106 prompts_in_einsum


def _prompted(function, B, H, L, Dk, R):
    D = H * Dk
    weights = torch.randn(3, H, D, Dk) / math.sqrt(D), torch.randn(H, Dk, D) / math.sqrt(D)
    return function, (torch.randn(B, L, D), torch.randn(R, D), *weights), {}


def wrong_prompts_in_einsum(B, H, L, Dk, R):
    return _prompted(prompted_at_end, B, H, L, Dk, R)


def right_prompts_in_einsum(B, H, L, Dk, R):
    return _prompted(prompted, B, H, L, Dk, R)


def reference_prompts_in_einsum(function, x, prompts, w_qkv, w_out):
    out = x.clone()
    for element, tokens in enumerate(x):
        both = torch.cat((prompts, tokens))
        for wq, wk, wv, wo in zip(*w_qkv, w_out, strict=True):
            scores = (tokens @ wq) @ (both @ wk).T / math.sqrt(wq.shape[1])
            weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
            out[element] += weights @ (both @ wv) @ wo
    return out


class StreamFirst(Encoder):
    """The registers stand behind the patches."""

    depth = 1

    def patches(self, x, count):
        return x[:, :count]

    def forward(self, x):
        count = x.shape[1]
        x = torch.cat((x, self.registers.expand(x.shape[0], -1, -1)), dim=1)
        for block in self.blocks:
            x = block(x)
        return self.patches(self.norm(x), count)


class StreamLast(StreamFirst):
    def patches(self, x, count):
        return x[:, -count:]  # wrong: AS106 registers_behind_the_stream


def wrong_registers_behind_the_stream(B, H, L, Dk, R):
    return _joined(StreamLast, B, H, L, Dk, R)


def right_registers_behind_the_stream(B, H, L, Dk, R):
    return _joined(StreamFirst, B, H, L, Dk, R)


def reference_registers_behind_the_stream(module, x):
    both = torch.stack([torch.cat((element, module.registers[0])) for element in x])
    (block,) = module.blocks
    both = both + merge(attend(*fused(_normed(both, block.norm1), block.qkv, block.heads)), block.proj)
    hidden = project(_normed(both, block.norm2), block.mlp[0])
    both = both + project(hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2, block.mlp[2])
    return torch.stack([_normed(both[:, token], module.norm) for token in range(x.shape[1])], dim=1)


class Pixels(nn.Module):
    """Registers and the pixels of a map, channels first, with one head; only the pixels are returned."""

    def __init__(self, channels, registers):
        super().__init__()
        self.first = nn.Parameter(torch.randn(channels, registers))
        self.qkv, self.out = nn.Conv1d(channels, 3 * channels, 1), nn.Conv1d(channels, channels, 1)

    def pixels(self, tokens, registers):
        return tokens[:, :, registers:]

    def forward(self, x):
        tokens = torch.cat((self.first.expand(x.shape[0], -1, -1), x), dim=2)
        q, k, v = self.qkv(tokens).chunk(3, dim=1)
        weights = (q.transpose(1, 2) @ k * q.shape[1] ** -0.5).softmax(dim=2)
        return self.out(self.pixels(tokens + v @ weights.transpose(1, 2), self.first.shape[1]))


class PixelsBeforeLast(Pixels):
    def pixels(self, tokens, registers):
        return tokens[..., :-registers]  # wrong: AS106 last_pixels_left_out


def _pixels(cls, B, H, L, Dk, R):
    return cls(H * Dk, R), (torch.randn(B, H * Dk, L),), {}


def wrong_last_pixels_left_out(B, H, L, Dk, R):
    return _pixels(PixelsBeforeLast, B, H, L, Dk, R)


def right_last_pixels_left_out(B, H, L, Dk, R):
    return _pixels(Pixels, B, H, L, Dk, R)


def reference_last_pixels_left_out(module, x):
    x = x.mT
    both = torch.stack([torch.cat((module.first.T, element)) for element in x])
    (wq, wk, wv), (bq, bk, bv) = module.qkv.weight.squeeze(-1).chunk(3), module.qkv.bias.chunk(3)
    context = x + multihead(x @ wq.T + bq, both @ wk.T + bk, both @ wv.T + bv, 1)
    return (context @ module.out.weight.squeeze(-1).T + module.out.bias).mT


class PatchFeatures(nn.Module):
    """A class token is joined in front of the patches; only the patches' features are returned."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.cls_token = nn.Parameter(torch.randn(1, 1, width))
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def without_class(self, tokens):
        return tokens[:, 1:]

    def forward(self, patches):
        tokens = torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], dim=1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(tokens).chunk(3, dim=-1))
        context = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.without_class(tokens + self.proj(context))


class PatchFeaturesBeforeLast(PatchFeatures):
    def without_class(self, tokens):
        return tokens[:, :-1]  # wrong: AS106 one_class_token


def _features(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_one_class_token(B, H, L, Dk):
    return _features(PatchFeaturesBeforeLast, B, H, L, Dk)


def right_one_class_token(B, H, L, Dk):
    return _features(PatchFeatures, B, H, L, Dk)


def reference_one_class_token(module, patches):
    tokens = torch.stack([torch.cat((module.cls_token[0], element)) for element in patches])
    tokens = tokens + merge(attend(*fused(tokens, module.qkv, module.heads)), module.proj)
    return torch.stack([tokens[:, 1 + patch] for patch in range(patches.shape[1])], dim=1)


class RegisterAttention(nn.Module):
    """Registers take part in the attention of one layer; the residual connection is of the tokens alone."""

    def __init__(self, width, heads, count):
        super().__init__()
        self.heads = heads
        self.registers = nn.Parameter(torch.randn(1, count, width))
        self.in_proj, self.out_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def attend(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.in_proj(x).chunk(3, dim=-1))
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def update(self, out, length):
        return out[:, -length:]

    def forward(self, x):
        joined = torch.cat([self.registers.expand(x.size(0), -1, -1), x], dim=1)
        return x + self.update(self.attend(joined), x.size(1))


class RegisterAttentionOfFirst(RegisterAttention):
    def update(self, out, length):
        return out[:, :length]  # wrong: AS106 residual_outside


def wrong_residual_outside(B, H, L, Dk, R):
    return _joined(RegisterAttentionOfFirst, B, H, L, Dk, R)


def right_residual_outside(B, H, L, Dk, R):
    return _joined(RegisterAttention, B, H, L, Dk, R)


def reference_residual_outside(module, x):
    both = torch.stack([torch.cat((module.registers[0], element)) for element in x])
    (wq, wk, wv), (bq, bk, bv) = module.in_proj.weight.chunk(3), module.in_proj.bias.chunk(3)
    context = multihead(x @ wq.T + bq, both @ wk.T + bk, both @ wv.T + bv, module.heads)
    return x + project(context, module.out_proj)
