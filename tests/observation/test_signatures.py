"""The forms of a function's variables in all calls and runs: formulas, and common symbols if calls differ."""

import gc
import itertools
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnshape.observation.forms import Form, FunctionForms, ItemsForm, OtherForm, TensorForm
from attnshape.observation.signatures import CommonSymbols, infer_forms
from attnshape.observation.watch import TargetObservation, observe, runs_at
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.target_runs import sample_target_closely
from attnshape.runtime.isolation import isolated
from attnshape.runtime.time_limit import TimeLimit
from attnshape.targets.find import find_target

CPU = RunOptions()


def observed(folder: Path, source: str, case: str = "case") -> TargetObservation:
    path = folder / "observed_code.py"
    path.write_text("import torch\n" + textwrap.dedent(source))
    with isolated():
        target = find_target(TargetSpec(f"{path}:{case}"))
        sizes = target.sizes
        limit = TimeLimit()
        variation = sample_target_closely(target, sizes, CPU, limit, 30, lambda words: None)
        return observe(target, variation, CPU, limit)


def text(form: Form | None) -> str:
    if form is None:
        return "-"
    match form.of:
        case TensorForm(dtypes=dtypes, axes=axes):
            text_of_form = f"{'|'.join(sorted(dtypes))}[{' '.join(axis.text or '_' for axis in axes)}]"
        case ItemsForm(kind=kind, items=items):
            text_of_form = f"{kind}({', '.join(map(text, items))})"
        case OtherForm():
            text_of_form = "other"
    return text_of_form + (" or None" if form.optional else "")


def function(folder: Path, source: str, name: str, *cases: str) -> FunctionForms:
    forms = infer_forms([observed(folder, source, case) for case in cases or ["case"]])
    return next(form for form in forms if form.function.name == name)


def variables(forms: FunctionForms) -> dict[str, str]:
    return {name: text(form) for (_, _, name), form in forms.bindings.items()}


ATTEND = """
def attend(q, k, v, mask=None):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    weights = scores.softmax(-1)
    return weights @ v, weights

def project(x, H):
    parts = x.unflatten(-1, (H, -1))
    return parts.transpose(1, 2)

def run(x, y, H):
    context, weights = attend(project(x, H), project(y, H), project(y, H))
    return context.transpose(1, 2).flatten(2)

def case(B, H, Lq, Lk, Dk):
    return run, (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), H)

def alone(B, H, L, Dk):
    x = torch.randn(B, L, H * Dk)
    return run, (x, x, H)
"""


def test_axes_are_formulas(tmp_path: Path) -> None:
    forms = function(tmp_path, ATTEND, "attend")
    assert {name: text(form) for name, form in forms.arguments.items()} == {
        "q": "float32[B H Lq Dk]",
        "k": "float32[B H Lk Dk]",
        "v": "float32[B H Lk Dk]",
        "mask": "other or None",
    }
    assert variables(forms) == {"scores": "float32[B H Lq Lk]", "weights": "float32[B H Lq Lk]"}
    assert text(forms.result) == "tuple(float32[B H Lq Dk], float32[B H Lq Lk])"
    assert [text(form) for form in forms.results.values()] == [text(forms.result)]


def test_calls_with_two_lengths_share_one_symbol(tmp_path: Path) -> None:
    forms = function(tmp_path, ATTEND, "project")
    assert text(forms.arguments["x"]) == "float32[B L H*Dk]"
    assert variables(forms) == {"parts": "float32[B L H Dk]"}
    assert text(forms.result) == "float32[B H L Dk]"


def test_self_and_cross_attention_together(tmp_path: Path) -> None:
    forms = function(tmp_path, ATTEND, "attend", "case", "alone")
    assert text(forms.arguments["q"]) == "float32[B H {} Dk]".format(text(forms.arguments["q"]).split()[2])
    axes = {name: text(form).strip("]").split()[2] for name, form in forms.arguments.items() if name != "mask"}
    assert axes["k"] == axes["v"] != axes["q"]
    assert text(forms.bindings[(4, 4, "scores")]) == f"float32[B H {axes['q']} {axes['k']}]"


def test_branches_and_optional_values(tmp_path: Path) -> None:
    source = """
    def f(x, mask=None):
        if mask is not None:
            y = x.masked_fill(mask, 0)
            extra = mask
        else:
            y = x
            extra = None
        return y, extra

    def run(x, mask):
        f(x)
        return f(x, mask)[0]

    def case(B, L, D):
        return run, (torch.randn(B, L, D), torch.ones(B, L, D, dtype=torch.bool))
    """
    forms = function(tmp_path, source, "f")
    assert text(forms.arguments["mask"]) == "bool[B L D] or None"
    assert text(forms.result) == "tuple(float32[B L D], bool[B L D] or None)"
    assert {text(form) for form in forms.bindings.values()} == {"float32[B L D]", "bool[B L D]", "other or None"}


def test_loop_with_a_growing_size(tmp_path: Path) -> None:
    source = """
    def f(x):
        whole = x
        for _ in range(2):
            whole = torch.cat([whole, x], dim=1)
            same = x + 1
        return whole

    def case(B, L, D):
        return f, (torch.randn(B, L, D),)
    """
    forms = function(tmp_path, source, "f")
    assert {place[0]: text(form) for place, form in forms.bindings.items() if place[2] == "whole"} == {
        4: "float32[B L D]",
        6: "float32[B _ D]",
    }
    assert variables(forms)["same"] == "float32[B L D]"
    assert text(forms.result) == "float32[B 3*L D]"


def test_different_ranks(tmp_path: Path) -> None:
    source = """
    def f(x):
        return x + 1

    def run(x):
        return f(x).sum() + f(x[:, 0]).sum() + f(x[:, :, None]).sum()

    def case(B, L, D):
        return run, (torch.randn(B, L, D),)
    """
    forms = function(tmp_path, source, "f")
    assert text(forms.arguments["x"]) == "float32[B ... D]"


def test_different_types(tmp_path: Path) -> None:
    source = """
    def f(x):
        return x

    def run(x):
        f(3); f("a"); f(x > 0)
        return f(x)

    def same(x):
        f(x > 0)
        return f(x)

    def case(B, L):
        return run, (torch.randn(B, L),)

    def tensors(B, L):
        return same, (torch.randn(B, L),)
    """
    assert text(function(tmp_path, source, "f").arguments["x"]) == "other"
    forms = function(tmp_path, source, "f", "tensors")
    assert text(forms.arguments["x"]) == "bool|float32[B L]"


def test_failing_runs_are_left_out(tmp_path: Path) -> None:
    source = """
    def f(x):
        assert x.shape[1] != 5
        y = x + 1
        return y

    def case(B, L):
        return f, (torch.randn(B, L),)
    """
    path = tmp_path / "failing_code.py"
    path.write_text("import torch\n" + textwrap.dedent(source))
    with isolated():
        target = find_target(TargetSpec(f"{path}:case"))
        runs = runs_at(target, [{"B": 2, "L": 3}, {"B": 2, "L": 5}, {"B": 3, "L": 7}], CPU, TimeLimit())
    assert [run.numbers for run in runs] == [{"B": 2, "L": 3}, {"B": 3, "L": 7}]
    assert [[invocation.function.name for invocation in run.invocations] for run in runs] == [["f"], ["f"]]


def test_garbage_collection_callbacks_are_ignored(tmp_path: Path) -> None:
    def callback(phase: str, info: dict[str, int]) -> None:
        pass

    source = """
    import gc

    def f(x):
        gc.collect()
        return x + 1

    def case(B, L):
        return f, (torch.randn(B, L),)
    """
    gc.callbacks.append(callback)
    try:
        found = observed(tmp_path, source)
    finally:
        gc.callbacks.remove(callback)
    assert [invocation.function.name for invocation in found.actual.invocations] == ["f"]


def test_calls_in_the_constructor_are_ignored(tmp_path: Path) -> None:
    source = """
    class M(torch.nn.Module):
        def __init__(self, D):
            super().__init__()
            self.w = helper(torch.nn.Linear(D, D))
        def forward(self, x):
            return helper(self.w(x))

    def helper(x):
        return x

    def case(B, D):
        return M(D), (torch.randn(B, D),)
    """
    found = observed(tmp_path, source)
    assert [invocation.function.name for invocation in found.actual.invocations] == ["M.forward", "helper"]
    assert found.actual.file == str(tmp_path / "observed_code.py")
    assert set(found.actual.parameters.values()) >= {(found.actual.numbers["D"],)}


def test_failure_at_the_users_sizes_is_raised(tmp_path: Path) -> None:
    source = """
    def f(x):
        return x

    def case(B, L):
        return f, (torch.randn(B, L),)
    """
    found = observed(tmp_path, source)
    target = find_target(TargetSpec(f"{tmp_path}/observed_code.py:case"))
    broken = replace(target, build=lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        observe(broken, found.variation, CPU, TimeLimit())


SYMBOLS = st.sampled_from(["B", "H", "L", "Lq", "Lk", "Lp", "D", "Dk", "Dv"])


@st.composite
def axes(draw: st.DrawFn) -> list[tuple[str, ...]]:
    """Draw axes, each as its symbols in several calls."""
    calls = draw(st.integers(1, 4))
    return draw(st.lists(st.tuples(*[SYMBOLS] * calls), min_size=1, max_size=6))


@given(axes())
def test_common_symbols_are_unambiguous(drawn: list[tuple[str, ...]]) -> None:
    symbols = CommonSymbols()
    for axis in drawn:
        symbols.learn(axis)
    chosen = [symbols.choose(axis) for axis in drawn]
    assert None not in chosen
    for (one, symbol), (other, again) in itertools.combinations(zip(drawn, chosen, strict=True), 2):
        assert (symbol == again) == (one == other), (one, other, symbol)


@given(axes(), st.randoms())
def test_common_symbols_do_not_depend_on_the_order(drawn: list[tuple[str, ...]], random: object) -> None:
    symbols = CommonSymbols()
    for axis in drawn:
        symbols.learn(axis)
    first = [symbols.choose(axis) for axis in drawn]
    assert [symbols.choose(axis) for axis in reversed(drawn)] == first[::-1]


@given(axes())
def test_products_use_the_symbols_of_their_factors(drawn: list[tuple[str, ...]]) -> None:
    symbols = CommonSymbols()
    products = [tuple(f"{symbol}*W" for symbol in axis) for axis in drawn]
    for axis in (*drawn, *products):
        symbols.learn(axis)
    for axis, product in zip(drawn, products, strict=True):
        assert symbols.choose(product) == f"{symbols.choose(axis)}*W"


def test_expressions_of_different_forms_have_no_common_symbol() -> None:
    symbols = CommonSymbols()
    symbols.learn(["B*H", "B"])
    assert symbols.choose(["B*H", "B"]) is None
    assert symbols.choose([None, "B"]) == "B"
    assert CommonSymbols().choose([]) is None
