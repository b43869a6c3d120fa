"""Whether a batch element's result depends on its place in the batch: tables are wrong, noise and caches are not."""

import pytest
import torch
from torch import nn

from attnshape.checks.rules import batch
from attnshape.checks.rules.protocol import Verification, Violation
from tests.checks.subjects import subject_of

INDEPENDENT = "batch elements don't affect each other"


def attend(x):
    return (x @ x.mT * x.shape[-1] ** -0.5).softmax(dim=-1) @ x


def found_in(function, *others, claims=(), x=lambda B, L, Dk: torch.randn(B, L, Dk)):
    """Return the violations and the verified texts of a function of x and other arguments."""

    def case(B, L, Dk):
        return function, (x(B, L, Dk), *(other(B, L, Dk) for other in others))

    outcomes = list(batch.check(subject_of(case, claims=claims)))
    violations = [one for one in outcomes if isinstance(one, Violation)]
    return violations, [one.text for one in outcomes if isinstance(one, Verification)]


class Table(nn.Module):
    """Adds something of a learned or fixed table to the tokens."""

    def __init__(self, cut, fixed=False, rows=20):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(rows, 1, 3, generator=generator)
        self.table = nn.Buffer(rows) if fixed else nn.Parameter(rows)
        self.cut = cut

    def forward(self, x):
        return attend(x + self.cut(self.table, x))


def by_batch(table, x):
    return table[: x.shape[0]]


@pytest.mark.parametrize("fixed", [False, True])
def test_table_that_the_batch_cuts_is_found(fixed) -> None:
    (violation,), texts = found_in(Table(by_batch, fixed))
    assert violation.code == "AS118"
    assert "another part of table" in violation.message
    assert texts == []


def test_parameter_with_a_row_for_each_element_is_found() -> None:
    (violation,), _ = found_in(Table(lambda table, x: table, rows=5))
    assert violation.code == "AS118"


def test_buffer_with_a_row_for_each_element_may_be_its_state() -> None:
    found = found_in(Table(lambda table, x: table, fixed=True, rows=5))
    assert found == ([], [f"{INDEPENDENT}, whatever their order (varied: x)"])


def test_several_tables_are_found_at_the_first() -> None:
    (violation,), _ = found_in(Table(lambda table, x: by_batch(table, x) * 2 + table[5:10].cos(), fixed=True))
    assert violation.code == "AS118"

    def twice(table, x):
        return by_batch(table, attend(x + by_batch(table, x)))

    (violation,), _ = found_in(Table(twice))
    assert violation.code == "AS118"


def test_numbers_counted_along_the_batch_are_found() -> None:
    (violation,), _ = found_in(lambda x: attend(x + torch.arange(len(x)).cos()[:, None, None]))
    assert violation.code == "AS118"
    assert "other numbers" in violation.message


def test_table_is_found_next_to_a_mask() -> None:
    def function(x, keep):
        scores = (x @ x.mT).masked_fill(~keep[:, None], -torch.inf)
        return scores.softmax(dim=-1) @ x + torch.arange(len(x))[:, None, None].sin()

    (violation,), texts = found_in(function, lambda B, L, Dk: torch.arange(L) < L - torch.arange(B)[:, None] % (L - 2))
    assert violation.code == "AS118"
    assert texts == []


def test_sequence_first_table_is_right() -> None:
    table = torch.randn(40, 1, 3, generator=torch.Generator().manual_seed(0))

    def function(x):
        return attend((x + table[: len(x)].to(x.dtype)).transpose(0, 1)).transpose(0, 1)

    found = found_in(function, claims=("seq-first",), x=lambda B, L, Dk: torch.randn(L, B, Dk))
    assert found == ([], [f"{INDEPENDENT}, whatever their order (varied: x)"])


def own_noise(x):
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    return attend(x + noise)


def seeded_noise(x):
    torch.manual_seed(3)
    return attend(x + torch.rand_like(x))


def global_noise(x):
    return attend(x + torch.randn(len(x), 1, 1))


def halves(x):
    """Two halves of a batch, such as with and without a condition."""
    kinds = (torch.arange(len(x)) < len(x) // 2).to(x.dtype)
    return attend(x + kinds[:, None, None])


def own_rows(x):
    return attend(x)[torch.arange(len(x)), -1]


def offsets(x):
    flat = x.flatten(0, 1)
    return attend(flat[torch.arange(x.shape[1]) + torch.arange(len(x))[:, None] * x.shape[1]])


@pytest.mark.parametrize("function", [own_noise, seeded_noise, global_noise, halves, own_rows, offsets])
def test_what_belongs_to_elements_by_intent_is_no_mistake(function) -> None:
    violations, texts = found_in(function)
    assert violations == []
    assert len(texts) == 1
    assert texts[0].startswith(INDEPENDENT)


def test_order_of_rows_that_are_found_by_place_is_verified() -> None:
    for function in (own_rows, offsets):
        assert found_in(function)[1] == [f"{INDEPENDENT}, whatever their order (varied: x)"]


def test_list_with_an_item_for_each_element_is_no_mistake() -> None:
    def function(x, lengths):
        scale = torch.stack([torch.full((1, 1), 1.0 / length) for length in lengths])
        return attend(x * scale)

    violations, texts = found_in(function, lambda B, L, Dk: [L - place for place in range(B)])
    assert violations == []
    assert texts == [f"{INDEPENDENT} (varied: x)"]


def test_cache_for_the_largest_batch_is_no_mistake() -> None:
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("past", torch.randn(16, 4, 3, generator=torch.Generator().manual_seed(0)))

        def forward(self, x):
            kv = torch.cat((self.past[: len(x)], x), dim=1)
            return (x @ kv.mT * 3**-0.5).softmax(dim=-1) @ kv

    assert found_in(Cached())[0] == []


def test_pool_that_is_an_argument_is_no_mistake() -> None:
    def function(x, pool):
        return attend(x + pool[: len(x)])

    assert found_in(function, lambda B, L, Dk: torch.randn(B + 4, 1, Dk))[0] == []
