"""Each axis of a product's operands is shared, free or contracted."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnshape.checks.attention.cores import product
from attnshape.checks.attention.products import recompute
from attnshape.checks.rules.reference import einsum_product as computed
from tests.checks.subjects import flow_of, normal

EINSUM_LETTERS = "abcdef"


def products_of(function, **tensors):
    flow = flow_of(function, **tensors)
    return [found for event in flow.nodes if (found := product(event, flow)) is not None]


def product_of(function, **tensors):
    (found,) = products_of(function, **tensors)
    return found


@st.composite
def equations(draw, sizes):
    """Draw the axes of two operands and their product, and the size of each axis."""
    left, right = (draw(st.lists(st.sampled_from(EINSUM_LETTERS), min_size=1, max_size=4, unique=True)) for _ in "12")
    every = sorted({*left, *right})
    out = draw(st.permutations(every))[: draw(st.integers(0, len(every)))]
    return "".join(left), "".join(right), "".join(out), dict(zip(EINSUM_LETTERS, draw(sizes), strict=True))


different = st.permutations((2, 3, 4, 5, 6, 7))
repeated = st.lists(st.sampled_from((2, 3)), min_size=6, max_size=6)


def check_axes(left, right, out, sizes):
    x, y = normal(*(sizes[c] for c in left)), normal(*(sizes[c] for c in right), seed=1)
    found = product_of(lambda x, y: torch.einsum(f"{left},{right}->{out}", x, y), x=x, y=y)
    for place, term in ((found.left, left), (found.right, right)):
        assert found.axes[place] == tuple(frozenset({out.index(c)} if c in out else ()) for c in term)
        assert found.contracted(place) == tuple(axis for axis, c in enumerate(term) if c not in out)
    assert found.shared == {axis for axis, c in enumerate(out) if c in left and c in right}
    assert found.free(found.left) == {axis for axis, c in enumerate(out) if c not in right}
    assert found.free(found.right) == {axis for axis, c in enumerate(out) if c not in left}
    return found


@settings(max_examples=120, deadline=None)
@given(equations(different))
def test_axes_of_an_einsum_match_its_equation(equation):
    check_axes(*equation)


@settings(max_examples=80, deadline=None)
@given(equations(repeated))
def test_axes_of_equal_sizes_are_distinguished(equation):
    check_axes(*equation)


@settings(max_examples=80, deadline=None)
@given(equations(different))
def test_product_is_recomputed_from_its_axes(equation):
    left, right, out, _ = equation
    found = check_axes(*equation)
    recomputed = computed(found)
    if [c for c in left if c not in out] == [c for c in right if c not in out]:
        assert recomputed is not None
        assert torch.allclose(recomputed, found.result)
    else:  # the pairing of the summed axes is ambiguous
        assert recomputed is None


@pytest.mark.parametrize(
    ("function", "x", "y", "axes"),
    [
        (torch.matmul, (2, 3, 4, 5), (2, 3, 5, 7), ([{0}, {1}, {2}, set()], [{0}, {1}, set(), {3}])),
        (torch.bmm, (2, 3, 4), (2, 4, 5), ([{0}, {1}, set()], [{0}, set(), {2}])),
        (torch.mm, (3, 4), (4, 5), ([{0}, set()], [set(), {1}])),
        (torch.mv, (3, 4), (4,), ([{0}, set()], [set()])),
        (torch.matmul, (2, 3, 4, 5), (5, 7), ([{0}, {1}, {2}, set()], [set(), {3}])),
        (torch.matmul, (2, 1, 4, 5), (2, 3, 5, 7), ([{0}, set(), {2}, set()], [{0}, {1}, set(), {3}])),
        (torch.inner, (3, 4), (5, 4), ([{0}, set()], [{1}, set()])),
        (lambda x, y: torch.tensordot(x, y, dims=1), (2, 3, 4), (4, 5), ([{0}, {1}, set()], [set(), {2}])),
        (lambda x, y: torch.einsum(x, [0, 1], y, [2, 1], [2, 0]), (3, 4), (5, 4), ([{1}, set()], [{0}, set()])),
        (lambda x, y: torch.einsum("...i,...j->...ji", x, y), (2, 3), (2, 4), ([{0}, {2}], [{0}, {1}])),
    ],
)
def test_axes_of_each_kind_of_product(function, x, y, axes):
    found = product_of(lambda x, y: function(x, y), x=normal(*x), y=normal(*y, seed=1))
    assert [[set(axis) for axis in found.axes[place]] for place in (found.left, found.right)] == list(axes)


def test_axis_of_size_one_is_not_contracted():
    found = product_of(lambda x, y: x @ y, x=normal(2, 1, 4, 5), y=normal(2, 3, 5, 7))
    assert found.contracted(found.left) == (3,)
    assert found.free(found.right) == {1, 3}
    single = product_of(lambda x, y: x @ y, x=normal(1, 4, 5), y=normal(1, 5, 7))
    assert single.shared == frozenset()
    assert single.axes[single.left] == (frozenset(), frozenset({1}), frozenset())


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0.5, 2.0), (0, 1)])
def test_baddbmm_adds_its_first_operand(beta, alpha):
    def function(start, x, y):
        return torch.baddbmm(start, x, y, beta=beta, alpha=alpha)

    start = normal(2, 3, 5, seed=2)
    found = product_of(function, start=start, x=normal(2, 3, 4), y=normal(2, 4, 5, seed=1))
    assert (found.left, found.right) == (1, 2)
    assert torch.allclose(found.added, beta * start)
    assert found.contracted(1) == (2,)
    assert found.contracted(2) == (1,)
    assert found.shared == {0}


def test_addmm_adds_its_first_operand():
    found = product_of(lambda s, x, y: torch.addmm(s, x, y), s=normal(5), x=normal(3, 4), y=normal(4, 5))
    assert torch.equal(found.added, normal(5).expand(3, 5))
    assert product_of(lambda x, y: x @ y, x=normal(3, 4), y=normal(4, 5)).added == 0


def test_multiply_and_sum_is_a_product():
    def function(q, k):
        return (q[:, :, :, None, :] * k[:, :, None, :, :]).sum(-1)

    found = product_of(function, q=normal(2, 3, 4, 6), k=normal(2, 3, 5, 6, seed=1))
    assert (found.first.name, found.last.name) == ("mul", "sum")
    assert found.shared == {0, 1}
    assert found.free(found.left) == {2}
    assert found.free(found.right) == {3}
    assert found.contracted(found.left) == found.contracted(found.right) == (4,)
    assert found.ref == found.last.refs[0]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x * y).sum(-1),  # spreads nothing
        lambda x, y: (x[:, None] * y[None]).amax(-1),
        lambda x, y: (x[:, None] + y[None]).sum(-1),
        lambda x, y: x + y.mT.mean(),
    ],
)
def test_not_a_product(function):
    assert products_of(function, x=normal(4, 5), y=normal(4, 5, seed=1)) == []


def test_product_summed_twice_is_not_a_product():
    def function(x, y):
        products = x[:, None] * y[None]
        return products.sum(-1), products.sum(0)

    assert products_of(function, x=normal(4, 5), y=normal(3, 5, seed=1)) == []


def test_same_tensor_as_both_operands():
    found = product_of(lambda x: torch.einsum("bid,bjd->bij", x, x), x=normal(2, 3, 4))
    assert found.free(found.left) == {1}
    assert found.free(found.right) == {2}
    assert found.contracted(found.left) == found.contracted(found.right) == (2,)
    square = product_of(lambda x: x @ x, x=normal(3, 3))
    assert square.axes == {0: (frozenset({0}), frozenset()), 1: (frozenset(), frozenset({1}))}


def test_operands_in_lists_are_replaced():
    def function(x, y):
        return torch.einsum("ij,kj->ik", [x, y])

    found = product_of(function, x=normal(2, 3), y=normal(4, 3, seed=1))
    assert torch.equal(recompute(found.first, {}), found.result)
    assert recompute(found.first, {1: torch.zeros(4, 3, dtype=torch.float64)}).eq(0).all()
    other = normal(5, 3, seed=2)
    assert torch.allclose(found.with_operands({0: other}), other @ normal(4, 3, seed=1).mT)


def test_integer_products_have_axes():
    found = product_of(lambda x, y: x @ y, x=torch.arange(12).reshape(3, 4), y=torch.arange(20).reshape(4, 5) + 1)
    assert found.contracted(found.left) == (1,)
