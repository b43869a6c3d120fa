"""Tensors of every kind in every position go through every verb; what can't be analysed is said."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

import attnshape
from attnshape.model.report import Report
from attnshape.reporters.registry import find_renderer, formats_for
from tests.robust.tensor_kinds import KINDS, POSITIONS, Kind, source

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
_SIZES = {"B": 2, "L": 4, "D": 6}
_CASES = ("argument", "held")


def _target(kind: Kind, position: str, folder: Path) -> tuple[str, dict[str, dict[str, str]]]:
    path = folder / f"{kind.name}.py"
    path.write_text(source(kind))
    return f"{path}:{position}", {} if position in _CASES else {"inputs": {"values": "B L D"}}


def _trace(kind: Kind, position: str, folder: Path) -> attnshape.Trace:
    target, inputs = _target(kind, position, folder)
    return attnshape.trace(target, **inputs, **_SIZES)


def _check(kind: Kind, position: str, folder: Path) -> Report:
    target, inputs = _target(kind, position, folder)
    return attnshape.check(target, **inputs, **_SIZES)


def _require_sound(trace: attnshape.Trace) -> None:
    assert trace.failure is None
    assert trace.complete
    assert attnshape.Trace.from_json(trace.to_json()) == trace
    assert not attnshape.diff(trace, trace)
    for tensor in [output.tensor for step in trace.steps for output in step.outputs]:
        assert len(tensor.stride) == (0 if tensor.layout in _WITHOUT_STRIDES else len(tensor.shape))
        assert tensor.storage.kind == "unknown" or tensor.layout not in _WITHOUT_STORAGE or tensor.storage.of


_UNSEEN = ("raising", "wrapper", "uninitialized", "lazy", "nested_jagged", "nested_strided")
"""Kinds that are made by calls that no function mode sees."""
_SPARSE = {"sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"}
_WITHOUT_STRIDES = {*_SPARSE, "mkldnn", "jagged", "nested", "uninitialized"}
_WITHOUT_STORAGE = {*_SPARSE, "mkldnn", "jagged", "wrapper"}


def _require_said(report: Report) -> None:
    """No rule failed: what could not be checked has a reason that names the tensor."""
    failed = [gap.why for gap in report.not_checked if "check failed" in gap.why]
    assert not failed


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_kind_is_traced_and_checked(kind: Kind, tmp_path: Path) -> None:
    _require_sound(_trace(kind, "intermediate", tmp_path))
    report = _check(kind, "argument", tmp_path)
    _require_said(report)
    assert not report.counting
    # what isn't varied, or makes every result NaN, leaves no claim about every input
    is_judged = kind.varied and kind.name != "not_finite"
    assert any(gap.what == "unused inputs" for gap in report.not_checked) != is_judged


@pytest.mark.slow
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_kind_in_every_position(kind: Kind, position: str, tmp_path: Path) -> None:
    trace, again = (_trace(kind, position, tmp_path) for _ in range(2))
    _require_sound(trace)
    assert not attnshape.diff(trace, again)
    for name in formats_for("trace"):
        assert find_renderer(name, "trace")
    assert "made" in str(trace) or position == "argument" or kind.name in _UNSEEN
    report = _check(kind, position, tmp_path)
    _require_said(report)
    # as a result, a tensor without attention in it, or with NaN, is a finding
    assert position == "result" or kind.name == "not_finite" or not report.counting


def _module(kind: Kind, folder: Path) -> ModuleType:
    path = folder / f"{kind.name}_plain.py"
    path.write_text(source(kind))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_recording_changes_no_bit(kind: Kind, tmp_path: Path) -> None:
    module = _module(kind, tmp_path)
    values = torch.randn(3, 5, 6)
    plain = module.intermediate(values.clone())
    with attnshape.record({"B": 3, "L": 5, "D": 6}) as recording:
        recorded = module.intermediate(values.clone())
    assert torch.equal(plain, recorded)
    _require_sound(recording.trace)


@pytest.mark.parametrize("name", ["counting"])
def test_subclass_sees_the_calls_of_the_traced_code_only(name: str, tmp_path: Path) -> None:
    kind = next(kind for kind in KINDS if kind.name == name)
    module = _module(kind, tmp_path)
    values = torch.randn(3, 5, 6)
    module.Counting.calls = 0
    module.intermediate(values)
    plain, module.Counting.calls = module.Counting.calls, 0
    with attnshape.record():
        module.intermediate(values)
    assert module.Counting.calls == plain
