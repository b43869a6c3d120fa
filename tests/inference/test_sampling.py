"""The sizes that vary, their constraints, and the results if sizes can't vary."""

import pytest

import attnshape
from attnshape.dims.expressions import parse_expression
from attnshape.runtime import time_limit
from tests.tracing.traced_source import step_named, trace


def axes(traced, name):
    """Return the expression and the verdict of each axis of a named tensor."""
    (tensor,) = [output.tensor for output in step_named(traced, name).outputs if output.name == name]
    return [(axis.expression, axis.known) for axis in tensor.axes]


VERIFIED = "verified"


@pytest.mark.parametrize(
    ("body", "inputs", "given", "preconditions", "expected"),
    [
        (
            "a = x.view(*x.shape[:-1], -1, 2)",
            "x: B Dk",
            {},
            ("Dk even",),
            [("B", VERIFIED), ("Dk//2", VERIFIED), ("2", "literal")],
        ),
        ("a, b = x.chunk(2, dim=-1)", "x: B Dk", {}, (), [("B", VERIFIED), ("-(-Dk//2)", VERIFIED)]),
        ("b, a = x.chunk(2, dim=-1)", "x: B Dk", {}, (), [("B", VERIFIED), ("Dk//2", VERIFIED)]),
        ("a = x.view(-1, 8)", "x: D", {"D": 64}, ("8 divides D",), [("D//8", VERIFIED), ("8", "literal")]),
        ("a = x.view(3, -1)", "x: L", {"L": 12}, ("3 divides L",), [("3", "literal"), ("L//3", VERIFIED)]),
        ("a = x + y", "x: B Lq; y: B Lk", {"Lq": 7, "Lk": 7}, ("Lk = Lq",), [("B", VERIFIED), ("Lq", VERIFIED)]),
        ("a = x @ y", "x: Lq Dk; y: D Lk", {"D": 32, "Dk": 32}, ("Dk = D",), [("Lq", VERIFIED), ("Lk", VERIFIED)]),
        (
            "a = x.unflatten(0, (-1, y.shape[0]))",
            "x: L; y: W",
            {"L": 12, "W": 3},
            ("W divides L",),
            [("L//W", VERIFIED), ("W", VERIFIED)],
        ),
        ("a = x * 2", "x: B L", {"B": 1, "L": 1}, (), [("B", VERIFIED), ("L", VERIFIED)]),
        ("a = x * 2", "x: Lq Lk", {"Lq": 7, "Lk": 7}, (), [("Lq", VERIFIED), ("Lk", VERIFIED)]),
        ("a = torch.cat((x, y), -1)", "x: B Lp; y: B L", {}, (), [("B", VERIFIED), ("Lp+L", VERIFIED)]),
        ("a = x.view(x.shape[0], -1)", "x: B L Dk", {}, (), [("B", VERIFIED), ("L*Dk", VERIFIED)]),
        ("a = x.mean(-1)", "x: B Dk", {}, (), [("B", VERIFIED)]),
        ("a = torch.zeros(x.shape[0], 64)", "x: B Dk", {"Dk": 64}, (), [("B", VERIFIED), ("64", "literal")]),
        ("a = x[:, ::2]", "x: B L", {}, (), [("B", VERIFIED), ("-(-L//2)", VERIFIED)]),
        ("a = x[:, 1:]", "x: B L", {}, (), [("B", VERIFIED), ("L-1", VERIFIED)]),
    ],
)
def test_constraints(body, inputs, given, preconditions, expected, tmp_path):
    specs = inputs.split("; ")
    parameters = ", ".join(spec.partition(":")[0] for spec in specs)
    traced = trace(tmp_path, f"def f({parameters}):\n    {body}\n    return a", *specs, **given)
    assert traced.complete
    assert axes(traced, "a") == expected
    assert set(traced.preconditions) == set(preconditions)
    assert traced.verified_at >= 3


@pytest.mark.parametrize(
    ("body", "given", "expected", "notes"),
    [
        # a branch that is taken at only one size
        ("a = x * 2 if x.shape[1] == 1 else x.exp()", {"L": 1}, [("B", VERIFIED), ("1", "literal")], "L=1"),
        ("assert x.shape[1] == 7; a = x * 2", {"L": 7}, [("B", VERIFIED), ("L", "matched")], "L=7"),
        ("assert x.shape == (3, 7); a = x * 2", {"B": 3, "L": 7}, [("B", "matched"), ("L", "matched")], "B=3, L=7"),
        # two fixed sizes with the same number: neither is guessed
        ("assert x.shape == (7, 7); a = x * 2", {"B": 7, "L": 7}, [("7", "literal"), ("7", "literal")], "B=7, L=7"),
    ],
)
def test_sizes_that_cannot_vary(body, given, expected, notes, tmp_path):
    traced = trace(tmp_path, f"def f(x):\n    {body}\n    return a", "x: B L", **given)
    assert traced.complete
    assert axes(traced, "a") == expected
    assert any(f"not varied: {notes}" in note for note in traced.notes), traced.notes


def test_large_sizes_that_cannot_vary(tmp_path):
    path = tmp_path / "model.py"
    path.write_text("def f(x):\n    assert x.shape == (2, 3000)\n    return x * 2\n")
    traced = attnshape.trace(f"{path}:f", inputs={"x": "B L"}, B=2, L=3000, device="meta")
    assert "not varied: B=2, L=3000, since at other sizes the code takes a different path or fails" in traced.notes


def test_sizes_at_which_building_takes_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(time_limit, "_DEFAULT_SECONDS", 0.2)
    path = tmp_path / "model.py"
    path.write_text(
        "import time\n\n\nclass Slow:\n    def __init__(self, length):\n        if length != 1000:\n"
        "            time.sleep(5)\n\n    def __call__(self, x):\n        return x * 2\n"
    )
    traced = attnshape.trace(f"{path}:Slow", init="L", inputs={"x": "B L"}, B=2, L=1000)
    why = "since at other sizes the code takes a different path, fails or runs for too long"
    assert f"not varied: B=2, L=1000, {why}" in traced.notes


def test_branch_on_size_one_keeps_the_other_constraints(tmp_path):
    source = (
        "def f(x):\n    y = x * 2 if x.shape[1] == 1 else x.exp()\n    a = y.view(x.shape[0], 1, -1, 2)\n    return a"
    )
    traced = trace(tmp_path, source, "x: B L Dk", L=1)
    assert axes(traced, "a") == [("B", VERIFIED), ("1", "literal"), ("Dk//2", VERIFIED), ("2", "literal")]
    assert traced.preconditions == ("Dk even",)


def test_loop_over_a_size_is_folded(tmp_path):
    source = "def f(x):\n    for i in range(x.shape[0]):\n        a = x[i] * 2\n    return torch.stack([a, a])"
    traced = trace(tmp_path, source, "x: L B Dk", L=4)
    assert [(axis.expression, axis.known) for axis in traced.steps[-1].outputs[0].tensor.axes] == [
        ("2", "literal"),
        ("B", VERIFIED),
        ("Dk", VERIFIED),
    ]
    assert [(loop.first, loop.last, loop.count, loop.expression, loop.known) for loop in traced.loops] == [
        (1, 2, 4, "L", VERIFIED)
    ]
    assert [step.expression for step in traced.steps] == ["x[i]", "x[i] * 2", "torch.stack([a, a])"]
    assert traced.notes == ()


def test_branch_on_the_order_of_sizes_follows_the_users_sizes(tmp_path):
    source = (
        "def f(x, y):\n    if x.shape[0] < y.shape[0]:\n        a = x * 2\n    else:\n        a = y.exp()\n    return a"
    )
    inputs = ("x: Lq", "y: Lk")
    assert axes(trace(tmp_path, source, *inputs, Lq=4, Lk=9), "a") == [("Lq", VERIFIED)]
    assert axes(trace(tmp_path, source, *inputs, Lq=9, Lk=4), "a") == [("Lk", VERIFIED)]


def test_minimum_beyond_the_small_sizes_is_a_literal(tmp_path):
    source = "def f(x):\n    a = x[: min(x.shape[0], 300)]\n    return a"
    traced = trace(tmp_path, source, "x: L Dk", L=310)
    assert axes(traced, "a") == [("300", "literal"), ("Dk", VERIFIED)]
    assert any("no formula" in note for note in traced.notes)


def test_steps_before_a_failure_are_verified(tmp_path):
    source = "def f(x, y):\n    a = x * 2\n    return a @ y"
    traced = trace(tmp_path, source, "x: Lq Dk", "y: Lk Dv", Lq=3, Lk=4, Dk=5, Dv=6)
    assert traced.failure is not None
    assert axes(traced, "a") == [("Lq", VERIFIED), ("Dk", VERIFIED)]


def test_target_with_constant_sizes(tmp_path):
    source = """
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(48, 24)

        def forward(self, x):
            a = self.fc(x)
            return a
    """
    traced = trace(tmp_path, source, "x: B L D", target="M", D=48)
    assert axes(traced, "a") == [("B", VERIFIED), ("L", VERIFIED), ("24", "literal")]
    assert [(axis.expression, axis.known) for axis in traced.inputs[0].tensor.axes][-1] == ("D", "matched")


def test_stateful_module_is_rebuilt_for_each_run(tmp_path):
    source = """
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.past = None

        def forward(self, x):
            if self.past is not None:
                x = torch.cat((self.past, x), 1)
            self.past = x * 1
            a = x * 2
            return a
    """
    assert axes(trace(tmp_path, source, "x: B L", target="M"), "a") == [("B", VERIFIED), ("L", VERIFIED)]


def test_threshold_is_not_a_divisibility_constraint(tmp_path):
    source = "def f(x):\n    if x.shape[0] > 20:\n        a = x * 2\n    else:\n        a = x.exp()\n    return a"
    traced = trace(tmp_path, source, "x: L", L=100)
    assert axes(traced, "a") == [("L", "matched")]
    assert traced.preconditions == ()


PARTLY = """
def f(x):
    half = x.shape[-1] // 2
    turned = x[..., :half]
    pairs = turned.view(*turned.shape[:-1], -1, 2)
    rest = x[..., half:]
    quarter = pairs[..., 0]
    return pairs, rest, quarter
"""


@pytest.mark.parametrize("width", [8, 12, 16, 64])
def test_larger_multiple_is_found(width, tmp_path):
    traced = trace(tmp_path, PARTLY, "x: B L Dk", Dk=width)
    assert traced.preconditions == ("4 divides Dk",)
    assert axes(traced, "quarter") == [("B", VERIFIED), ("L", VERIFIED), ("Dk//4", VERIFIED)]
    assert axes(traced, "rest") == [("B", VERIFIED), ("L", VERIFIED), ("Dk//2", VERIFIED)]


@pytest.mark.parametrize("width", [20, 24, 64])
def test_slice_that_is_empty_at_small_sizes(width, tmp_path):
    source = "def f(x):\n    a = x[..., 10:]\n    b = x[..., 1:-9]\n    return a, b"
    traced = trace(tmp_path, source, "x: B L Dk", Dk=width)
    assert axes(traced, "a") == axes(traced, "b") == [("B", VERIFIED), ("L", VERIFIED), ("Dk-10", VERIFIED)]
    assert not traced.notes


def test_smallest_multiple_is_the_precondition(tmp_path):
    source = "def f(x, y):\n    a = x.view(x.shape[0], -1, 4)\n    return a, y"
    traced = trace(tmp_path, source, "x: L Dk", "y: B", B=2, Dk=16, L=3)
    assert traced.preconditions == ("4 divides Dk",)


def test_number_that_may_depend_on_a_fixed_size_is_unexplained(tmp_path):
    source = """
    def f(x, w):
        assert w.shape[0] == 3
        a = torch.zeros(x.shape[0], w.shape[0] + 1, 1)
        return a
    """
    traced = trace(tmp_path, source, "x: L", "w: W", W=3)
    found = step_named(traced, "a").outputs[0].tensor.axes
    assert [(axis.expression, axis.unexplained) for axis in found] == [("L", False), ("4", True), ("1", False)]


def test_products_of_lengths_plus_one(tmp_path):
    source = """
    def f(x):
        rows, columns = x.shape[1], x.shape[2]
        a = torch.zeros(x.shape[0], 1 + rows * rows * columns)
        b = torch.zeros(-(-rows // 2), columns // 3)
        c = torch.zeros(-(-rows // 2) * (columns // 3) + 1)
        return a, b, c
    """
    traced = trace(tmp_path, source, "x: B Lq Lk", Lq=7, Lk=10)
    for name, place, expected in (("a", 1, 1 + 9 * 9 * 14), ("b", 0, 5), ("b", 1, 4), ("c", 0, 5 * 4 + 1)):
        text, known = axes(traced, name)[place]
        assert (parse_expression(text).evaluate({"Lq": 9, "Lk": 14}), known) == (expected, VERIFIED)


TIED = """
class Model(nn.Module):
    def __init__(self, a, b, c):
        super().__init__()
        assert CONDITION
        self.a = nn.Linear(a, b)

    def forward(self, x):
        return self.a(x)
"""


@pytest.mark.parametrize(
    ("condition", "sizes", "preconditions"),
    [
        ("a == b and b % c == 0", (64, 64, 4), {"c divides a", "a = b"}),
        ("b == c == a", (64, 64, 64), {"b = a", "c = a"}),
        ("b % c == 0 and a % b == 0", (96, 24, 4), {"b divides a", "c divides b"}),
        ("a == b * c", (64, 16, 4), {"a = b*c"}),
        ("c == b * b", (64, 4, 16), {"c = b*b"}),
        ("b % c == 0", (64, 16, 4), {"c divides b"}),
        ("b % c == 0 and a == 64", (64, 16, 4), {"c divides b"}),
        ("a == b and b % c == 0 and x == 5", (64, 64, 4), {"c divides a", "a = b"}),
        ("a == b and b == 64 and c == 4", (64, 64, 4), set()),
    ],
)
def test_sizes_that_several_constraints_tie(condition, sizes, preconditions, tmp_path):
    source = TIED.replace("CONDITION", condition)
    init = "a, b, c"
    if "x ==" in condition:
        source, init = source.replace("b, c)", "b, c, x)"), "a, b, c, x"
    dims = [f"{name}={size}" for name, size in zip("abc", sizes, strict=True)]
    traced = trace(tmp_path, source, "x: B a", target="Model", init=init, dims=(*dims, "x=5"))
    assert {frozenset(text.split(" = ")) for text in traced.preconditions} == {
        frozenset(text.split(" = ")) for text in preconditions
    }
    fixed = [note for note in traced.notes if note.startswith("not varied")]
    assert bool(fixed) == ("== 64" in condition or "x ==" in condition)


def test_constraints_that_show_one_after_the_other(tmp_path):
    source = """
    class Model(nn.Module):
        def __init__(self, d_in, d_out, heads):
            super().__init__()
            self.heads = heads
            self.project = nn.Linear(d_in, d_out)

        def forward(self, x):
            split = self.project(x).unflatten(-1, (self.heads, -1))
            return x + split.flatten(1)
    """
    dims = ("d_in=64", "d_out=64", "heads=4")
    traced = trace(tmp_path, source, "x: B d_in", target="Model", init="d_in, d_out, heads", dims=dims)
    assert set(traced.preconditions) == {"heads divides d_out", "d_in = d_out"}
    assert all(axis.known == "verified" for output in traced.steps[-1].outputs for axis in output.tensor.axes)
