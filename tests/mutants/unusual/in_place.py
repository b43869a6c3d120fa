"""Tensors that are modified in place, and keep one name or aren't needed as they were."""

import torch
from torch import nn

from tests.mutants.plain import attention, causal, join, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 10}, {"B": 5, "H": 3, "L": 9, "Dk": 6})
UNUSUAL = [
    ("in_place_throughout", *SIZES),
    ("last_state_twice", *SIZES),
    ("sums_in_lists", *SIZES),
    ("added_afterwards", *SIZES),
    ("sum_under_another_name", *SIZES),
]


class InPlace(nn.Module):
    """Scales, masks, adds and activates in place."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads = heads
        self.embed, self.qkv = nn.Linear(heads * depth, heads * depth), nn.Linear(heads * depth, 3 * heads * depth)
        self.act = nn.ReLU(inplace=True)

    def hide(self, scores):
        length = scores.shape[-1]
        scores.masked_fill_(torch.ones(length, length, dtype=torch.bool).triu_(1), -torch.inf)
        return scores

    def forward(self, x):
        hidden = self.embed(x)
        hidden = self.act(hidden)
        residual = hidden
        q, k, v = self.qkv(hidden).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        products = q @ k.mT
        scores = products.mul_(q.shape[-1] ** -0.5)
        weights = self.hide(scores).softmax(dim=-1)
        result = residual.add_((weights @ v).transpose(1, 2).flatten(2))
        return result.view(residual.shape)


def case_in_place_throughout(B, H, L, Dk):
    return InPlace(H, Dk), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def reference_in_place_throughout(module, x):
    hidden = module.embed(x).clamp(min=0)
    q, k, v = (split(one, module.heads) for one in module.qkv(hidden).chunk(3, dim=-1))
    return hidden + join(attention(q, k, v, keep=causal(x.shape[1], x.shape[1])))


class LastStateTwice(InPlace):
    """The last hidden state is also the last one of the list; each is complete when it gets there."""

    def forward(self, x):
        hidden_states = []
        for _ in range(2):
            residual = x
            x = self.embed(super().forward(x))
            x += residual
            hidden_states.append(x)
        last = x
        return {"last_hidden_state": last, "hidden_states": tuple(hidden_states)}


def case_last_state_twice(B, H, L, Dk):
    return LastStateTwice(H, Dk), (torch.randn(B, L, H * Dk),), {}, ["causal"]


class SumsInLists(InPlace):
    """Its lists have sums that grow in place, each of one block of queries, and the variable goes on with the last."""

    def forward(self, x):
        hidden = self.embed(x)
        q, k, v = self.qkv(hidden).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        contexts, totals = [], []
        for rows in q.chunk(2, dim=2):
            context, total = torch.zeros_like(rows), rows.new_zeros(*rows.shape[:-1], 1)
            most = (rows @ k.mT * rows.shape[-1] ** -0.5).amax(-1, keepdim=True)
            contexts.append(context)
            totals.append(total)
            for keys, values in zip(k.split(3, dim=2), v.split(3, dim=2), strict=True):
                weights = (rows @ keys.mT * rows.shape[-1] ** -0.5 - most).exp()
                context += weights @ values
                total += weights.sum(-1, keepdim=True)
        context = torch.cat(contexts, dim=2)
        context /= torch.cat(totals, dim=2)
        return hidden + context.transpose(1, 2).flatten(2)


def case_sums_in_lists(B, H, L, Dk):
    return SumsInLists(H, Dk), (torch.randn(B, L, H * Dk),), {}


def reference_sums_in_lists(module, x):
    hidden = module.embed(x)
    q, k, v = (split(one, module.heads) for one in module.qkv(hidden).chunk(3, dim=-1))
    return hidden + join(attention(q, k, v))


class AddedAfterwards(InPlace):
    """Each hidden state is complete when the list gets it, and the first one is changed before."""

    def forward(self, x):
        x = self.embed(x)
        x += x.mean(dim=2, keepdim=True)
        every = [x]
        for _ in range(2):
            start = x
            x = super().forward(x)
            x += start
            every.append(x)
        x = torch.stack(every).sum(0)
        x /= len(every)
        return x


def case_added_afterwards(B, H, L, Dk):
    return AddedAfterwards(H, Dk), (torch.randn(B, L, H * Dk),), {}, ["causal"]


class SumUnderAnotherName(InPlace):
    """Each list of sums begins with zeros, which another name fills; a sum that starts at a result is a copy of it."""

    def forward(self, x):
        sums, results = [], []
        for _ in range(2):
            zeros = torch.zeros_like(x)
            sums.append(zeros)
            total = zeros
            for _ in range(2):
                total += super().forward(x + total)
        first = super().forward(x)
        results.append(first)
        total = first.clone()
        for one in sums:
            total += one
            results.append(total * 2)
        return torch.stack(results + sums)


def case_sum_under_another_name(B, H, L, Dk):
    return SumUnderAnotherName(H, Dk), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def reference_sum_under_another_name(module, x):
    first = reference_in_place_throughout(module, x)
    one = first + reference_in_place_throughout(module, x + first)
    return torch.stack([first, 2 * (first + one), 2 * (first + 2 * one), one, one])
