"""AS403: the mask's batch and heads are in another order than those of the scores."""

import math

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge, project

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
CROSS = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 11, "Lk": 7, "Dk": 8},
    {"B": 6, "H": 7, "Lq": 5, "Lk": 8, "Dk": 4},
)
PAIRS = [
    ("AS403", "repeated_per_head", *SELF),
    ("AS403", "length_first", *CROSS),
    ("AS403", "heads_first_fold", *SELF),
    ("AS403", "torch_multihead_mask", *SELF),
]


class RightFolded(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.w_qs = nn.Linear(d_model, d_model)
        self.w_ks = nn.Linear(d_model, d_model)
        self.w_vs = nn.Linear(d_model, d_model)
        self.fc = nn.Linear(d_model, d_model)

    def for_heads(self, mask):
        return mask.repeat_interleave(self.n_heads, dim=0)

    def forward(self, x, mask):
        B, L, _ = x.shape

        def fold(t):
            return t.view(B, L, self.n_heads, self.d_head).transpose(1, 2).reshape(-1, L, self.d_head)

        q, k, v = fold(self.w_qs(x)), fold(self.w_ks(x)), fold(self.w_vs(x))
        attn = torch.bmm(q, k.transpose(1, 2)) / self.d_head**0.5
        attn = attn.masked_fill(~self.for_heads(mask), -1e9)
        output = torch.bmm(torch.softmax(attn, dim=2), v)
        output = output.view(B, self.n_heads, L, self.d_head).transpose(1, 2).reshape(B, L, -1)
        return self.fc(output)


class WrongFolded(RightFolded):
    def for_heads(self, mask):
        return mask.repeat(self.n_heads, 1, 1)  # wrong: AS403 repeated_per_head


def _repeated_per_head(cls, B, H, L, Dk):
    mask = (torch.rand(B, L, L) < 0.5) | torch.eye(L, dtype=torch.bool)
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), mask), {}, ["mask=keep"]


def wrong_repeated_per_head(B, H, L, Dk):
    return _repeated_per_head(WrongFolded, B, H, L, Dk)


def right_repeated_per_head(B, H, L, Dk):
    return _repeated_per_head(RightFolded, B, H, L, Dk)


def reference_repeated_per_head(module, x, mask):
    q, k, v = (heads(x, linear, module.n_heads) for linear in (module.w_qs, module.w_ks, module.w_vs))
    return merge(attend(q, k, v, mask[:, None]), module.fc)


class RightLengthFirst(nn.Module):
    """Cross-attention over tensors of length, batch, width."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def hide(self, weights, key_padding_mask):
        padding = key_padding_mask.unsqueeze(1).repeat(1, self.num_heads, 1).flatten(0, 1)
        return weights.masked_fill(padding.unsqueeze(1), float("-inf"))

    def forward(self, query, memory, key_padding_mask):
        tgt_len, bsz, embed_dim = query.size()
        src_len = memory.size(0)
        q = (self.q_proj(query) * self.scaling).contiguous()
        q = q.view(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        k = self.k_proj(memory).contiguous().view(src_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        v = self.v_proj(memory).contiguous().view(src_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        weights = self.hide(torch.bmm(q, k.transpose(1, 2)), key_padding_mask)
        attn = torch.bmm(weights.softmax(dim=-1), v)
        return self.out_proj(attn.transpose(0, 1).contiguous().view(tgt_len, bsz, embed_dim))


class WrongLengthFirst(RightLengthFirst):
    def hide(self, weights, key_padding_mask):
        padding = key_padding_mask.repeat(self.num_heads, 1).unsqueeze(1)  # wrong: AS403 length_first
        return weights.masked_fill(padding, float("-inf"))


def _length_first(cls, B, H, Lq, Lk, Dk):
    padding = torch.arange(Lk)[None, :] >= torch.randint(1, Lk, (B, 1))
    padding[0], padding[1:2] = torch.arange(Lk) >= 1, torch.arange(Lk) >= Lk - 1
    args = (torch.randn(Lq, B, H * Dk), torch.randn(Lk, B, H * Dk), padding)
    return cls(H * Dk, H), args, {}, ["key_padding_mask=drop", "seq-first"]


def wrong_length_first(B, H, Lq, Lk, Dk):
    return _length_first(WrongLengthFirst, B, H, Lq, Lk, Dk)


def right_length_first(B, H, Lq, Lk, Dk):
    return _length_first(RightLengthFirst, B, H, Lq, Lk, Dk)


def reference_length_first(module, query, memory, key_padding_mask):
    q = heads(query.transpose(0, 1), module.q_proj, module.num_heads)
    k, v = (heads(memory.transpose(0, 1), p, module.num_heads) for p in (module.k_proj, module.v_proj))
    return merge(attend(q, k, v, ~key_padding_mask[:, None, None]), module.out_proj).transpose(0, 1)


def heads_first(query, key, value, num_heads, tile):
    """Heads are cut from the width and stacked along the batch, the heads outermost."""
    query = torch.cat(query.chunk(num_heads, dim=2), dim=0)
    key = torch.cat(key.chunk(num_heads, dim=2), dim=0)
    value = torch.cat(value.chunk(num_heads, dim=2), dim=0)
    scores = torch.matmul(query, key.transpose(1, 2)) / math.sqrt(key.shape[-1])
    scores = torch.where(tile, scores, torch.full_like(scores, -1e8))
    outputs = torch.matmul(scores.softmax(dim=-1), value)
    return torch.cat(outputs.chunk(num_heads, dim=0), dim=2)


def tiled_wrong(query, key, value, mask, num_heads):
    tile = mask.repeat_interleave(num_heads, dim=0)[:, None, :]  # wrong: AS403 heads_first_fold
    return heads_first(query, key, value, num_heads, tile)


def tiled_right(query, key, value, mask, num_heads):
    tile = mask.repeat(num_heads, 1)[:, None, :]
    return heads_first(query, key, value, num_heads, tile)


def _heads_first_fold(function, B, H, L, Dk):
    mask = torch.rand(B, L) < 0.5
    mask[:, 0] = True
    mask[0], mask[1:2] = torch.arange(L) < 1, True
    return function, tuple(torch.randn(3, B, L, H * Dk)), {"mask": mask, "num_heads": H}, ["mask=keep"]


def wrong_heads_first_fold(B, H, L, Dk):
    return _heads_first_fold(tiled_wrong, B, H, L, Dk)


def right_heads_first_fold(B, H, L, Dk):
    return _heads_first_fold(tiled_right, B, H, L, Dk)


def reference_heads_first_fold(function, query, key, value, mask, num_heads):
    q, k, v = (x.unflatten(-1, (num_heads, -1)).transpose(1, 2) for x in (query, key, value))
    return merge(attend(q, k, v, mask[:, None, None]))


class RightTorchMask(nn.Module):
    """torch's own attention takes a mask for each sentence and head."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.mha = nn.MultiheadAttention(width, heads, batch_first=True)

    def for_heads(self, dropped):
        return torch.repeat_interleave(dropped, self.heads, dim=0)

    def forward(self, x, dropped):
        out, _ = self.mha(x, x, x, attn_mask=self.for_heads(dropped))
        return out


class WrongTorchMask(RightTorchMask):
    def for_heads(self, dropped):
        return dropped.repeat(self.heads, 1, 1)  # wrong: AS403 torch_multihead_mask


def _torch_multihead_mask(cls, B, H, L, Dk):
    dropped = (torch.rand(B, L, L) < 0.5) & ~torch.eye(L, dtype=torch.bool)
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), dropped), {}, ["dropped=drop"]


def wrong_torch_multihead_mask(B, H, L, Dk):
    return _torch_multihead_mask(WrongTorchMask, B, H, L, Dk)


def right_torch_multihead_mask(B, H, L, Dk):
    return _torch_multihead_mask(RightTorchMask, B, H, L, Dk)


def reference_torch_multihead_mask(module, x, dropped):
    packed = torch.einsum("bli,oi->blo", x, module.mha.in_proj_weight) + module.mha.in_proj_bias
    q, k, v = packed.unflatten(-1, (3, module.heads, -1)).permute(2, 0, 3, 1, 4)
    return project(merge(attend(q, k, v, ~dropped[:, None])), module.mha.out_proj)
