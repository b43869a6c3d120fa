"""Formulas are checked at held-out sizes; a wrong formula is dropped, and a note says so."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from attnshape.cost import estimate
from attnshape.dims.expressions import parse_expression
from attnshape.dims.sizes import resolve
from attnshape.inference.plan import Equal, Fixed, Multiple, Plan, held_out_sizes
from attnshape.inference.solver import Formula, Solver
from attnshape.model.trace import Trace
from attnshape.pipelines import trace as pipeline
from attnshape.reporters.trace_view import trace_footer
from tests.tracing.traced_source import step_named, trace

SCORES = "def f(q, k):\n    scores = q @ k.mT\n    out = scores.transpose(1, 2)\n    return out"
INPUTS = ("q: B Lq Dk", "k: B Lk Dk")
LOOP = "def f(x):\n    for i in range(x.shape[0]):\n        a = x[i] * 2\n    return torch.stack([a, a])"


@pytest.fixture
def plant(monkeypatch):
    """Return a function that makes the solver return a wrong formula instead of the right one."""

    def plant_formula(right: str, wrong: str) -> None:
        solve = Solver.solve

        def mutant(self: Solver, values: tuple[int, ...], actual: int) -> Formula:
            found = solve(self, values, actual)
            return replace(found, text=wrong) if found.text == right else found

        monkeypatch.setattr(Solver, "solve", mutant)

    return plant_formula


@pytest.fixture
def sizes_run(monkeypatch):
    """Return the sizes of every small run, in order."""
    found: list[Mapping[str, int]] = []
    run: Callable[..., object] = pipeline.small_run

    def small_run(target, numbers, *rest):
        found.append(numbers)
        return run(target, numbers, *rest)

    monkeypatch.setattr(pipeline, "small_run", small_run)
    return found


def checked_summary(traced: Trace) -> str:
    """Return the summary's text about checked signatures."""
    return next(line.text for line in trace_footer(traced, len(traced.steps)) if "signature" in line.text).partition(
        " · "
    )[2]


def dropped(traced: Trace) -> list[str]:
    return [note for note in traced.notes if note.startswith("wrong at the sizes held out")]


def test_every_signature_is_checked_at_held_out_sizes(tmp_path, sizes_run):
    traced = trace(tmp_path, SCORES, *INPUTS)
    assert checked_summary(traced) == "3/3 signatures checked by jaxtyping at sizes held out (3 inferred)"
    assert traced.held_out.sizes == sizes_run[-1]
    assert sizes_run.count(traced.held_out.sizes) == 1
    used = [{symbol: size.size for symbol, size in traced.sizes.items()}, *sizes_run[:-1]]
    for symbol, size in traced.held_out.sizes.items():
        assert size not in [numbers[symbol] for numbers in used]
    assert len(set(traced.held_out.sizes.values())) == len(traced.held_out.sizes)
    assert traced.notes == ()
    assert Trace.from_json(traced.to_json()) == traced


@pytest.mark.parametrize(
    ("right", "wrong", "given"),
    [
        ("Lk", "Lq", {"Lq": 12, "Lk": 12}),  # equal at this run's sizes
        ("Lk", "Lq", {}),
        ("Lk", "(Lk+1)//2*2-1", {"Lk": 15}),  # right at this run's sizes and at all primes
        ("Lq", "-(-Lq//3)", {}),
        ("Dk", "65", {}),
    ],
)
def test_wrong_axis_is_dropped(right, wrong, given, tmp_path, plant):
    plant(right, wrong)
    traced = trace(tmp_path, SCORES, *INPUTS, **given)
    tensors = [one.tensor for one in traced.inputs] + [
        output.tensor for step in traced.steps for output in step.outputs
    ]
    truth = {"q": "B Lq Dk", "k": "B Lk Dk", "k.mT": "B Dk Lk", "scores": "B Lq Lk", "out": "B Lk Lq"}
    for tensor, (name, signature) in zip(tensors, truth.items(), strict=True):
        inferred = name not in ("q", "k")  # the axes of inputs are shown as they were written
        for axis, symbol, size in zip(tensor.axes, signature.split(), tensor.shape, strict=True):
            if symbol == right and inferred:
                assert (axis.expression, axis.known, axis.unexplained) == (str(size), "literal", True), name
            else:
                assert (axis.expression, axis.known) == (symbol, "verified"), name
        assert tensor.signature == " ".join(axis.expression for axis in tensor.axes)
        assert tensor.checked == "inferred"  # at this run's sizes
        assert tensor.held_out == (right not in signature.split() or not inferred)
    (note,) = dropped(traced)
    assert f"{wrong} for " in note
    assert all(f"{symbol}={size}" in note for symbol, size in traced.held_out.sizes.items())


def test_signatures_not_checked_at_held_out_sizes_are_counted_separately(tmp_path, plant):
    source = "def f(q, k):\n    a = q * 2\n    b = k * 2\n    return a, b"
    plant("Lk", "Lq")
    traced = trace(tmp_path, source, *INPUTS)
    expected = "2/2 signatures checked by jaxtyping 1 at sizes held out, 1 at this run's sizes (2 inferred)"
    assert checked_summary(traced) == expected
    assert [step.outputs[0].tensor.held_out for step in traced.steps] == [True, False]


def test_wrong_stride_is_dropped(tmp_path, plant):
    plant("Lq*Lk", "Lk*Lk")
    traced = trace(tmp_path, SCORES, *INPUTS, Lq=12, Lk=12)
    assert step_named(traced, "scores").outputs[0].tensor.strides == ("144", "Lk", "1")
    assert step_named(traced, "out").outputs[0].tensor.strides == ("144", "1", "Lk")
    assert step_named(traced, "scores").outputs[0].tensor.signature == "B Lq Lk"
    (note,) = dropped(traced)
    assert "Lk*Lk for step 2: stride 0" in note
    assert "Lk*Lk for step 3: stride 0" in note


def test_unexpected_byte_count_is_noted(tmp_path):
    source = "def f(x):\n    a = x.to(torch.float64 if x.shape[1] == NEVER else torch.float32)\n    return a"
    traced = trace(tmp_path, source.replace("NEVER", "0"), "x: B L")
    assert checked_summary(traced) == "1/1 signatures checked by jaxtyping at sizes held out (1 inferred)"
    traced = trace(tmp_path, source.replace("NEVER", str(traced.held_out.sizes["L"])), "x: B L")
    assert checked_summary(traced) == "1/1 signatures checked by jaxtyping at this run's sizes (1 inferred)"
    (note,) = dropped(traced)
    assert "bytes per element for step 1" in note


def test_wrong_number_of_iterations_is_dropped(tmp_path, plant):
    traced = trace(tmp_path, LOOP, "x: L B Dk", L=4)
    assert [(loop.expression, loop.known) for loop in traced.loops] == [("L", "verified")]
    assert checked_summary(traced) == "3/3 signatures checked by jaxtyping at sizes held out (3 inferred)"
    plant("L", "B+2")
    traced = trace(tmp_path, LOOP, "x: L B Dk", L=4)
    assert [(loop.expression, loop.known) for loop in traced.loops] == [("4", "literal")]
    assert any("B+2 for loop 1" in note for note in dropped(traced))


def test_wrong_peak_formula_becomes_an_estimate(tmp_path, monkeypatch):
    source = "def f(x):\n    a = x @ x.mT\n    return a * 2"
    given = {"B": 4, "L": 6000, "Dk": 64}
    right = trace(tmp_path, source, "x: B L Dk", **given)
    assert right.peak.known == "verified"
    block = estimate._block

    def mutant(sizes, solver):
        found = block(sizes, solver)
        text = found.formula.text.replace("L*L", "L*31") if found.formula is not None else ""
        return replace(found, formula=parse_expression(text)) if "31" in text else found

    monkeypatch.setattr(estimate, "_block", mutant)
    wrong = trace(tmp_path, source, "x: B L Dk", **given)
    assert wrong.peak.known == "estimate"
    assert wrong.peak.expression is None
    assert any("the formula of the peak memory is wrong at the sizes held out" in note for note in wrong.notes)


def test_annotation_that_fails_only_at_held_out_sizes_is_wrong(tmp_path, sizes_run):
    source = """
    from jaxtyping import Float

    def f(q, k):
        length = k.shape[1]
        scores: Float[Tensor, "B Lq Lk"] = q @ k[:, : length - (length == NEVER)].mT
        return scores
    """
    traced = trace(tmp_path, source.replace("NEVER", "0"), *INPUTS)
    assert checked_summary(traced) == "3/3 signatures checked by jaxtyping at sizes held out (1 declared, 2 inferred)"
    assert step_named(traced, "scores").outputs[0].tensor.held_out
    traced = trace(tmp_path, source.replace("NEVER", str(traced.held_out.sizes["Lk"])), *INPUTS)
    assert step_named(traced, "scores").outputs[0].tensor.checked is None
    assert any(note.startswith("wrong annotation") for note in traced.notes)
    assert any("Lk for step 3: axis 2" in note for note in dropped(traced))
    assert traced.found_something


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("assert x.shape[1] not in {sizes}", "the target fails"),
        ("x = x * 2 if x.shape[1] in {sizes} else x.exp()", "the target takes a different path"),
    ],
)
def test_missing_held_out_sizes_are_reported(body, reason, tmp_path, sizes_run):
    source = "def f(x):\n    {body}\n    a = x * 3\n    return a"
    first = trace(tmp_path, source.format(body="x = x.exp()"), "x: B L")
    used = {numbers["L"] for numbers in sizes_run[:-1]} | {first.sizes["L"].size}
    others = sorted(set(range(1, 400)) - used)
    traced = trace(tmp_path, source.format(body=body.format(sizes=others)), "x: B L")
    assert traced.complete
    assert "checked by jaxtyping at this run's sizes" in checked_summary(traced)
    assert not any(output.tensor.held_out for step in traced.steps for output in step.outputs)
    assert reason in traced.held_out.reason
    assert any(reason in note and "no signature was checked at sizes held out" in note for note in traced.notes)
    assert len(sizes_run) <= 2 * len(used) + 8


def test_fixed_sizes_leave_none_to_hold_out(tmp_path):
    source = "def f(x):\n    assert x.shape == (3, 7)\n    a = x * 2\n    return a"
    traced = trace(tmp_path, source, "x: B L", B=3, L=7)
    assert traced.held_out.reason == "no size can vary"
    assert checked_summary(traced) == "1/1 signatures checked by jaxtyping at this run's sizes (1 inferred)"


def test_conditional_formula_is_kept_if_held_out_sizes_miss_the_condition(tmp_path):
    source = "def f(k):\n    a = torch.zeros(k.shape[0], max(k.shape[1], 400))\n    return a"
    traced = trace(tmp_path, source, "k: B Lk", Lk=600)
    assert dropped(traced) == []


def plan(*constraints, symbols=("B", "H", "L", "D", "Dk", "W"), ordered=False):
    sizes = resolve(set(symbols), {"W": 4, "L": 16, "H": 4, "D": 64})
    return Plan(sizes, tuple(constraints), ordered)


@pytest.mark.parametrize(
    "chosen",
    [
        plan(),
        plan(ordered=True),
        plan(Fixed("W")),
        plan(Multiple("L", 4)),
        plan(Multiple("L", 2, "W"), Fixed("B")),
        plan(Equal("W", "H")),
        plan(symbols=("B", "L")),
    ],
)
def test_held_out_sizes_meet_the_constraints_and_are_new(chosen):
    used = [chosen.numbers(round_) for round_ in range(4)] + [chosen.sizes.numbers]
    found = list(held_out_sizes(chosen, used))
    assert found
    for numbers in found:
        for symbol in chosen.symbols:
            assert numbers[symbol] not in [numbers[symbol] for numbers in used]
        for constraint in chosen.constraints:
            match constraint:
                case Fixed(symbol=symbol):
                    assert numbers[symbol] == chosen.sizes.numbers[symbol]
                case Equal(symbol=symbol, other=other):
                    assert numbers[symbol] == numbers[other]
                case Multiple() as multiple:
                    assert multiple.next(numbers) == numbers
        assert chosen.sizes.at({symbol: numbers[symbol] for symbol in chosen.sizes.independent}) == numbers
    if chosen.ordered:
        given = chosen.sizes.numbers
        rising = sorted(chosen.sizes.independent, key=given.__getitem__)
        assert [found[0][symbol] for symbol in rising] == sorted(found[0][symbol] for symbol in rising)


def test_held_out_sizes_differ_from_all_used_sizes():
    chosen = plan(symbols=("B", "L"))
    first = next(held_out_sizes(chosen, [chosen.sizes.numbers]))
    second = next(held_out_sizes(chosen, [chosen.sizes.numbers, first]))
    assert all(first[symbol] != second[symbol] for symbol in ("B", "L"))
