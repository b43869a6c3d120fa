"""AS302: weights are moved to the words they belong to, and overwrite each other where a word occurs twice."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import heads, project

SIZES = (
    {"B": 4, "Lq": 5, "Lk": 11, "V": 13, "Dk": 6},
    {"B": 2, "Lq": 7, "Lk": 9, "V": 11, "Dk": 8},
    {"B": 3, "Lq": 6, "Lk": 10, "V": 17, "Dk": 7},
)
HEADS = tuple({**sizes, "H": n_heads} for sizes, n_heads in zip(SIZES, (3, 5, 4), strict=True))
PAIRS = [
    ("AS302", "pointer_generator", *SIZES),
    ("AS302", "copied_into_the_vocabulary", *HEADS),
    ("AS302", "words_of_pieces", *SIZES),
]


class PointerGenerator(nn.Module):
    """Words come from a vocabulary, or from the source that the states of a decoder attend to."""

    def __init__(self, width, words):
        super().__init__()
        self.query, self.key = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.words, self.gate = nn.Linear(2 * width, words), nn.Linear(2 * width, 1)

    def copied(self, zeros, index, weights):
        return zeros.scatter_add(2, index, weights)

    def forward(self, states, source, ids):
        weights = (self.query(states) @ self.key(source).mT / states.shape[-1] ** 0.5).softmax(dim=-1)
        joined = torch.cat((states, weights @ source), dim=-1)
        words, gate = self.words(joined).softmax(dim=-1), self.gate(joined).sigmoid()
        copied = self.copied(torch.zeros_like(words), ids[:, None].expand_as(weights), weights)
        return gate * words + (1 - gate) * copied


class PointerGeneratorOfLast(PointerGenerator):
    def copied(self, zeros, index, weights):
        return zeros.scatter(2, index, weights)  # wrong: AS302 pointer_generator


def _ids(B, Lk, V):
    """A text in which words occur again."""
    return torch.randint(V, (B, (Lk + 1) // 2)).repeat(1, 2)[:, :Lk]


def _pointer(cls, B, Lq, Lk, V, Dk):
    return cls(Dk, V), (torch.randn(B, Lq, Dk), torch.randn(B, Lk, Dk), _ids(B, Lk, V)), {}


def wrong_pointer_generator(B, Lq, Lk, V, Dk):
    return _pointer(PointerGeneratorOfLast, B, Lq, Lk, V, Dk)


def right_pointer_generator(B, Lq, Lk, V, Dk):
    return _pointer(PointerGenerator, B, Lq, Lk, V, Dk)


def softmax(scores):
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def reference_pointer_generator(module, states, source, ids):
    q, k = project(states, module.query), project(source, module.key)
    weights = softmax(torch.einsum("bqd,bkd->bqk", q, k) / q.shape[-1] ** 0.5)
    joined = torch.cat((states, torch.einsum("bqk,bkd->bqd", weights, source)), -1)
    gate = 1 / (1 + (-project(joined, module.gate)).exp())
    one_hot = (ids[..., None] == torch.arange(module.words.out_features)).to(weights)
    return gate * softmax(project(joined, module.words)) + (1 - gate) * (weights @ one_hot)


class CopyHead(nn.Module):
    """Logarithms of what a decoder says next, with further words of the source behind those of the vocabulary."""

    def __init__(self, width, n_heads, words):
        super().__init__()
        self.n_heads = n_heads
        self.norm, self.qk = nn.LayerNorm(width), nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.v, self.o = nn.Linear(width, width), nn.Linear(width, width)
        self.generator, self.p_gen = nn.Linear(width, words), nn.Linear(2 * width, 1)

    def split(self, x):
        return x.view(*x.shape[:2], self.n_heads, -1).transpose(1, 2)

    def add_copies(self, final, places, weights):
        final.scatter_add_(-1, places, weights)

    def forward(self, states, source, ids):
        q, k, v = (self.split(one) for one in (self.qk[0](states), self.qk[1](source), self.v(source)))
        attention = F.softmax(torch.matmul(q, k.transpose(-1, -2)) * q.size(-1) ** -0.5, dim=-1)
        context = self.o(torch.matmul(attention, v).transpose(1, 2).flatten(2))
        p_gen = torch.sigmoid(self.p_gen(torch.cat((context, states), dim=-1)))
        vocabulary = F.softmax(self.generator(self.norm(states + context)), dim=-1)
        final = F.pad(p_gen * vocabulary, (0, 3))
        self.add_copies(final, ids.unsqueeze(1).expand(-1, states.size(1), -1), (1 - p_gen) * attention.mean(dim=1))
        return torch.log(final.clamp(min=1e-7))


class CopyHeadOverwriting(CopyHead):
    def add_copies(self, final, places, weights):
        final.scatter_(-1, places, weights)  # wrong: AS302 copied_into_the_vocabulary


def _copying(cls, B, Lq, Lk, V, Dk, H):
    return cls(H * Dk, H, V), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), _ids(B, Lk, V + 3)), {}


def wrong_copied_into_the_vocabulary(B, Lq, Lk, V, Dk, H):
    return _copying(CopyHeadOverwriting, B, Lq, Lk, V, Dk, H)


def right_copied_into_the_vocabulary(B, Lq, Lk, V, Dk, H):
    return _copying(CopyHead, B, Lq, Lk, V, Dk, H)


def reference_copied_into_the_vocabulary(module, states, source, ids):
    q, k = heads(states, module.qk[0], module.n_heads), heads(source, module.qk[1], module.n_heads)
    weights = softmax(torch.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5)
    values = heads(source, module.v, module.n_heads)
    context = project(torch.einsum("bhqk,bhkd->bqhd", weights, values).flatten(2), module.o)
    gate = 1 / (1 + (-project(torch.cat((context, states), -1), module.p_gen)).exp())
    words = gate * softmax(project(module.norm(states + context), module.generator))
    out = torch.cat((words, torch.zeros_like(words[..., :3])), -1)
    for b, row in enumerate(ids.tolist()):
        for place, word in enumerate(row):
            out[b, :, word] += (1 - gate[b, :, 0]) * weights[b, :, :, place].sum(0) / module.n_heads
    return out.clamp(min=1e-7).log()


def of_words(questions, pieces, word_of_piece, weight, words):
    """Return the weights with which questions attend to words, and what they read of their pieces."""
    weights = torch.einsum("bqi,ij,bkj->bqk", questions, weight, pieces).mul(pieces.shape[-1] ** -0.5).softmax(-1)
    index = word_of_piece.unsqueeze(1).repeat(1, questions.shape[1], 1)
    empty = torch.zeros(*questions.shape[:2], words, dtype=weights.dtype)
    return torch.scatter_add(empty, 2, index, weights), torch.einsum("bqk,bkd->bqd", weights, pieces)


def of_last_pieces(questions, pieces, word_of_piece, weight, words):
    """Return the weights with which questions attend to words, and what they read of their pieces."""
    weights = torch.einsum("bqi,ij,bkj->bqk", questions, weight, pieces).mul(pieces.shape[-1] ** -0.5).softmax(-1)
    index = word_of_piece.unsqueeze(1).repeat(1, questions.shape[1], 1)
    empty = torch.zeros(*questions.shape[:2], words, dtype=weights.dtype)
    of_words = torch.scatter(empty, dim=2, index=index, src=weights)  # wrong: AS302 words_of_pieces
    return of_words, torch.einsum("bqk,bkd->bqd", weights, pieces)


def _pieces(function, B, Lq, Lk, V, Dk):
    word_of_piece = torch.arange(Lk).div(2, rounding_mode="floor").expand(B, -1)
    tensors = torch.randn(B, Lq, Dk), torch.randn(B, Lk, Dk), word_of_piece, torch.randn(Dk, Dk) / Dk**0.5
    return function, tensors, {"words": (Lk + 1) // 2}


def wrong_words_of_pieces(B, Lq, Lk, V, Dk):
    return _pieces(of_last_pieces, B, Lq, Lk, V, Dk)


def right_words_of_pieces(B, Lq, Lk, V, Dk):
    return _pieces(of_words, B, Lq, Lk, V, Dk)


def reference_words_of_pieces(_, questions, pieces, word_of_piece, weight, words):
    weights = softmax((questions @ weight) @ pieces.mT / pieces.shape[-1] ** 0.5)
    out = torch.zeros(*weights.shape[:2], words, dtype=weights.dtype)
    for b, row in enumerate(word_of_piece.tolist()):
        for place, word in enumerate(row):
            out[b, :, word] += weights[b, :, place]
    return out
