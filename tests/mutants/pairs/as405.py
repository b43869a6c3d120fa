"""AS405: what is filled in where the mask hides is too large to hide anything."""

import math

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
CROSS = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 11, "Lk": 7, "Dk": 8},
    {"B": 6, "H": 7, "Lq": 5, "Lk": 8, "Dk": 4},
)
PAIRS = [
    ("AS405", "positive_exponent", *SELF),
    ("AS405", "multiplied", *CROSS),
    ("AS405", "minus_one", *CROSS),
    ("AS405", "additive_minus_five", *SELF),
    ("AS405", "tril_of_scores", *SELF),
    ("AS405", "multiplied_by_minus_a_million", *SELF),
]


def random_keep(*shape):
    keep = torch.rand(shape) < 0.6
    keep[..., 0] = True
    keep[..., -1] = False
    return keep


class RightTensor2Tensor(nn.Module):
    def __init__(self, n_units, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.linear_q = nn.Linear(n_units, n_units)
        self.linear_k = nn.Linear(n_units, n_units)
        self.linear_v = nn.Linear(n_units, n_units)
        self.linear_out = nn.Linear(n_units, n_units)

    def fill(self, scores, mask):
        return scores.masked_fill(mask.unsqueeze(1).unsqueeze(1) == 0, -1e9)

    def forward(self, x, mask):
        n_batch = x.size(0)
        q = self.linear_q(x).view(n_batch, -1, self.n_heads, x.size(-1) // self.n_heads)
        k = self.linear_k(x).view(n_batch, -1, self.n_heads, x.size(-1) // self.n_heads)
        v = self.linear_v(x).view(n_batch, -1, self.n_heads, x.size(-1) // self.n_heads)
        scores = torch.matmul(q.permute(0, 2, 1, 3), k.permute(0, 2, 3, 1)) / math.sqrt(q.size(-1))
        weights = torch.softmax(self.fill(scores, mask), dim=3)
        context = torch.matmul(weights, v.permute(0, 2, 1, 3)).permute(0, 2, 1, 3)
        return self.linear_out(context.reshape(n_batch, -1, x.size(-1)))


class WrongTensor2Tensor(RightTensor2Tensor):
    def fill(self, scores, mask):
        return scores.masked_fill(mask.unsqueeze(1).unsqueeze(1) == 0, 1e-9)  # wrong: AS405 positive_exponent


def _positive_exponent(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {"mask": random_keep(B, L).long()}, ["mask=keep"]


def wrong_positive_exponent(B, H, L, Dk):
    return _positive_exponent(WrongTensor2Tensor, B, H, L, Dk)


def right_positive_exponent(B, H, L, Dk):
    return _positive_exponent(RightTensor2Tensor, B, H, L, Dk)


def reference_positive_exponent(module, x, mask):
    q, k, v = (heads(x, p, module.n_heads) for p in (module.linear_q, module.linear_k, module.linear_v))
    return merge(attend(q, k, v, mask[:, None, None] == 1), module.linear_out)


def multiplied(q, k, v, mask):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    scores = scores * mask[:, None, None, :]  # wrong: AS405 multiplied
    return scores.softmax(-1) @ v


def filled(q, k, v, mask):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    scores = scores.masked_fill(~mask[:, None, None, :], -math.inf)
    return scores.softmax(-1) @ v


def _multiplied(function, B, H, Lq, Lk, Dk):
    q, k, v = torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)
    return function, (q, k, v, random_keep(B, Lk)), {}, ["mask=keep"]


def wrong_multiplied(B, H, Lq, Lk, Dk):
    return _multiplied(multiplied, B, H, Lq, Lk, Dk)


def right_multiplied(B, H, Lq, Lk, Dk):
    return _multiplied(filled, B, H, Lq, Lk, Dk)


def reference_multiplied(function, q, k, v, mask):
    return attend(q, k, v, mask[:, None, None])


class RightDecoderCross(nn.Module):
    """Cross-attention with heads folded into the batch, in a post-norm residual."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.fc_q = nn.Linear(hidden, hidden)
        self.fc_kv = nn.Linear(hidden, 2 * hidden)
        self.fc_o = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden)

    def fold(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2).flatten(0, 1)

    def energies(self, q, k, src_mask):
        energy = torch.bmm(q, k.transpose(1, 2)) / q.size(-1) ** 0.5
        hidden = src_mask.repeat_interleave(self.heads, dim=0).unsqueeze(1)
        return energy.masked_fill(hidden, float("-inf"))

    def forward(self, trg, enc_src, src_mask):
        q = self.fold(self.fc_q(trg))
        k, v = map(self.fold, self.fc_kv(enc_src).chunk(2, dim=-1))
        attention = torch.softmax(self.energies(q, k, src_mask), dim=-1)
        x = torch.bmm(attention, v).unflatten(0, (-1, self.heads)).transpose(1, 2).flatten(2)
        return self.norm(trg + self.fc_o(x))


class WrongDecoderCross(RightDecoderCross):
    def energies(self, q, k, src_mask):
        energy = torch.bmm(q, k.transpose(1, 2)) / q.size(-1) ** 0.5
        hidden = src_mask.repeat_interleave(self.heads, dim=0).unsqueeze(1)
        return energy.masked_fill(hidden, -1)  # wrong: AS405 minus_one


def _minus_one(cls, B, H, Lq, Lk, Dk):
    args = torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), ~random_keep(B, Lk)
    return cls(H * Dk, H), args, {}, ["src_mask=drop"]


def wrong_minus_one(B, H, Lq, Lk, Dk):
    return _minus_one(WrongDecoderCross, B, H, Lq, Lk, Dk)


def right_minus_one(B, H, Lq, Lk, Dk):
    return _minus_one(RightDecoderCross, B, H, Lq, Lk, Dk)


def reference_minus_one(module, trg, enc_src, src_mask):
    q = heads(trg, module.fc_q, module.heads)
    both = torch.einsum("bli,oi->blo", enc_src, module.fc_kv.weight) + module.fc_kv.bias
    k, v = both.unflatten(-1, (2, module.heads, -1)).permute(2, 0, 3, 1, 4)
    return module.norm(trg + merge(attend(q, k, v, ~src_mask[:, None, None]), module.fc_o))


class RightBert(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def extended(self, attention_mask):
        return (1 - attention_mask)[:, None, None, :] * -1e5

    def forward(self, hidden_states, attention_mask):
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)) for t in self.qkv(hidden_states).chunk(3, dim=-1))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
        probs = (scores + self.extended(attention_mask)).softmax(dim=-1)
        return self.dense(torch.einsum("bhqk,bkhd->bqhd", probs, v).flatten(-2))


class WrongBert(RightBert):
    def extended(self, attention_mask):
        return (1 - attention_mask)[:, None, None, :] * -5.0  # wrong: AS405 additive_minus_five


def _additive_minus_five(cls, B, H, L, Dk):
    x = torch.randn(B, L, H * Dk)
    return cls(H * Dk, H), (x, random_keep(B, L).to(x.dtype)), {}, ["attention_mask=keep"]


def wrong_additive_minus_five(B, H, L, Dk):
    return _additive_minus_five(WrongBert, B, H, L, Dk)


def right_additive_minus_five(B, H, L, Dk):
    return _additive_minus_five(RightBert, B, H, L, Dk)


def reference_additive_minus_five(module, hidden_states, attention_mask):
    q, k, v = fused(hidden_states, module.qkv, module.num_heads)
    return merge(attend(q, k, v, attention_mask[:, None, None] == 1), module.dense)


def tril_zeros(q, k, v):
    att = q @ k.mT / q.shape[-1] ** 0.5
    att = att.tril()  # wrong: AS405 tril_of_scores
    return att.softmax(dim=-1) @ v


def tril_minus_inf(q, k, v):
    att = q @ k.mT / q.shape[-1] ** 0.5
    att = att + torch.full_like(att, -math.inf).triu(1)
    return att.softmax(dim=-1) @ v


def _tril_of_scores(function, B, H, L, Dk):
    return function, tuple(torch.randn(B, H, L, Dk) for _ in range(3)), {}, ["causal"]


def wrong_tril_of_scores(B, H, L, Dk):
    return _tril_of_scores(tril_zeros, B, H, L, Dk)


def right_tril_of_scores(B, H, L, Dk):
    return _tril_of_scores(tril_minus_inf, B, H, L, Dk)


def reference_tril_of_scores(function, q, k, v):
    return attend(q, k, v, visible(q.shape[2], k.shape[2]))


def within_blocks(q, k, v, apply):
    """Two graphs in one batch, as blocks on the diagonal: the first three nodes are those of one."""
    other = torch.arange(q.shape[2]) < 3
    scores = apply(torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1]), other[:, None] != other)
    return torch.softmax(scores, dim=-1) @ v


def multiplied_by_minus_a_million(q, k, v):
    def apply(scores, hidden):
        penalty = torch.ones(hidden.shape, dtype=scores.dtype).masked_fill(hidden, -1e6)
        return scores * penalty  # wrong: AS405 multiplied_by_minus_a_million

    return within_blocks(q, k, v, apply)


def minus_a_million_added(q, k, v):
    return within_blocks(q, k, v, lambda scores, hidden: scores + torch.zeros(hidden.shape).masked_fill(hidden, -1e6))


def wrong_multiplied_by_minus_a_million(B, H, L, Dk):
    return multiplied_by_minus_a_million, tuple(torch.randn(3, B, H, L, Dk)), {}


def right_multiplied_by_minus_a_million(B, H, L, Dk):
    return minus_a_million_added, tuple(torch.randn(3, B, H, L, Dk)), {}


def reference_multiplied_by_minus_a_million(function, q, k, v):
    parts = [attend(*(t[:, :, part] for t in (q, k, v))) for part in (slice(0, 3), slice(3, None))]
    return torch.cat(parts, dim=2)
