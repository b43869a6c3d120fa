"""AS201: queries also attend to a learned prompt, whose scores are scaled by the model's width."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge, visible

SIZES = (
    {"B": 2, "H": 4, "L": 7, "N": 6, "Dk": 5},
    {"B": 5, "H": 2, "L": 9, "N": 3, "Dk": 8},
    {"B": 4, "H": 3, "L": 8, "N": 5, "Dk": 6},
)
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 9, "N": 6, "Dk": 3},
    {"B": 3, "H": 2, "Lq": 8, "Lk": 7, "N": 4, "Dk": 6},
    {"B": 5, "H": 3, "Lq": 4, "Lk": 9, "N": 7, "Dk": 8},
)
PAIRS = [
    ("AS201", "adapter_scores", *SIZES),
    ("AS201", "prefix_beside_fused", *SIZES),
    ("AS201", "prompts_of_upper_layers", *SIZES),
    ("AS201", "memory_beside_source", *CROSS),
]
CLAIMS = ["scale=1/sqrt(Dk)"]


class AdapterAttention(nn.Module):
    """Causal attention, to which attention over an adaption prompt is added, gated for each head."""

    def __init__(self, dim, n_heads, prompt_length):
        super().__init__()
        self.dim, self.n_heads, self.head_dim = dim, n_heads, dim // n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.adapter = nn.Parameter(torch.randn(prompt_length, dim))
        self.gate = nn.Parameter(torch.ones(1, n_heads, 1, 1))

    def prompt_scores(self, xq, adapter_k):
        return torch.matmul(xq, adapter_k.transpose(2, 3)) / math.sqrt(self.head_dim)

    def forward(self, x):
        bsz, seqlen, _ = x.shape
        xq, xk, xv = (w(x).view(bsz, seqlen, self.n_heads, self.head_dim) for w in (self.wq, self.wk, self.wv))
        adapter_k, adapter_v = (
            w(self.adapter).view(1, -1, self.n_heads, self.head_dim).repeat(bsz, 1, 1, 1).transpose(1, 2)
            for w in (self.wk, self.wv)
        )
        xq, keys, values = xq.transpose(1, 2), xk.transpose(1, 2), xv.transpose(1, 2)
        scores = torch.matmul(xq, keys.transpose(2, 3)) / math.sqrt(self.head_dim)
        scores = scores + torch.full((seqlen, seqlen), float("-inf")).triu(1).to(x)
        output = torch.matmul(F.softmax(scores, dim=-1), values)
        weights = self.gate * F.softmax(self.prompt_scores(xq, adapter_k), dim=-1)
        output = output + torch.matmul(weights, adapter_v)
        return self.wo(output.transpose(1, 2).reshape(bsz, seqlen, -1))


class AdapterByWidth(AdapterAttention):
    def prompt_scores(self, xq, adapter_k):
        return torch.matmul(xq, adapter_k.transpose(2, 3)) / math.sqrt(self.dim)  # wrong: AS201 adapter_scores


def _adapter(cls, B, H, L, N, Dk):
    return cls(H * Dk, H, N), (torch.randn(B, L, H * Dk),), {}, ["causal", *CLAIMS]


def wrong_adapter_scores(B, H, L, N, Dk):
    return _adapter(AdapterByWidth, B, H, L, N, Dk)


def right_adapter_scores(B, H, L, N, Dk):
    return _adapter(AdapterAttention, B, H, L, N, Dk)


def reference_adapter_scores(module, x):
    q, k, v = (heads(x, layer, module.n_heads) for layer in (module.wq, module.wk, module.wv))
    prompt = module.adapter.expand(len(x), -1, -1)
    context = attend(q, k, v, visible(x.shape[1], x.shape[1]))
    of_prompt = attend(q, heads(prompt, module.wk, module.n_heads), heads(prompt, module.wv, module.n_heads))
    return merge(context + module.gate * of_prompt, module.wo)


class Prefixed(nn.Module):
    """torch's attention over the tokens; a prefix of learned tokens has a softmax of its own."""

    def __init__(self, embed_dim, num_heads, num_prefix):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.kv_proj = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, 2 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.prefix = nn.Embedding(num_prefix, embed_dim)
        self.gate = nn.Parameter(torch.ones(num_heads))

    def scale(self, x, q):
        return q.shape[-1] ** -0.5

    def keys_and_values(self, x):
        return self.kv_proj(x).unflatten(-1, (2, self.num_heads, -1)).unbind(-3)

    def forward(self, x):
        q = self.q_proj(x).unflatten(-1, (self.num_heads, -1))
        k, v = self.keys_and_values(x)
        context = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)
        prefix_k, prefix_v = self.keys_and_values(self.prefix.weight)
        scores = torch.einsum("bihd,nhd->bhin", q, prefix_k) * self.scale(x, q)  # wrong: AS201 prefix_beside_fused
        weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
        weights = weights / weights.sum(dim=-1, keepdim=True)
        beside = torch.einsum("bhin,nhd->bihd", weights * self.gate[:, None, None], prefix_v)
        return self.out_proj((context + beside).flatten(2))


class PrefixedByWidth(Prefixed):
    def scale(self, x, q):
        return x.shape[-1] ** -0.5


def _prefixed(cls, B, H, L, N, Dk):
    return cls(H * Dk, H, N), (torch.randn(B, L, H * Dk),), {}, CLAIMS


def wrong_prefix_beside_fused(B, H, L, N, Dk):
    return _prefixed(PrefixedByWidth, B, H, L, N, Dk)


def right_prefix_beside_fused(B, H, L, N, Dk):
    return _prefixed(Prefixed, B, H, L, N, Dk)


def reference_prefix_beside_fused(module, x):
    def keys_and_values(tokens):
        weight, bias = module.kv_proj.weight.unflatten(0, (2, -1)), module.kv_proj.bias.unflatten(0, (2, -1))
        both = torch.einsum("bli,coi->cblo", tokens, weight) + bias[:, None, None]
        return (torch.stack(one.chunk(module.num_heads, -1), 1) for one in both)

    q = heads(x, module.q_proj, module.num_heads)
    beside = attend(q, *keys_and_values(module.prefix.weight.expand(len(x), -1, -1)))
    return merge(attend(q, *keys_and_values(x)) + module.gate[:, None, None] * beside, module.out_proj)


class PromptedAttention(nn.Module):
    """Heads are in the batch; a layer may have a prompt."""

    def __init__(self, dim, n_heads, prompt_length):
        super().__init__()
        self.n_heads = n_heads
        self.scale = (dim // n_heads) ** -0.5
        self.prompt_scale = self.scale_of_prompt(dim)  # wrong: AS201 prompts_of_upper_layers
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.prompt = nn.Parameter(torch.randn(prompt_length, dim)) if prompt_length else None
        self.gate = nn.Parameter(torch.ones(dim)) if prompt_length else None

    def scale_of_prompt(self, dim):
        return self.scale

    def folded(self, t):
        b, n, _ = t.shape
        return t.view(b, n, self.n_heads, -1).transpose(1, 2).reshape(b * self.n_heads, n, -1)

    def merged(self, t):
        return t.unflatten(0, (-1, self.n_heads)).transpose(1, 2).flatten(2)

    def forward(self, x):
        q, k, v = self.folded(self.to_q(x)), self.folded(self.to_k(x)), self.folded(self.to_v(x))
        weights = torch.softmax(torch.bmm(q, k.mT) * self.scale, dim=-1)
        out = self.merged(torch.bmm(weights, v))
        if self.prompt is not None:
            prompt = self.prompt.expand(len(x), -1, -1)
            k, v = self.folded(self.to_k(prompt)), self.folded(self.to_v(prompt))
            scores = torch.bmm(q, k.mT) * self.prompt_scale
            out = out + self.gate * self.merged(torch.bmm(torch.softmax(scores, dim=-1), v))
        return self.to_out(out)


class PromptedByWidth(PromptedAttention):
    def scale_of_prompt(self, dim):
        return dim**-0.5


class Encoder(nn.Module):
    """Layers above the first one are prompted."""

    def __init__(self, attention, dim, n_heads, prompt_length):
        super().__init__()
        lengths = (0, prompt_length, prompt_length)
        self.attentions = nn.ModuleList(attention(dim, n_heads, length) for length in lengths)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in lengths)
        self.ffns = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
            for _ in lengths
        )

    def forward(self, x):
        for norm, attention, ffn in zip(self.norms, self.attentions, self.ffns, strict=True):
            x = x + attention(norm(x))
            x = x + ffn(x)
        return x


def _encoder(attention, B, H, L, N, Dk):
    return Encoder(attention, H * Dk, H, N), (torch.randn(B, L, H * Dk),), {}, CLAIMS


def wrong_prompts_of_upper_layers(B, H, L, N, Dk):
    return _encoder(PromptedByWidth, B, H, L, N, Dk)


def right_prompts_of_upper_layers(B, H, L, N, Dk):
    return _encoder(PromptedAttention, B, H, L, N, Dk)


def reference_prompts_of_upper_layers(module, x):
    for norm, layer, ffn in zip(module.norms, module.attentions, module.ffns, strict=True):
        y = norm(x)
        q, k, v = (heads(y, one, layer.n_heads) for one in (layer.to_q, layer.to_k, layer.to_v))
        context = merge(attend(q, k, v))
        if layer.prompt is not None:
            prompt = layer.prompt.expand(len(x), -1, -1)
            k, v = (heads(prompt, one, layer.n_heads) for one in (layer.to_k, layer.to_v))
            context = context + layer.gate * merge(attend(q, k, v))
        x = x + context @ layer.to_out.weight.T
        x = x + ffn(x)
    return x


class Reader(nn.Module):
    """Cross-attention to a source, and to persistent slots through the same layers."""

    def __init__(self, d_model, n_heads, n_slots):
        super().__init__()
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = (nn.Linear(d_model, d_model) for _ in range(4))
        self.slots = nn.Parameter(torch.randn(1, n_slots, d_model))
        self.gate = nn.Parameter(torch.ones(()))

    def split(self, t):
        return t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def read(self, q, memory, width):
        k, v = self.split(self.key(memory)), self.split(self.value(memory))
        scores = q @ k.mT / math.sqrt(width)  # wrong: AS201 memory_beside_source
        return scores.softmax(dim=-1) @ v

    def forward(self, x, source):
        q = self.split(self.query(x))
        out = self.read(q, source, q.shape[-1]) + self.gate * self.read(q, self.slots, q.shape[-1])
        return self.out(out.transpose(1, 2).flatten(2))


class ReaderOfSlotsByWidth(Reader):
    def forward(self, x, source):
        q = self.split(self.query(x))
        out = self.read(q, source, q.shape[-1]) + self.gate * self.read(q, self.slots, x.shape[-1])
        return self.out(out.transpose(1, 2).flatten(2))


def _reader(cls, B, H, Lq, Lk, N, Dk):
    return cls(H * Dk, H, N), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}, CLAIMS


def wrong_memory_beside_source(B, H, Lq, Lk, N, Dk):
    return _reader(ReaderOfSlotsByWidth, B, H, Lq, Lk, N, Dk)


def right_memory_beside_source(B, H, Lq, Lk, N, Dk):
    return _reader(Reader, B, H, Lq, Lk, N, Dk)


def reference_memory_beside_source(module, x, source):
    q = heads(x, module.query, module.n_heads)
    slots = module.slots.expand(len(x), -1, -1)
    read, kept = (
        attend(q, heads(memory, module.key, module.n_heads), heads(memory, module.value, module.n_heads))
        for memory in (source, slots)
    )
    return merge(read + module.gate * kept, module.out)
