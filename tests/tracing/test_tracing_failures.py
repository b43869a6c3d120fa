"""Failing code is recorded, and a failing recorder doesn't affect the code."""

import pytest
import torch
from torch import Tensor

from attnshape.tracing import calls, source_locations
from attnshape.tracing.runner import Runnable, record
from attnshape.tracing.source_locations import SourceLocator
from attnshape.tracing.step_log import OutputNames
from attnshape.tracing.storage import TensorRegistry
from tests.tracing.traced_source import names, trace


def test_failing_operation_with_its_operands(tmp_path):
    source = "def f(query, key):\n    doubled = query * 2\n    return torch.matmul(doubled, key)"
    traced = trace(tmp_path, source, "query: B H Lq Dk", "key: B H Lk Dk", B=2, H=3, Lq=5, Lk=7, Dk=4)
    assert not traced.complete
    assert traced.found_something
    assert names(traced) == ["doubled"]
    failure = traced.failure
    assert failure.expression == "torch.matmul(doubled, key)"
    assert failure.operation == "torch.matmul"
    assert (failure.source.line, failure.source.column, failure.source.function) == (10, 12, "f")
    with pytest.raises(RuntimeError) as plain:
        torch.matmul(torch.ones(2, 3, 5, 4), torch.ones(2, 3, 7, 4))
    assert failure.error == f"RuntimeError: {plain.value}"
    assert [(operand.name, operand.tensor.shape) for operand in failure.operands] == [
        ("doubled", (2, 3, 5, 4)),
        ("key", (2, 3, 7, 4)),
    ]


def test_error_has_the_librarys_message(tmp_path):
    with pytest.raises(RuntimeError) as plain:
        torch.ones(2, 64).view(3, 5)
    traced = trace(tmp_path, "def f(x):\n    return x.view(3, 5)", "x: B Dk", B=2, Dk=64)
    assert traced.failure.error == f"RuntimeError: {plain.value}"


def test_exception_of_the_code_has_its_line(tmp_path):
    source = "def f(x):\n    y = x * 2\n    raise ValueError('no')"
    traced = trace(tmp_path, source, "x: B Dk")
    assert traced.failure.error == "ValueError: no"
    assert traced.failure.operation is None
    assert traced.failure.source.line == 10
    assert len(traced.steps) == 1


def test_caught_error_is_not_a_failure(tmp_path):
    source = """
    def f(x):
        try:
            y = x.view(3, 5)
        except RuntimeError:
            y = x * 2
        return y
    """
    traced = trace(tmp_path, source, "x: B Dk")
    assert traced.complete
    assert traced.failure is None
    assert names(traced) == ["y"]


def test_error_after_a_caught_one(tmp_path):
    source = """
    def f(x):
        try:
            x.view(3, 5)
        except RuntimeError:
            pass
        raise ValueError("later")
    """
    traced = trace(tmp_path, source, "x: B Dk")
    assert traced.failure.error == "ValueError: later"
    assert traced.failure.operation is None


def test_exception_reaches_the_code_unchanged():
    raised = []

    def f(x):
        try:
            torch.matmul(x, x)
        except RuntimeError as error:
            raised.append(str(error))
            raise

    raw = record(Runnable(f, (torch.ones(2, 3),)), 0)
    with pytest.raises(RuntimeError) as plain:
        torch.matmul(torch.ones(2, 3), torch.ones(2, 3))
    assert raised == [str(plain.value)]
    assert str(raw.failure.error) == str(plain.value)


def test_wrong_arguments_are_a_failure(tmp_path):
    traced = trace(tmp_path, "def f(*args):\n    return g(*args)\n\n\ndef g(x, y):\n    return x", "x: B Dk")
    assert traced.failure.error.startswith("TypeError: g() missing 1 required positional argument")


def computes(x: Tensor) -> Tensor:
    hidden = x * 2
    hidden[0] = 1
    total = hidden.sum(-1)
    return total + 1


class _OfItsOwnError(Exception):
    pass


@pytest.mark.parametrize(
    ("owner", "attribute"),
    [
        (SourceLocator, "find"),
        (TensorRegistry, "register_output"),
        (TensorRegistry, "reference"),
        (OutputNames, "give"),
        (calls, "operation_name"),
        (source_locations, "plain_variables"),
        (source_locations, "calls_itself"),
    ],
)
def test_failing_recorder_does_not_change_results(owner, attribute, monkeypatch):
    def fail(*_):
        raise _OfItsOwnError("broken inside")

    returned = []
    x = torch.arange(12.0).view(3, 4)
    monkeypatch.setattr(owner, attribute, fail)
    in_record = attribute == "reference"
    if in_record:  # the runner itself needs references after the run
        monkeypatch.setattr("attnshape.tracing.runner.tensor_paths", lambda *_: [])
    raw = record(Runnable(lambda: returned.append(computes(x))), 0)
    assert torch.equal(returned[0], computes(x))
    assert raw.failure is None
    assert "_OfItsOwnError: broken inside" in raw.broken


def test_broken_recording_is_marked_incomplete(tmp_path, monkeypatch):
    find = SourceLocator.find

    def fail(self, frame):
        if frame.f_code.co_name == "f":
            raise _OfItsOwnError("broken inside")
        return find(self, frame)

    monkeypatch.setattr(SourceLocator, "find", fail)
    traced = trace(tmp_path, "def f(x):\n    return x * 2", "x: B Dk")
    assert not traced.complete
    assert traced.failure is None
    assert "the recorder failed after step 0: _OfItsOwnError: broken inside" in traced.notes


def test_failing_recorder_does_not_hide_the_codes_failure(monkeypatch):
    def fail(*_):
        raise _OfItsOwnError("broken inside")

    monkeypatch.setattr(SourceLocator, "find", fail)
    raw = record(Runnable(lambda x: x.view(5), (torch.ones(4),)), 0)
    assert isinstance(raw.failure.error, RuntimeError)
    assert raw.broken is not None
