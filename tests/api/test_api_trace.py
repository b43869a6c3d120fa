"""`attnshape.trace`: its arguments, its result, and its errors."""

import functools
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import attnshape
from attnshape import AttnshapeError, Trace
from examples.case import padded
from examples.fused_qkv import FusedSelfAttention
from examples.own_function import attention

QKV = {"query": "B H Lq Dk", "key": "B H Lk Dk", "value": "B H Lk Dv"}


def scaled(x: Tensor, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
    scores = x @ x.mT * scale
    masked = scores if mask is None else scores.masked_fill(~mask, -math.inf)
    return masked.softmax(dim=-1)


def labelled(x: Tensor, word: str) -> Tensor:
    return x if word else -x


class Gadget:
    def __init__(self, gadget: object) -> None:
        self.gadget = gadget

    def __call__(self, x: Tensor) -> Tensor:
        return self.gadget.turn(x)  # type: ignore[attr-defined, no-any-return]


def signatures(trace: Trace) -> dict[str, str]:
    return {o.name: o.tensor.signature for step in trace.steps for o in step.outputs if o.name}


def known(trace: Trace) -> set[str]:
    return {axis.known for step in trace.steps for output in step.outputs for axis in output.tensor.axes}


def test_case_is_traced_at_the_given_sizes_and_verified() -> None:
    trace = attnshape.trace(padded, B=3, Lk=7)
    assert signatures(trace)["weights"] == "B H Lq Lk"
    assert trace.sizes["B"].size == 3
    assert trace.verified_at > 3
    assert trace.target == "examples.case:padded"
    assert trace.command == "attnshape.trace(padded, B=3, Lk=7)"


def test_function_with_described_inputs() -> None:
    trace = attnshape.trace(attention, inputs=QKV, Lq=5)
    assert signatures(trace)["context"] == "B H Lq Dv"
    assert [named.name for named in trace.inputs] == ["query", "key", "value"]


def test_nested_function_is_named_without_locals() -> None:
    def inner(x: Tensor) -> Tensor:
        weights = x.softmax(dim=-1)
        return weights * 1

    trace = attnshape.trace(inner, inputs={"x": "B L"})
    assert trace.target.endswith(".inner")
    assert "<locals>" not in trace.target
    assert signatures(trace) == {"weights": "B L"}


def test_class_is_built_at_other_sizes() -> None:
    trace = attnshape.trace(FusedSelfAttention, init="D, H", inputs={"x": "B L D"}, D=64, H=4)
    assert signatures(trace)["qkv"] == "B L 3*D"
    assert known(trace) == {"verified"}


def test_module_instance_keeps_its_widths_and_is_unchanged() -> None:
    module = FusedSelfAttention(64, 4).double().train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    trace = attnshape.trace(module, inputs={"x": "B L D"}, D=64, H=4)
    verified = {(a.expression, a.known) for step in trace.steps for o in step.outputs for a in o.tensor.axes}
    assert {("B", "verified"), ("L", "verified"), ("D", "matched")} <= verified
    assert trace.dtype == "float64"
    assert module.training
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert {step.module for step in trace.steps} >= {"Wqkv", "Wo"}


def test_method_of_a_module_is_traced() -> None:
    trace = attnshape.trace(FusedSelfAttention(64, 4).forward, inputs={"x": "B L D"}, D=64, H=4)
    assert trace.steps[0].module == "Wqkv"


def test_tensors_as_inputs_run_once_and_axes_are_matched() -> None:
    calls = []

    def counted(x: Tensor) -> Tensor:
        calls.append(x)
        return x @ x.mT

    x = torch.randn(2, 10, 64, dtype=torch.float64)
    trace = attnshape.trace(counted, inputs={"x": x}, B=2, L=10)
    assert len(calls) == 1
    assert calls[0] is x
    assert signatures(trace) == {}
    assert trace.steps[-1].outputs[0].tensor.signature == "B L L"
    assert known(trace) == {"matched", "literal"}
    assert (trace.dtype, trace.verified_at) == ("float64", 1)


def test_arguments_are_expressions_of_the_sizes_or_values() -> None:
    arguments = {"scale": 0.5, "mask": "torch.ones(L, L).tril().bool()"}
    trace = attnshape.trace(scaled, inputs={"x": "B L D"}, arguments=arguments, L=6)
    assert signatures(trace)["masked"] == "B L L"
    assert next(named for named in trace.inputs if named.name == "mask").tensor.shape == (6, 6)
    assert known(trace) == {"verified"}


def test_mutable_arguments_are_copied_for_each_run() -> None:
    def appended(x: Tensor, cache: list[int]) -> Tensor:
        cache.append(1)
        return torch.stack([x] * len(cache))

    cache: list[int] = []
    trace = attnshape.trace(appended, inputs={"x": "B L"}, arguments={"cache": cache})
    assert trace.steps[0].outputs[0].tensor.signature == "1 B L"
    assert cache == []


def test_strings_name_targets_as_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(attnshape.__file__).parents[1]
    assert attnshape.trace("multi-head", H=4).sizes["H"].size == 4
    fused = attnshape.trace(f"{root}/examples/fused_qkv.py:FusedSelfAttention", init="D, H", inputs={"x": "B L D"})
    assert signatures(fused)["qkv"] == "B L 3*D"
    (tmp_path / "pyproject.toml").write_text('[tool.attnshape.targets.self]\ntarget = "multi-head"\nheads = 2\n')
    monkeypatch.chdir(tmp_path)
    assert attnshape.trace("self").sizes["H"].size == 2


def test_options_of_built_in_mechanisms() -> None:
    trace = attnshape.trace("multi-head", options={"causal": True, "bias": False, "mask_value": -1e9})
    assert "mask" in {step.role for step in trace.steps}
    assert trace.command.startswith("attnshape.trace('multi-head', options={'causal': True")


def test_custom_size_symbols() -> None:
    trace = attnshape.trace(scaled, inputs={"x": "B T C"}, nh=4, hs=16, C="nh*hs", T=9)
    assert trace.steps[-1].outputs[0].tensor.signature == "B T T"
    assert trace.sizes["C"].size == 64


def test_expectations_have_verdicts() -> None:
    trace = attnshape.trace(attention, inputs=QKV, expect={"scores": "B H Lq Lk", "output": "B H Lk Dv"})
    assert [expectation.holds for expectation in trace.expectations] == [True, False]
    assert trace.found_something


def test_failure_of_the_code_is_part_of_the_trace() -> None:
    trace = attnshape.trace(lambda x: x.softmax(-1) @ x, inputs={"x": "B L"})
    assert not trace.complete
    assert trace.failure is not None
    assert len(trace.steps) == 1


def test_partial_and_library_function() -> None:
    softmax = attnshape.trace(functools.partial(torch.softmax, dim=-1), inputs={"input": "B L"})
    assert softmax.steps[0].operation == "torch.softmax"
    library = attnshape.trace(nn.functional.softmax, inputs={"input": "B L"}, arguments={"dim": -1})
    assert library.target == "torch.nn.functional:softmax"


class Uncopied(nn.Module):
    def __deepcopy__(self, memo: object) -> None:
        raise RuntimeError("no copies")

    def forward(self, x: Tensor) -> Tensor:
        return x


def exits(B: int) -> None:
    raise SystemExit(3)


REFUSED = {
    "no such mechanism": (("multi-hed",), {}, "no mechanism", "multi-head"),
    "size of zero": (("multi-head",), {"B": 0}, "B is 0", "B=4"),
    "own letter of zero": ((scaled,), {"nh": 0}, "nh is 0", "nh=4"),
    "text for a size": (("multi-head",), {"B": "2"}, "B is '2'", "B=4"),
    "fraction for a size": (("multi-head",), {"B": 2.0}, "B is 2.0", "B=4"),
    "truth for a size": (("multi-head",), {"B": True}, "B is True", "B=4"),
    "undefined letter": ((scaled,), {"C": "nh*hs"}, "nh and hs aren't size symbols", "nh=4, hs=4"),
    "sizes that contradict": (("multi-head",), {"D": 512, "H": 8, "Dk": 3}, "contradict", "leave Dk out"),
    "not callable": ((3,), {}, "expected something to call", "a case"),
    "class without init": ((Gadget,), {}, "constructor needs gadget", 'init="'),
    "no such parameter": ((scaled,), {"inputs": {"y": "B L"}}, "no parameter 'y'", "x"),
    "nothing for a parameter": (
        (labelled,),
        {"inputs": {"x": "B L"}},
        "nothing is given for word",
        'inputs={"word": "B L D"}',
    ),
    "unknown symbol": ((scaled,), {"inputs": {"x": "B L Q"}}, 'inputs={"x": "B L Q"}', "Q=4"),
    "argument of a built-in": (
        ("multi-head",),
        {"arguments": {"x": 1}},
        "arguments is for your own",
        "catalog multi-head",
    ),
    "value as input": ((scaled,), {"inputs": {"x": 3}}, "inputs['x'] is a int", "arguments={'x'"),
    "given twice": ((scaled,), {"inputs": {"x": "B L"}, "arguments": {"x": 1}}, "x is given twice", "once"),
    "argument that fails": (
        (scaled,),
        {"inputs": {"x": "B L"}, "arguments": {"scale": "1/0"}},
        "doesn't evaluate",
        "sizes",
    ),
    "unknown option": (("multi-head",), {"options": {"casual": True}}, "no option 'casual'", "causal"),
    "option of the wrong kind": (
        ("multi-head",),
        {"options": {"causal": "yes"}},
        "expected True or False",
        '"causal": True',
    ),
    "options of one's own": ((scaled,), {"options": {"causal": True}}, "built-in", "arguments"),
    "unknown dtype": (("multi-head",), {"dtype": "float3"}, "dtype is 'float3'", "float32"),
    "unknown device": (("multi-head",), {"device": "tpu"}, "device is 'tpu'", "cpu"),
    "seed below zero": (("multi-head",), {"seed": -1}, "seed is -1", "seed=1"),
    "module that can't be copied": (
        (Uncopied(),),
        {"inputs": {"x": "B"}},
        "can't be copied, so that runs would change it: RuntimeError",
        "record",
    ),
    "case that leaves": ((exits,), {}, "sys.exit(3)", "fix the case"),
}


@pytest.mark.parametrize("args, kwargs, message, hint", REFUSED.values(), ids=REFUSED.keys())
def test_errors_use_python_syntax(args: tuple[object, ...], kwargs: dict[str, object], message: str, hint: str) -> None:
    with pytest.raises(AttnshapeError) as caught:
        attnshape.trace(*args, **kwargs)  # type: ignore[arg-type]
    error = caught.value
    assert message in error.message
    assert error.hint is not None
    assert hint in error.hint
    assert "--" not in error.message + error.hint
    assert error.__notes__ == [f"hint: {error.hint}"]
