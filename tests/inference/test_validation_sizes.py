"""Numbers that resemble a formula only at small ordered primes are never verified."""

import pytest

from tests.tracing.traced_source import trace

LOOKALIKES = {
    "max(Lq, Lk)": "max(q.shape[1], k.shape[1])",
    "min(Lq, Lk)": "min(q.shape[1], k.shape[1])",
    "int(L**0.5)": "int(q.shape[1] ** 0.5) + 1",
    "min(L, 12)": "min(k.shape[1], 12)",
    "min(L, 64)": "min(k.shape[1], 64)",
    "up to a multiple of 64": "-(-q.shape[1] // 64) * 64",
    "power of two": "1 << (q.shape[1] - 1).bit_length()",
    "n - 2*(n//3)": "q.shape[1] - 2 * (q.shape[1] // 3)",
    "n//3 + 1": "q.shape[1] // 3 + 1",
    "(n-4)//3 + 1": "(q.shape[1] - 4) // 3 + 1",
    "round(0.3 n)": "round(0.3 * q.shape[1]) + 1",
}


@pytest.mark.parametrize("size", LOOKALIKES.values(), ids=LOOKALIKES)
@pytest.mark.parametrize(("queries", "keys"), [(10, 16), (16, 10), (40, 24), (12, 12)])
def test_lookalike_is_never_verified(size, queries, keys, tmp_path):
    source = f"def f(q, k):\n    a = torch.zeros(q.shape[0], {size})\n    return a"
    traced = trace(tmp_path, source, "q: B Lq", "k: B Lk", Lq=queries, Lk=keys)
    axis = traced.steps[0].outputs[0].tensor.axes[1]
    if axis.known == "verified" or axis.where:
        truth = eval(f"lambda q, k: {size}")
        others = [(10, 16), (16, 10), (100, 30), (30, 100), (48, 48), (9, 5), (200, 201)]
        holds = [pair for pair in others if eval(axis.where or "True", {"Lq": pair[0], "Lk": pair[1]})]
        assert len(holds) >= 2
        for lq, lk in holds:
            shapes = [type("Shape", (), {"shape": (2, length)}) for length in (lq, lk)]
            expression = axis.expression.replace("Lq", str(lq)).replace("Lk", str(lk))
            assert eval(expression) == truth(*shapes), (axis.expression, lq, lk)
    else:
        assert axis.known == "literal"
        assert axis.unexplained


@pytest.mark.parametrize(
    ("size", "keys", "expression", "where"),
    [
        ("min(q.shape[1], k.shape[1])", 16, "Lq", "Lq <= Lk"),
        ("min(q.shape[1], k.shape[1])", 6, "Lk", "Lk <= Lq"),
        ("2 * max(q.shape[1], k.shape[1]) - 1", 16, "2*Lk-1", "Lk >= Lq"),
        ("q.shape[0] * min(q.shape[1], k.shape[1])", 16, "B*Lq", "Lq <= Lk"),
        ("q.shape[1]", 16, "Lq", None),
    ],
)
def test_minimum_of_two_sizes_has_a_condition(size, keys, expression, where, tmp_path):
    source = f"def f(q, k):\n    a = torch.zeros(q.shape[0], {size})\n    return a"
    traced = trace(tmp_path, source, "q: B Lq", "k: B Lk", Lq=10, Lk=keys)
    axis = traced.steps[0].outputs[0].tensor.axes[1]
    assert (axis.expression, axis.known, axis.where) == (expression, "verified", where)
    assert any(where in note for note in traced.notes) if where else not traced.notes


def test_an_expectation_that_holds_only_in_one_order_fails(tmp_path):
    source = "def f(q, k):\n    a = torch.zeros(q.shape[0], max(q.shape[1], k.shape[1]))\n    return a"
    traced = trace(tmp_path, source, "q: B Lq", "k: B Lk", expect=("a: B Lk",))
    assert [expectation.holds for expectation in traced.expectations] == [False]
    assert "expected Lk" in traced.expectations[0].why


def test_constant_in_the_code_is_literal(tmp_path):
    traced = trace(tmp_path, "def f(q):\n    a = q.new_zeros(q.shape[0], 7)\n    return a", "q: B L")
    axis = traced.steps[0].outputs[0].tensor.axes[1]
    assert (axis.expression, axis.known, axis.unexplained) == ("7", "literal", False)


@pytest.mark.parametrize(
    ("size", "keys", "expression", "known", "where"),
    [
        ("min(k.shape[1], 12)", 16, "12", "literal", "Lk >= 12"),
        ("min(k.shape[1], 12)", 10, "Lk", "verified", "Lk <= 12"),
        ("max(k.shape[1], 12)", 16, "Lk", "verified", "Lk >= 12"),
        ("max(k.shape[1], 12)", 10, "12", "literal", "Lk <= 12"),
    ],
)
def test_minimum_of_a_size_and_a_number_has_a_condition(size, keys, expression, known, where, tmp_path):
    traced = trace(tmp_path, f"def f(k):\n    a = torch.zeros(k.shape[0], {size})\n    return a", "k: B Lk", Lk=keys)
    axis = traced.steps[0].outputs[0].tensor.axes[1]
    assert (axis.expression, axis.known, axis.where, axis.unexplained) == (expression, known, where, False)
