"""Several masks at once, inverted masks inside, slopes by head, keys added to the others, one query at a time."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.pairs.as4_reference import attend, fused, merge, visible

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAST = (
    {"B": 4, "H": 5, "Lp": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lp": 6, "Dk": 8},
    {"B": 6, "H": 7, "Lp": 8, "Dk": 4},
)
PAIRS = [
    ("AS501", "either_mask_keeps", *SIZES),
    ("AS404", "second_fill_of_raw_scores", *SIZES),
    ("AS404", "causal_overwrites_padding", *SIZES),
    ("AS501", "triangle_for_kernel", *SIZES),
    ("AS501", "lower_triangle_filled", *SIZES),
    ("AS501", "earlier_keys_minus_infinity", *SIZES),
    ("AS710", "slopes_over_queries", *SIZES),
    ("AS710", "slopes_of_batch", *SIZES),
    ("AS107", "added_value_in_front", *SIZES),
    ("AS501", "mask_before_added_key", *SIZES),
    ("AS807", "added_key_as_value", *SIZES),
    ("AS803", "step_weighs_keys", *PAST),
]


class Masked(nn.Module):
    """Causal, without padding."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads, self.qkv = n_heads, nn.Linear(width, 3 * width)

    def masked(self, scores, padding):
        """Padding is (B, L), true for keys to keep."""
        causal = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        return scores.masked_fill(~(causal & padding[:, None, None]), -torch.inf)

    def forward(self, x, padding):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        weights = self.masked(q @ k.mT * q.shape[-1] ** -0.5, padding).softmax(dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class EitherKeeps(Masked):
    def masked(self, scores, padding):
        causal = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        return scores.masked_fill(~causal & ~padding[:, None, None], -torch.inf)


class InTurn(Masked):
    def masked(self, scores, padding):
        kept = scores.masked_fill(padding[:, None, None].logical_not(), -1e30)
        return kept.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -1e30)


class OfRawScores(InTurn):
    def masked(self, scores, padding):
        scores.masked_fill(padding[:, None, None].logical_not(), -1e30)
        return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -1e30)


class Added(Masked):
    def together(self, padding, causal):
        return padding + causal

    def masked(self, scores, padding):
        length = scores.shape[-1]
        of_padding = torch.zeros(len(scores), 1, length, length).masked_fill(~padding[:, None, None], -torch.inf)
        causal = torch.full((length, length), -torch.inf).triu(1)
        return scores + self.together(of_padding, causal).to(scores)


class CausalAlone(Added):
    def together(self, padding, causal):
        return torch.where(causal.isinf(), causal, torch.zeros_like(padding))


def _masked(cls, B, H, L, Dk):
    padding = torch.arange(L) != 1 + torch.arange(B)[:, None] % (L - 1)
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), padding), {}, ["causal", "padding=keep"]


def _claimed_causal(cls, B, H, L, Dk):
    called, args, kwargs, _ = _masked(cls, B, H, L, Dk)
    return called, args, kwargs, ["causal"]


def wrong_either_mask_keeps(B, H, L, Dk):
    return _claimed_causal(EitherKeeps, B, H, L, Dk)


def right_either_mask_keeps(B, H, L, Dk):
    return _claimed_causal(Masked, B, H, L, Dk)


def wrong_second_fill_of_raw_scores(B, H, L, Dk):
    return _masked(OfRawScores, B, H, L, Dk)


def right_second_fill_of_raw_scores(B, H, L, Dk):
    return _masked(InTurn, B, H, L, Dk)


def wrong_causal_overwrites_padding(B, H, L, Dk):
    return _masked(CausalAlone, B, H, L, Dk)


def right_causal_overwrites_padding(B, H, L, Dk):
    return _masked(Added, B, H, L, Dk)


def reference_either_mask_keeps(module, x, padding):
    keep = visible(x.shape[1], x.shape[1]) & padding[:, None, None]
    return merge(attend(*fused(x, module.qkv, module.n_heads), keep))


reference_second_fill_of_raw_scores = reference_causal_overwrites_padding = reference_either_mask_keeps


class Kernel(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads, self.qkv = n_heads, nn.Linear(width, 3 * width)

    def mask(self, length):
        return torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1).logical_not()

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask(x.shape[1]))
        return context.transpose(1, 2).flatten(2)


class TriangleForKernel(Kernel):
    def mask(self, length):
        """As for nn.MultiheadAttention, where True hides a key."""
        return torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)


class Filled(Kernel):
    def fill(self, scores, lower):
        return scores.masked_fill(lower == 0, -torch.inf)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).unbind(2)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
        scores = self.fill(scores, torch.tril(torch.ones(x.shape[1], x.shape[1])))
        return torch.einsum("bhij,bjhd->bihd", scores.softmax(dim=-1), v).flatten(2)


class LowerFilled(Filled):
    def fill(self, scores, lower):
        return scores.masked_fill(lower == 1, -1e30)


class FloatMask(Kernel):
    def mask(self, length):
        later = torch.arange(length)[:, None] < torch.arange(length)
        return torch.zeros(length, length).masked_fill(later, -torch.inf).to(self.qkv.weight)


class EarlierHidden(FloatMask):
    def mask(self, length):
        earlier = torch.arange(length)[:, None] > torch.arange(length)
        return torch.zeros(length, length).masked_fill(earlier, -torch.inf).to(self.qkv.weight)


def _causal(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_triangle_for_kernel(B, H, L, Dk):
    return _causal(TriangleForKernel, B, H, L, Dk)


def right_triangle_for_kernel(B, H, L, Dk):
    return _causal(Kernel, B, H, L, Dk)


def wrong_lower_triangle_filled(B, H, L, Dk):
    return _causal(LowerFilled, B, H, L, Dk)


def right_lower_triangle_filled(B, H, L, Dk):
    return _causal(Filled, B, H, L, Dk)


def wrong_earlier_keys_minus_infinity(B, H, L, Dk):
    return _causal(EarlierHidden, B, H, L, Dk)


def right_earlier_keys_minus_infinity(B, H, L, Dk):
    return _causal(FloatMask, B, H, L, Dk)


def reference_triangle_for_kernel(module, x):
    return merge(attend(*fused(x, module.qkv, module.n_heads), visible(x.shape[1], x.shape[1])))


reference_lower_triangle_filled = reference_earlier_keys_minus_infinity = reference_triangle_for_kernel


class Sloped(nn.Module):
    """Linear biases: scores fall with the distance, in each head by another slope."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads, self.qkv = n_heads, nn.Linear(width, 3 * width)
        self.register_buffer("slopes", 2.0 ** -(8 / n_heads * torch.arange(1, n_heads + 1)))

    def bias(self, batch, length):
        at = torch.arange(length)
        return -self.slopes[:, None, None] * (at[:, None] - at).abs()

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.mT * q.shape[-1] ** -0.5 + self.bias(x.shape[0], x.shape[1])
        return (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)


class OverQueries(Sloped):
    def bias(self, batch, length):
        at = torch.arange(length)
        slopes = self.slopes.repeat(length)[:length]
        return -slopes[:, None] * (at[:, None] - at).abs()


class OfBatch(Sloped):
    def bias(self, batch, length):
        at = torch.arange(length)
        slopes = self.slopes.repeat(batch)[:batch]
        return -slopes[:, None, None, None] * (at[:, None] - at).abs()


def with_slopes(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["alibi"]


def wrong_slopes_over_queries(B, H, L, Dk):
    return with_slopes(OverQueries, B, H, L, Dk)


def wrong_slopes_of_batch(B, H, L, Dk):
    return with_slopes(OfBatch, B, H, L, Dk)


def right_slopes_of_batch(B, H, L, Dk):
    return with_slopes(Sloped, B, H, L, Dk)


def reference_slopes_of_batch(module, x):
    length = x.shape[1]
    distance = torch.tensor([[abs(i - j) for j in range(length)] for i in range(length)]).to(x)
    bias = -torch.einsum("h,ij->hij", module.slopes, distance)
    return merge(attend(*fused(x, module.qkv, module.n_heads), bias=bias))


right_slopes_over_queries, reference_slopes_over_queries = right_slopes_of_batch, reference_slopes_of_batch


class AddedPair(nn.Module):
    """A learned key and its value are added behind the others, as by `add_bias_kv`; all queries see it."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads, self.qkv = n_heads, nn.Linear(width, 3 * width)
        self.bias_k, self.bias_v = (nn.Parameter(torch.randn(n_heads, 1, width // n_heads)) for _ in range(2))

    def pair(self, k, v):
        batch = len(k)
        return torch.cat([k, self.bias_k.expand(batch, -1, -1, -1)], 2), torch.cat(
            [v, self.bias_v.expand(batch, -1, -1, -1)], 2
        )

    def mask(self, length):
        return F.pad(torch.ones(length, length, dtype=torch.bool).tril(), (0, 1), value=True)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        k, v = self.pair(k, v)
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~self.mask(x.shape[1]), -torch.inf)
        return (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)


class ValueInFront(AddedPair):
    def pair(self, k, v):
        batch = len(k)
        return torch.cat([k, self.bias_k.expand(batch, -1, -1, -1)], 2), torch.cat(
            [self.bias_v.expand(batch, -1, -1, -1), v], 2
        )


class MaskBefore(AddedPair):
    def mask(self, length):
        return F.pad(torch.ones(length, length, dtype=torch.bool).tril(), (1, 0), value=True)


class KeyAsValue(AddedPair):
    def pair(self, k, v):
        batch = len(k)
        keys = torch.cat([k, self.bias_k.expand(batch, -1, -1, -1)], 2)
        return keys, torch.cat([v, self.bias_k.expand(batch, -1, -1, -1)], 2)


def _added(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_added_value_in_front(B, H, L, Dk):
    return _added(ValueInFront, B, H, L, Dk)


def wrong_mask_before_added_key(B, H, L, Dk):
    called, args, kwargs = _added(MaskBefore, B, H, L, Dk)
    return called, args, kwargs, ["causal"]


def wrong_added_key_as_value(B, H, L, Dk):
    return _added(KeyAsValue, B, H, L, Dk)


def right_added_key_as_value(B, H, L, Dk):
    return _added(AddedPair, B, H, L, Dk)


def right_mask_before_added_key(B, H, L, Dk):
    called, args, kwargs = _added(AddedPair, B, H, L, Dk)
    return called, args, kwargs, ["causal"]


def reference_added_key_as_value(module, x):
    q, k, v = fused(x, module.qkv, module.n_heads)
    k, v = (
        torch.cat((t, one[None].expand(len(x), -1, -1, -1)), 2) for t, one in ((k, module.bias_k), (v, module.bias_v))
    )
    length = x.shape[1]
    keep = torch.tensor([[j <= i or j == length for j in range(length + 1)] for i in range(length)])
    return merge(attend(q, k, v, keep))


right_added_value_in_front, reference_added_value_in_front = right_added_key_as_value, reference_added_key_as_value
reference_mask_before_added_key = reference_added_key_as_value


def step(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One query (B, H, Dk) attends to cached keys and values (B, H, Lp, Dk)."""
    scores = (q.unsqueeze(2) * keys).sum(dim=-1) * q.shape[-1] ** -0.5
    return (scores.softmax(dim=-1).unsqueeze(-1) * values).sum(dim=2)


def step_weighs_keys(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One query (B, H, Dk) attends to cached keys and values (B, H, Lp, Dk)."""
    scores = (q.unsqueeze(2) * keys).sum(dim=-1) * q.shape[-1] ** -0.5
    return (scores.softmax(dim=-1).unsqueeze(-1) * keys).sum(dim=2)


def _step(function, B, H, Lp, Dk):
    return function, (torch.randn(B, H, Dk), torch.randn(B, H, Lp, Dk), torch.randn(B, H, Lp, Dk)), {}


def wrong_step_weighs_keys(B, H, Lp, Dk):
    return _step(step_weighs_keys, B, H, Lp, Dk)


def right_step_weighs_keys(B, H, Lp, Dk):
    return _step(step, B, H, Lp, Dk)


def reference_step_weighs_keys(function, q, keys, values):
    return attend(q[:, :, None], keys, values)[:, :, 0]
