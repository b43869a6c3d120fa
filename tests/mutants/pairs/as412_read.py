"""AS412: a sequence is read at its last position, which is padding in all sequences but the longest."""

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge, project, visible

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS412", "last_position", *SIZES),
    ("AS412", "end_of_each", *SIZES),
    ("AS412", "sequence_first", *SIZES),
]


class Recommender(nn.Module):
    """Scores the items of a history by the state at its last item."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def last(self, x, lengths):
        return x[torch.arange(len(x)), lengths - 1]

    def forward(self, history, lengths):
        L = history.size(1)
        q, k, v = self.qkv(history).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        steps = torch.arange(L)
        hidden = (steps > steps[:, None]) | (steps >= lengths[:, None, None, None])
        scores = (q @ k.transpose(-2, -1) / q.size(-1) ** 0.5).masked_fill(hidden, -torch.inf)
        x = history + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return self.last(x, lengths)


class RecommenderOfPadding(Recommender):
    def last(self, x, lengths):
        return x[:, -1]  # wrong: AS412 last_position


def _lengths(B, L):
    return L - (torch.arange(B) + 1) % L


def wrong_last_position(B, H, L, Dk):
    return RecommenderOfPadding(H * Dk, H), (torch.randn(B, L, H * Dk), _lengths(B, L)), {}, ["lengths=length"]


def right_last_position(B, H, L, Dk):
    return Recommender(H * Dk, H), (torch.randn(B, L, H * Dk), _lengths(B, L)), {}, ["lengths=length"]


def reference_last_position(module, history, lengths):
    L = history.shape[1]
    keep = torch.stack([visible(L, L) & (torch.arange(L) < number) for number in lengths.tolist()])
    x = history + merge(attend(*fused(history, module.qkv, module.n_heads), keep[:, None]), module.out)
    return torch.stack([x[element, number - 1] for element, number in enumerate(lengths.tolist())])


class Classifier(nn.Module):
    """Classifies a sentence by its last word, which a mask tells."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, n_heads, batch_first=True)
        self.head = nn.Linear(width, width)

    def last(self, x, padding):
        end = (~padding).sum(1, keepdim=True) - 1
        return x.gather(1, end[..., None].expand(-1, -1, x.shape[-1])).squeeze(1)

    def forward(self, x, padding):
        attended, _ = self.attention(x, x, x, key_padding_mask=padding, need_weights=False)
        return self.head(self.last(x + attended, padding))


class ClassifierOfPadding(Classifier):
    def last(self, x, padding):
        return x.select(1, x.size(1) - 1)  # wrong: AS412 end_of_each


def _classifier(cls, B, H, L, Dk):
    padding = torch.arange(L) >= L - torch.arange(B)[:, None] % 3
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), padding), {}, ["padding=drop"]


def wrong_end_of_each(B, H, L, Dk):
    return _classifier(ClassifierOfPadding, B, H, L, Dk)


def right_end_of_each(B, H, L, Dk):
    return _classifier(Classifier, B, H, L, Dk)


def reference_end_of_each(module, x, padding):
    own, H = module.attention, module.attention.num_heads
    weights = own.in_proj_weight.unflatten(0, (3, H, -1))
    biases = own.in_proj_bias.unflatten(0, (3, 1, H, 1, -1))
    q, k, v = torch.einsum("bli,chdi->cbhld", x, weights) + biases
    x = x + merge(attend(q, k, v, ~padding[:, None, None]), own.out_proj)
    ends = [int((~one).nonzero().max()) for one in padding]
    return project(torch.stack([x[element, end] for element, end in enumerate(ends)]), module.head)


def embed(x, keep, projection, heads):
    """Sequence first: x is (L, B, D)."""
    q, k, v = (x @ projection).unflatten(-1, (3, heads, -1)).permute(2, 1, 3, 0, 4)
    attended = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None])
    return x + attended.permute(2, 0, 1, 3).flatten(2)


class Embedding(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.projection = nn.Parameter(torch.randn(width, 3 * width) / width**0.5)

    def forward(self, x, keep):
        embedded = embed(x.transpose(0, 1), keep, self.projection, self.heads)
        return embedded[keep.sum(1) - 1, torch.arange(len(keep))]


class EmbeddingOfPadding(Embedding):
    def forward(self, x, keep):
        embedded = embed(x.transpose(0, 1), keep, self.projection, self.heads)
        return embedded[-1]  # wrong: AS412 sequence_first


def _embedding(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.arange(L) < _lengths(B, L)[:, None]), {}, ["keep=keep"]


def wrong_sequence_first(B, H, L, Dk):
    return _embedding(EmbeddingOfPadding, B, H, L, Dk)


def right_sequence_first(B, H, L, Dk):
    return _embedding(Embedding, B, H, L, Dk)


def reference_sequence_first(module, x, keep):
    columns = module.projection.unflatten(-1, (3, module.heads, -1))
    x = x + merge(attend(*torch.einsum("bli,ichd->cbhld", x, columns), keep[:, None, None]))
    return torch.stack([x[element, int(one.nonzero().max())] for element, one in enumerate(keep)])
