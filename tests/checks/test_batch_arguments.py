"""What the rule on batch elements says of masks, lengths, tables and caches."""

import torch
from torch import nn

from attnshape.checks.rules import batch
from attnshape.checks.rules.batch.arguments import BatchArguments
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Verification, Violation
from tests.checks.subjects import subject_of

INDEPENDENT = "batch elements don't affect each other"
IN_ANY_ORDER = f"{INDEPENDENT}, whatever their order"


def outcomes(case, *claims: str, **given: int) -> list[Outcome]:
    return list(batch.check(subject_of(case, claims=claims, **given)))


def attend(q, k, v, hidden=None):
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return (scores if hidden is None else scores.masked_fill(hidden, -torch.inf)).softmax(dim=-1) @ v


def padded(hide):
    """Return a case of attention whose lengths become a mask by a function of the lengths and the steps."""

    def case(B, L, Dk):
        def function(x, lengths):
            return attend(x, x, x, hide(lengths, torch.arange(L)))

        return function, (torch.randn(B, L, Dk), L - torch.arange(B) % (L - 1))

    return case


def test_verified_sentence_names_what_was_varied() -> None:
    assert outcomes(padded(lambda lengths, steps: steps >= lengths[:, None, None])) == [
        Verification(f"{IN_ANY_ORDER} (varied: x, lengths)")
    ]


def test_batch_too_small_to_tell_its_axis_is_not_varied_in_other_arguments() -> None:
    case = padded(lambda lengths, steps: steps >= lengths[:, None, None])
    axes = [BatchArguments(subject_of(case, B=size), "B").axes for size in (2, 3, 4)]
    assert axes == [{}, {}, {"x": 0, "lengths": 0}]


def test_argument_that_is_the_same_for_all_elements_is_not_varied() -> None:
    def case(B, L, Dk):
        return lambda x, keep: attend(x, x, x, ~keep[:, None]), (
            torch.randn(B, L, Dk),
            torch.arange(L).expand(B, L) < 9,
        )

    assert outcomes(case) == [Verification(f"{IN_ANY_ORDER} (varied: x)")]


def test_number_read_from_one_element_is_found_where_it_is_read() -> None:
    (found,) = outcomes(padded(lambda lengths, steps: steps >= lengths[0].item()))
    assert isinstance(found, Violation)
    assert found.code == "AS117"
    assert "lengths" in found.message
    assert found.at is not None


def test_element_in_the_middle_is_found() -> None:
    (found,) = outcomes(padded(lambda lengths, steps: steps >= lengths[1]))
    assert isinstance(found, Violation)
    assert found.code == "AS117"


def test_elements_shifted_by_one_are_found() -> None:
    (found,) = outcomes(padded(lambda lengths, steps: steps >= lengths.roll(1)[:, None, None]))
    assert isinstance(found, Violation)
    assert (found.code, found.evidence) == ("AS117", "swapped elements 0 and 4 of lengths")


def test_largest_length_for_all_elements_affects_them() -> None:
    (found,) = outcomes(padded(lambda lengths, steps: steps >= lengths.max() - 3))
    assert isinstance(found, Violation)
    assert found.code == "AS101"
    assert found.message.endswith("max runs over the batch")


def test_padding_to_the_longest_sequence_is_right() -> None:
    def case(B, L, Dk):
        def function(x, lengths):
            longest = int(lengths.max())
            x = x[:, :longest]
            return attend(x, x, x, torch.arange(longest) >= lengths[:, None, None])

        return function, (torch.randn(B, L, Dk), L - 1 - torch.arange(B) % (L - 2))

    found = outcomes(case)
    assert [one for one in found if isinstance(one, Violation)] == []
    assert batch.verifies_independence(found)


def test_beams_that_are_looked_up_are_not_independent_and_not_wrong() -> None:
    def case(B, L, Dk):
        def function(q, past, beams):
            past = past.index_select(0, beams)
            return attend(q, past, past)

        return function, (torch.randn(B, 1, Dk), torch.randn(B, L, Dk), torch.arange(B).roll(1))

    verified, undecided = outcomes(case)
    assert isinstance(verified, Verification)
    assert verified.text == "a batch in another order gives the same results in that order (varied: q, beams)"
    assert isinstance(undecided, Undecided)
    assert not batch.verifies_independence([verified, undecided])


def test_sorted_sequences_are_right() -> None:
    def case(B, L, Dk):
        def function(x, lengths):
            order = lengths.argsort(descending=True)
            x, lengths = x[order], lengths[order]
            return attend(x, x, x, torch.arange(L) >= lengths[:, None, None])

        return function, (torch.randn(B, L, Dk), L - (torch.arange(B) * 2) % (L - 1))

    assert [one for one in outcomes(case) if isinstance(one, Violation)] == []


def test_pages_are_shared() -> None:
    def case(B, L, Dk):
        def function(q, pages, table):
            return attend(q, pages[table].flatten(1, 2), pages[table].flatten(1, 2))

        return function, (torch.randn(B, 1, Dk), torch.randn(2 * B, L, Dk), torch.arange(2 * B).roll(3).view(B, 2))

    texts = [one.text for one in outcomes(case) if isinstance(one, Verification)]
    assert texts == ["a batch in another order gives the same results in that order (varied: q, table)"]


def test_buffer_of_each_element_is_reordered_too() -> None:
    class Cached(nn.Module):
        def __init__(self, B, L, Dk):
            super().__init__()
            self.register_buffer("past", torch.randn(B, L, Dk))

        def forward(self, x, lengths):
            hidden = torch.arange(2 * x.shape[1]) >= x.shape[1] + lengths[:, None, None]
            kv = torch.cat((self.past, x), dim=1)
            return attend(x, kv, kv, hidden)

    def case(B, L, Dk):
        return Cached(B, L, Dk), (torch.randn(B, L, Dk), L - torch.arange(B) % L)

    assert outcomes(case) == [Verification(f"{IN_ANY_ORDER} (varied: x, lengths)")]


def test_constant_of_each_place_is_observed() -> None:
    def case(B, L, Dk):
        table = torch.randn(B, 1, 1, generator=torch.Generator().manual_seed(0))
        return lambda x, keep: attend(x, x, x, ~keep[:, None]) + table.to(x.dtype), (
            torch.randn(B, L, Dk),
            torch.arange(L) < L - torch.arange(B)[:, None] % L,
        )

    observed, verified = outcomes(case)
    assert isinstance(observed, Observation)
    assert verified == Verification(f"{INDEPENDENT} (varied: x)")


def test_claimed_mask_in_the_wrong_order_has_the_code_of_masks() -> None:
    def case(B, H, L, Dk):
        def function(q, k, v, keep):
            q, k, v = (t.flatten(0, 1) for t in (q, k, v))
            hidden = ~keep.repeat(H, 1)[:, None]
            return ((q @ k.mT * Dk**-0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v).unflatten(0, (B, H))

        keep = torch.arange(L) < L - torch.arange(B)[:, None]
        return function, (*(torch.randn(B, H, L, Dk) for _ in range(3)), keep)

    assert [one.code for one in outcomes(case) if isinstance(one, Violation)] == ["AS117"]
    assert outcomes(case, "keep=keep") == [Verification(f"{INDEPENDENT} (varied: q, k, v)")]


def test_softmax_over_merged_batch_and_tokens_mixes_the_batch() -> None:
    def attention(q, context):
        scores = torch.bmm(q, context.mT).flatten(0, 1)
        return torch.bmm(scores.softmax(dim=0).view(*q.shape[:2], -1), context)

    (found,) = batch.check(subject_of(attention, {"q": "B Lq D", "context": "B Lk D"}))
    assert isinstance(found, Violation)
    assert (found.code, found.message.partition(": ")[2]) == ("AS101", "softmax runs over the batch")


def test_packed_sequences_have_no_batch() -> None:
    def attention(q, k, v):
        return torch.einsum("hij,jhd->ihd", torch.einsum("ihd,jhd->hij", q, k).softmax(-1), v)

    values = dict.fromkeys("qkv", "T H Dk")
    (undecided,) = batch.check(subject_of(attention, values, T=17))
    assert undecided == Undecided(batch.TOPIC, "no axis of the inputs is the batch")
