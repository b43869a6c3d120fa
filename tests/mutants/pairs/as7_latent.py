"""AS70x where only a part of each head is rotated, as in latent attention, and in loops of one token at a time."""

import torch
from torch import nn

from tests.mutants.plain import causal, softmax

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 5, "H": 3, "L": 8, "Dk": 6})
PAIRS = [
    ("AS704", "latent_layout", *SELF),
    ("AS703", "latent_keys_one_further", *SELF),
    ("AS702", "latent_values_too", *SELF),
    ("AS708", "latent_without_rotation", *SELF),
    ("AS703", "joined_query_only", *SELF),
    ("AS704", "joined_layout", *SELF),
    ("AS708", "joined_same_angle", *SELF),
    ("AS708", "angles_of_one_token", *SELF),
    ("AS704", "layout_in_steps", *SELF),
    ("AS704", "odd_part_layout", *SELF),
    ("AS703", "odd_part_keys_further", *SELF),
]


def turn_halves(x, position):
    half = x.shape[-1] // 2
    angle = position[:, None] * 100.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    first, second = x[..., :half], x[..., half:]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def turn_pairs(x, position):
    half = x.shape[-1] // 2
    angle = position[:, None] * 100.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    first, second = x[..., ::2], x[..., 1::2]
    cos, sin = angle.cos(), angle.sin()
    return torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)


class Latent(nn.Module):
    """The scores of a part that isn't rotated and of a rotated one, whose keys all heads share, are added."""

    fixed, rank = 5, 9

    def __init__(self, width, heads, rotated):
        super().__init__()
        self.heads, self.rotated = heads, rotated
        self.q = nn.Linear(width, heads * (self.fixed + rotated), bias=False)
        self.down = nn.Linear(width, self.rank + rotated, bias=False)
        self.up = nn.Linear(self.rank, heads * 2 * self.fixed, bias=False)
        self.out = nn.Linear(heads * self.fixed, width, bias=False)

    def turn(self, x, position):
        return turn_pairs(x, position)

    def turn_key(self, x, position):
        return self.turn(x, position)

    def turn_value(self, v, position):
        return v

    def parts(self, x):
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q_fixed, q_turned = q.split((self.fixed, self.rotated), dim=-1)
        latent, k_turned = self.down(x).split((self.rank, self.rotated), dim=-1)
        k_fixed, v = self.up(latent).unflatten(-1, (self.heads, -1)).transpose(1, 2).chunk(2, dim=-1)
        position = torch.arange(x.shape[1], dtype=x.dtype)
        turned = self.turn(q_turned, position), self.turn_key(k_turned, position)
        return q_fixed, k_fixed, self.turn_value(v, position), *turned

    def scores(self, q_fixed, k_fixed, q_turned, k_turned):
        return q_fixed @ k_fixed.mT + torch.einsum("bhid,bjd->bhij", q_turned, k_turned)

    def forward(self, x):
        q_fixed, k_fixed, v, q_turned, k_turned = self.parts(x)
        scores = self.scores(q_fixed, k_fixed, q_turned, k_turned) / (self.fixed + self.rotated) ** 0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, -torch.inf).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class LatentInHalves(Latent):
    def turn(self, x, position):
        return turn_halves(x, position)


class LatentKeysFurther(Latent):
    def turn_key(self, x, position):
        return self.turn(x, position + 1)


class LatentValues(Latent):
    def turn_value(self, v, position):
        return torch.cat((turn_pairs(v[..., :4], position), v[..., 4:]), dim=-1)


class LatentUnturned(Latent):
    def turn(self, x, position):
        return x


class Joined(Latent):
    """Heads are joined from both parts, in front of one product."""

    def turn(self, x, position):
        return turn_halves(x, position)

    def scores(self, q_fixed, k_fixed, q_turned, k_turned):
        shared = k_turned[:, None].expand(-1, self.heads, -1, -1)
        return torch.cat((q_fixed, q_turned), dim=-1) @ torch.cat((k_fixed, shared), dim=-1).mT


class JoinedQueryOnly(Joined):
    def turn_key(self, x, position):
        return x


class JoinedInPairs(Joined):
    def turn(self, x, position):
        return turn_pairs(x, position)


class JoinedSameAngle(Joined):
    def turn(self, x, position):
        return turn_halves(x, torch.full_like(position, len(position)))


def _latent(cls, layout, B, H, L, Dk):
    return cls(H * Dk + 1, H, Dk), (torch.randn(B, L, H * Dk + 1),), {}, ["causal", f"rope={layout}"]


def _reference(module, x, turn):
    """Attention with one product over the features of both parts, head by head."""
    position, fixed = torch.arange(x.shape[1], dtype=x.dtype), module.fixed
    latent, shared = (x @ module.down.weight.T).split((module.rank, module.rotated), dim=-1)
    heads = []
    for head in range(module.heads):
        rows = module.q.weight.chunk(module.heads)[head]
        q = torch.cat((x @ rows[:fixed].T, turn(x @ rows[fixed:].T, position)), dim=-1)
        rows = module.up.weight.chunk(module.heads)[head]
        k = torch.cat((latent @ rows[:fixed].T, turn(shared, position)), dim=-1)
        scores = torch.einsum("bid,bjd->bij", q, k) / q.shape[-1] ** 0.5
        weights = softmax(torch.where(causal(x.shape[1], x.shape[1]), scores, -torch.inf))
        heads.append(weights @ (latent @ rows[fixed:].T))
    return torch.cat(heads, dim=-1) @ module.out.weight.T


def wrong_latent_layout(B, H, L, Dk):
    return _latent(LatentInHalves, "interleaved", B, H, L, Dk)


def right_latent_layout(B, H, L, Dk):
    return _latent(Latent, "interleaved", B, H, L, Dk)


def reference_latent_layout(module, x):
    return _reference(module, x, turn_pairs)


def wrong_latent_keys_one_further(B, H, L, Dk):
    return _latent(LatentKeysFurther, "interleaved", B, H, L, Dk)


def right_latent_keys_one_further(B, H, L, Dk):
    return _latent(Latent, "interleaved", B, H, L, Dk)


def reference_latent_keys_one_further(module, x):
    return _reference(module, x, turn_pairs)


def wrong_latent_values_too(B, H, L, Dk):
    return _latent(LatentValues, "interleaved", B, H, L, Dk)


def right_latent_values_too(B, H, L, Dk):
    return _latent(Latent, "interleaved", B, H, L, Dk)


def reference_latent_values_too(module, x):
    return _reference(module, x, turn_pairs)


def wrong_latent_without_rotation(B, H, L, Dk):
    return _latent(LatentUnturned, "interleaved", B, H, L, Dk)


def right_latent_without_rotation(B, H, L, Dk):
    return _latent(Latent, "interleaved", B, H, L, Dk)


def reference_latent_without_rotation(module, x):
    return _reference(module, x, turn_pairs)


def wrong_joined_query_only(B, H, L, Dk):
    return _latent(JoinedQueryOnly, "half", B, H, L, Dk)


def right_joined_query_only(B, H, L, Dk):
    return _latent(Joined, "half", B, H, L, Dk)


def reference_joined_query_only(module, x):
    return _reference(module, x, turn_halves)


def wrong_joined_layout(B, H, L, Dk):
    return _latent(JoinedInPairs, "half", B, H, L, Dk)


def right_joined_layout(B, H, L, Dk):
    return _latent(Joined, "half", B, H, L, Dk)


def reference_joined_layout(module, x):
    return _reference(module, x, turn_halves)


def wrong_joined_same_angle(B, H, L, Dk):
    return _latent(JoinedSameAngle, "half", B, H, L, Dk)


def right_joined_same_angle(B, H, L, Dk):
    return _latent(Joined, "half", B, H, L, Dk)


def reference_joined_same_angle(module, x):
    return _reference(module, x, turn_halves)


class OddPart(Joined):
    """The rotated part has an odd number of features, of which the last one stays as it is."""

    def turn_even(self, x, position):
        return turn_halves(x, position)

    def turn(self, x, position):
        return torch.cat((self.turn_even(x[..., :-1], position), x[..., -1:]), dim=-1)


class OddPartInPairs(OddPart):
    def turn_even(self, x, position):
        return turn_pairs(x, position)


class OddPartKeysFurther(OddPart):
    def turn_key(self, x, position):
        return self.turn(x, position + 1)


def wrong_odd_part_layout(B, H, L, Dk):
    return _latent(OddPartInPairs, "half", B, H, L, Dk + 1)


def right_odd_part_layout(B, H, L, Dk):
    return _latent(OddPart, "half", B, H, L, Dk + 1)


def _reference_of_odd_part(module, x):
    return _reference(module, x, lambda one, place: torch.cat((turn_halves(one[..., :-1], place), one[..., -1:]), -1))


def reference_odd_part_layout(module, x):
    return _reference_of_odd_part(module, x)


def wrong_odd_part_keys_further(B, H, L, Dk):
    return _latent(OddPartKeysFurther, "half", B, H, L, Dk + 1)


def right_odd_part_keys_further(B, H, L, Dk):
    return _latent(OddPart, "half", B, H, L, Dk + 1)


def reference_odd_part_keys_further(module, x):
    return _reference_of_odd_part(module, x)


class TokenByToken(nn.Module):
    """Each token attends to the cached keys of those before it, and to its own."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def turn(self, x, start):
        return turn_halves(x, torch.arange(start, start + x.shape[-2], dtype=x.dtype))

    def forward(self, x):
        outputs, keys, values = [], [], []
        for token in x.split(1, dim=1):
            q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(token).chunk(3, dim=-1))
            q, k = self.turn(q, len(keys)), self.turn(k, len(keys))
            keys, values = [*keys, k], [*values, v]
            weights = (q @ torch.cat(keys, dim=2).mT / q.shape[-1] ** 0.5).softmax(dim=-1)
            outputs.append((weights @ torch.cat(values, dim=2)).transpose(1, 2).flatten(2))
        return self.out(torch.cat(outputs, dim=1))


class AnglesOfOneToken(TokenByToken):
    def turn(self, x, start):
        return super().turn(x, 0)


class TokenInPairs(TokenByToken):
    def turn(self, x, start):
        return turn_pairs(x, torch.arange(start, start + x.shape[-2], dtype=x.dtype))


def _steps(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal", "rope=half"]


def _reference_of_steps(module, x):
    position = torch.arange(x.shape[1], dtype=x.dtype)
    q, k, v = (torch.stack(t.chunk(module.heads, dim=-1), 1) for t in (x @ module.qkv.weight.T).chunk(3, dim=-1))
    q, k = turn_halves(q, position), turn_halves(k, position)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    weights = softmax(torch.where(causal(x.shape[1], x.shape[1]), scores, -torch.inf))
    return torch.cat((weights @ v).unbind(1), dim=-1) @ module.out.weight.T


def wrong_angles_of_one_token(B, H, L, Dk):
    return _steps(AnglesOfOneToken, B, H, L, Dk)


def right_angles_of_one_token(B, H, L, Dk):
    return _steps(TokenByToken, B, H, L, Dk)


def reference_angles_of_one_token(module, x):
    return _reference_of_steps(module, x)


def wrong_layout_in_steps(B, H, L, Dk):
    return _steps(TokenInPairs, B, H, L, Dk)


def right_layout_in_steps(B, H, L, Dk):
    return _steps(TokenByToken, B, H, L, Dk)


def reference_layout_in_steps(module, x):
    return _reference_of_steps(module, x)
