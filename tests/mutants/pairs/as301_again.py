"""AS301: transposed weights sum values again, over an axis along which they don't sum to one."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge

CROSS = (
    {"B": 4, "H": 3, "Lq": 7, "Lk": 11, "Dk": 5},
    {"B": 2, "H": 5, "Lq": 9, "Lk": 6, "Dk": 7},
    {"B": 3, "H": 4, "Lq": 8, "Lk": 10, "Dk": 6},
)
PAIRS = [
    ("AS301", "looked_up_and_back", *CROSS),
    ("AS301", "soft_alignment", *CROSS),
    ("AS301", "image_and_language", *CROSS),
]


class LookUp(nn.Module):
    """A few tokens read many, and these read back what the few have become, by the scores of both."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.back = (nn.Linear(width, width) for _ in range(4))

    def split(self, x):
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def of_many(self, scores, weights):
        return scores.transpose(-2, -1).softmax(dim=-1)

    def forward(self, few, many):
        scores = self.split(self.q(few)) @ self.split(self.k(many)).mT * (few.shape[-1] // self.n_heads) ** -0.5
        weights = scores.softmax(dim=-1)
        few = few + (weights @ self.split(self.v(many))).transpose(1, 2).flatten(2)
        read = self.of_many(scores, weights) @ self.split(self.back(few))
        return many + read.transpose(1, 2).flatten(2)


class LookUpAgain(LookUp):
    def forward(self, few, many):
        scores = self.split(self.q(few)) @ self.split(self.k(many)).mT * (few.shape[-1] // self.n_heads) ** -0.5
        weights = scores.softmax(dim=-1)
        few = few + (weights @ self.split(self.v(many))).transpose(1, 2).flatten(2)
        read = weights.transpose(-2, -1) @ self.split(self.back(few))  # wrong: AS301 looked_up_and_back
        return many + read.transpose(1, 2).flatten(2)


def _cross(cls, B, H, Lq, Lk, Dk):
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def wrong_looked_up_and_back(B, H, Lq, Lk, Dk):
    return _cross(LookUpAgain, B, H, Lq, Lk, Dk)


def right_looked_up_and_back(B, H, Lq, Lk, Dk):
    return _cross(LookUp, B, H, Lq, Lk, Dk)


def reference_looked_up_and_back(module, few, many):
    q, k = heads(few, module.q, module.n_heads), heads(many, module.k, module.n_heads)
    few = few + merge(attend(q, k, heads(many, module.v, module.n_heads)))
    return many + merge(attend(k, q, heads(few, module.back, module.n_heads)))


def soft_alignment(premise, hypothesis, weight):
    """Align the tokens of two sentences with each other, as in ESIM: B L D each, and D D."""
    energy = torch.einsum("bqd,de,bke->bqk", premise, weight, hypothesis)
    weights = F.softmax(energy, dim=2)
    aligned = torch.einsum("bqk,bke->bqe", weights, hypothesis)
    weights = F.softmax(energy, dim=1)
    return torch.cat((aligned, torch.einsum("bqk,bqe->bke", weights, premise)), dim=1)


def soft_alignment_by_one(premise, hypothesis, weight):
    """Align the tokens of two sentences with each other, as in ESIM: B L D each, and D D."""
    energy = torch.einsum("bqd,de,bke->bqk", premise, weight, hypothesis)
    weights = F.softmax(energy, dim=2)
    aligned = torch.einsum("bqk,bke->bqe", weights, hypothesis)
    of_premise = torch.einsum("bqk,bqe->bke", weights, premise)  # wrong: AS301 soft_alignment
    return torch.cat((aligned, of_premise), dim=1)


def _sentences(function, B, Lq, Lk, D):
    return function, (torch.randn(B, Lq, D), torch.randn(B, Lk, D), torch.randn(D, D) / D**0.5), {}


def wrong_soft_alignment(B, H, Lq, Lk, Dk):
    return _sentences(soft_alignment_by_one, B, Lq, Lk, H * Dk)


def right_soft_alignment(B, H, Lq, Lk, Dk):
    return _sentences(soft_alignment, B, Lq, Lk, H * Dk)


def reference_soft_alignment(_, premise, hypothesis, weight):
    queries, keys = premise @ weight, hypothesis
    one = attend(queries[:, None], keys[:, None], hypothesis[:, None], scale=1.0)
    return torch.cat((one, attend(keys[:, None], queries[:, None], premise[:, None], scale=1.0)), dim=2)[:, 0]


class BiAttention(nn.Module):
    """Image and language attend to each other by the same scores, with heads folded into the batch."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads, self.scale = n_heads, (width // n_heads) ** -0.5
        self.vision_proj, self.text_proj, self.vision_values, self.text_values, self.vision_out, self.text_out = (
            nn.Linear(width, width) for _ in range(6)
        )
        self.dropout = nn.Dropout(0.1)

    def fold(self, x):
        return x.view(x.shape[0], x.shape[1], self.n_heads, -1).transpose(1, 2).flatten(0, 1)

    def joined(self, x):
        return x.unflatten(0, (-1, self.n_heads)).transpose(1, 2).flatten(2)

    def probs_of_words(self, attn, probs):
        return F.softmax(attn.transpose(1, 2), dim=-1)

    def forward(self, words, image):
        attn = torch.bmm(
            self.fold(self.vision_proj(image) * self.scale), self.fold(self.text_proj(words)).transpose(1, 2)
        )
        attn = attn - attn.amax(dim=(1, 2), keepdim=True)
        probs = F.softmax(attn, dim=-1)
        of_image = torch.bmm(self.dropout(probs), self.fold(self.text_values(words)))
        probs = self.dropout(self.probs_of_words(attn, probs))
        of_words = torch.bmm(probs, self.fold(self.vision_values(image)))  # wrong: AS301 image_and_language
        return self.text_out(self.joined(of_words)), self.vision_out(self.joined(of_image))


class BiAttentionAgain(BiAttention):
    def probs_of_words(self, attn, probs):
        return probs.permute(0, 2, 1)


def wrong_image_and_language(B, H, Lq, Lk, Dk):
    return _cross(BiAttentionAgain, B, H, Lq, Lk, Dk)


def right_image_and_language(B, H, Lq, Lk, Dk):
    return _cross(BiAttention, B, H, Lq, Lk, Dk)


def reference_image_and_language(module, words, image):
    q, k = heads(words, module.text_proj, module.n_heads), heads(image, module.vision_proj, module.n_heads)
    return merge(attend(q, k, heads(image, module.vision_values, module.n_heads)), module.text_out)
