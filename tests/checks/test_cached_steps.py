"""A token after a cache, and the same token together with those before it: when they are compared, and when not."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnshape.checks.attention.subject import Subject
from attnshape.checks.rules import causality, rotations
from attnshape.checks.rules.caches.steps import step_by_step
from attnshape.checks.rules.protocol import Outcome, Undecided, Verification, Violation
from tests.checks.subjects import subject_of
from tests.mutants.pairs.as908 import RightRotary, turn

INPUTS = {"x": "B L H*Dk", "past_k": "B H Lp Dk", "past_v": "B H Lp Dk"}
SIZES = {"B": 5, "H": 7, "L": 11, "Lp": 13, "Dk": 6}


class Decoder(RightRotary):
    def place(self, past: int, n: int) -> torch.Tensor:
        return torch.arange(past, past + n) if n > 1 else torch.zeros(1)


class WithOffset(Decoder):
    """The caller says where the tokens begin."""

    def forward(self, x, past_k, past_v, start=0):  # type: ignore[no-untyped-def]
        return super().forward(x, past_k, past_v)


class WithPositions(Decoder):
    """The caller may give the positions."""

    def forward(self, x, past_k, past_v, positions=None):  # type: ignore[no-untyped-def]
        return super().forward(x, past_k, past_v)


class Bidirectional(Decoder):
    """New tokens see each other, so that results change with those that come later."""

    def keep(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)


class LastTokens(nn.Module):
    """Only the last tokens stay in the cache."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.inner = Decoder(width, heads)

    def forward(self, x, past_k, past_v):  # type: ignore[no-untyped-def]
        out, k, v = self.inner(x, past_k, past_v)
        return out, k[:, :, -past_k.shape[2] :], v[:, :, -past_v.shape[2] :]


def outcomes(module: nn.Module) -> list[Outcome]:
    return list(step_by_step(subject_of(module, INPUTS, **SIZES)))


def test_step_that_differs_is_found_and_one_that_agrees_verified() -> None:
    assert [type(one) for one in outcomes(Decoder(42, 7))] == [Violation]
    assert [type(one) for one in outcomes(RightRotary(42, 7))] == [Verification]


@pytest.mark.parametrize("kind", [WithOffset, WithPositions, Bidirectional, LastTokens])
def test_nothing_is_said_where_the_call_may_mean_something_else(kind: type[nn.Module]) -> None:
    assert outcomes(kind(42, 7)) == []


def test_one_new_token_says_nothing_of_rotations() -> None:
    class OneToken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(42, 126)

        def forward(self, x: torch.Tensor, past_k: torch.Tensor, past_v: torch.Tensor) -> torch.Tensor:
            q, k, v = (t.unflatten(-1, (7, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
            place = torch.tensor([past_k.shape[2]])
            k, v = torch.cat((past_k, turn(k, place)), 2), torch.cat((past_v, v), 2)
            return F.scaled_dot_product_attention(turn(q, place), k, v)

    sizes = {"B": 5, "H": 7, "Lp": 13, "Dk": 6}
    subject = subject_of(OneToken(), {**INPUTS, "x": "B 1 H*Dk"}, ("rope=half",), **sizes)
    assert [one for one in rotations.check(subject) if isinstance(one, Violation)] == []


class Prefilled(nn.Module):
    """Several tokens, then a single one, with a cache that has more slots than there are tokens."""

    def __init__(self, rotates_query: bool = True, rotates_key: bool = True) -> None:
        super().__init__()
        self.qkv = nn.Linear(42, 126)
        self.last = rotates_query, rotates_key

    def step(self, x, keys, values, past, rotates):  # type: ignore[no-untyped-def]
        q, k, v = (t.unflatten(-1, (7, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        place = torch.arange(past, past + x.shape[1])
        q, k = (turn(t, place) if turns else t for t, turns in zip((q, k), rotates, strict=True))
        keys[:, :, place], values[:, :, place] = k, v
        return F.scaled_dot_product_attention(q, keys, values, torch.arange(keys.shape[2]) <= place[:, None])

    def forward(self, x, keys, values):  # type: ignore[no-untyped-def]
        keys, values = keys.clone(), values.clone()
        first = self.step(x[:, :-1], keys, values, 0, (True, True))
        return torch.cat((first, self.step(x[:, -1:], keys, values, x.shape[1] - 1, self.last)), 2)


class OnlyStep(Prefilled):
    """The step doesn't read the cache that the other call fills."""

    def forward(self, x, keys, values):  # type: ignore[no-untyped-def]
        first = self.step(x[:, :-1], keys.clone(), values.clone(), 0, (True, True))
        return torch.cat((first, self.step(x[:, -1:], keys.clone(), values.clone(), x.shape[1] - 1, self.last)), 2)


class GivenPositions(Prefilled):
    """The step is rotated by an argument."""

    def forward(self, x, keys, values, at):  # type: ignore[no-untyped-def]
        self.step = partial(self.at_positions, at)
        return super().forward(x, keys, values)

    def at_positions(self, at, x, keys, values, past, rotates):  # type: ignore[no-untyped-def]
        q, k, v = (t.unflatten(-1, (7, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        place = torch.arange(past, past + x.shape[1])
        q, k = (turn(t, at[place]) if turns else t for t, turns in zip((q, k), rotates, strict=True))
        keys[:, :, place], values[:, :, place] = k, v
        return F.scaled_dot_product_attention(q, keys, values, torch.arange(keys.shape[2]) <= place[:, None])


SLOTS = {"x": "B L H*Dk", "keys": "B H Lk Dk", "values": "B H Lk Dk"}


@pytest.mark.parametrize(
    ("rotates", "code"),
    [((True, True), None), ((False, True), "AS703"), ((True, False), "AS703"), ((False, False), "AS703")],
)
def test_step_in_a_cache_with_free_slots_is_rotated_by_its_position(rotates: tuple[bool, bool], code: str) -> None:
    subject = subject_of(Prefilled(*rotates), SLOTS, ("rope=half",), **{**SIZES, "Lk": 17})
    found = list(rotations.check(subject))
    assert [one.code for one in found if isinstance(one, Violation)] == ([code] if code else [])
    says_so = any(isinstance(one, Verification) and "rotated by their positions" in one.text for one in found)
    assert says_so == (code is None)


@pytest.mark.parametrize("rotates", [True, False])
def test_nothing_is_verified_of_a_step_that_cannot_be_judged(rotates: bool) -> None:
    subject = subject_of(OnlyStep(rotates, rotates), SLOTS, ("rope=half",), **{**SIZES, "Lk": 17})
    assert [type(one) for one in rotations.check(subject)] == [Undecided]


def test_nothing_is_verified_of_a_step_whose_positions_are_given() -> None:
    positions = {"at": torch.arange(11)}
    subject = subject_of(GivenPositions(False, False), SLOTS, ("rope=half",), values=positions, **{**SIZES, "Lk": 17})
    assert [type(one) for one in rotations.check(subject)] == [Undecided]


def test_part_of_the_tokens_that_is_not_rotated_is_named() -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(42, 126)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (t.unflatten(-1, (7, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
            place = torch.arange(x.shape[1])
            place = torch.where((place > 3) & (place < 8), 0, place)
            return F.scaled_dot_product_attention(turn(q, place), turn(k, place), v)

    subject = subject_of(Parts(), {"x": "B L H*Dk"}, ("rope=half",), **SIZES)
    (found,) = (one for one in rotations.check(subject) if isinstance(one, Violation))
    assert found.code == "AS708"
    assert "tokens 4 to 7" in found.message


class Rolling(nn.Module):
    """The keys of the last tokens stay; each step has one query, whose grouped heads share them."""

    def __init__(self, counts_what_is_kept: bool) -> None:
        super().__init__()
        self.counts_what_is_kept = counts_what_is_kept
        self.wq, self.wk, self.wv = (nn.Linear(84, width) for width in (84, 28, 28))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keys = values = x.new_zeros(x.shape[0], 0, 7, 4)
        out = []
        for step, token in enumerate(x.unbind(1)):
            q = self.wq(token).unflatten(-1, (7, 3, 4))
            k, v = (w(token).unflatten(-1, (1, 7, 4)) for w in (self.wk, self.wv))
            place = torch.tensor([keys.shape[1] if self.counts_what_is_kept else step])
            keys = torch.cat((keys, turn(k, place)), dim=1)[:, -5:]
            values = torch.cat((values, v), dim=1)[:, -5:]
            scores = torch.einsum("bhgd,bkhd->bhgk", turn(q, place), keys) / 2
            out.append(torch.einsum("bhgk,bkhd->bhgd", scores.softmax(-1), values).flatten(1))
        return torch.stack(out, 1)


def rolling(counts_what_is_kept: bool) -> Subject:
    sizes = {"B": 6, "Hkv": 7, "G": 3, "L": 4, "Dk": 4, "W": 5}
    inputs, claims = {"x": "B L+W Hkv*G*Dk"}, ("causal", "window=W", "rope=half")
    return subject_of(Rolling(counts_what_is_kept), inputs, claims, **sizes)


def test_steps_whose_cache_rolls_are_judged() -> None:
    subject = rolling(counts_what_is_kept=False)
    for rule in (causality, rotations):
        assert {type(one) for one in rule.check(subject)} == {Verification}


def test_place_in_a_cache_that_rolls_is_no_position() -> None:
    found = [one for one in rotations.check(rolling(counts_what_is_kept=True)) if isinstance(one, Violation)]
    assert [one.code for one in found] == ["AS703"]
    assert "the key of token 6 is rotated like one at position 5" in found[0].message
    assert "those no longer cached included" in found[0].hint


class Memory(nn.Module):
    """A memory that is joined to the tokens before both are projected is no cache."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_in, self.to_qkv, self.to_out = (nn.Linear(width, out) for out in (width, 3 * width, width))

    def forward(self, x, memory):  # type: ignore[no-untyped-def]
        both = torch.cat((memory, self.to_in(x)), dim=1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(both).chunk(3, dim=-1))
        return self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def test_the_symbol_of_cached_keys_is_the_users() -> None:
    sizes = {"P" if symbol == "Lp" else symbol: size for symbol, size in SIZES.items()}
    inputs = {name: axes.replace("Lp", "P") for name, axes in INPUTS.items()}
    subject = subject_of(Decoder(42, 7), inputs, **sizes)
    assert (subject.past, subject.past_size, subject.lengths) == ("P", 13, ("L", "P"))


class Stacked(Decoder):
    """What is new lies beside the cache for a moment, in an axis of its own."""

    def forward(self, x, past_k, past_v):  # type: ignore[no-untyped-def]
        beside = torch.stack((past_k, past_k + self.to_out(x).mean()))
        return super().forward(x, beside[0], past_v)


def test_stacked_caches_have_no_axis_of_joined_keys() -> None:
    inputs = {name: axes.replace("Lp", "P") for name, axes in INPUTS.items()}
    subject = subject_of(Stacked(42, 7), inputs, B=5, H=7, L=11, P=13, Dk=6)
    assert subject.past == "P"


def test_a_memory_that_is_projected_is_no_cache() -> None:
    subject = subject_of(Memory(42, 7), {"x": "B L H*Dk", "memory": "B M H*Dk"}, B=5, H=7, L=11, M=13, Dk=6)
    assert (subject.past, subject.past_size) == ("", 0)
