"""`attnshape.record`: names, inputs, modules and failures of the code in a `with` block."""

import contextlib
import gc
import traceback
import weakref

import pytest
import torch
from torch import Tensor, nn

import attnshape
from attnshape import AttnshapeError, Trace
from examples.fused_qkv import FusedSelfAttention

SIZES = {"B": 2, "L": 10, "D": 64, "H": 4}


def names(trace: Trace) -> list[str | None]:
    return [output.name for step in trace.steps for output in step.outputs]


def attend(query: Tensor, key: Tensor) -> Tensor:
    scores = query @ key.mT
    return scores.softmax(dim=-1)


class Owner:
    def __init__(self) -> None:
        self.layers = [FusedSelfAttention(64, 4)]
        self.attn = FusedSelfAttention(64, 4)
        self.start = torch.ones(2, 10, 64)

    def run(self) -> Trace:
        with attnshape.record(sizes=SIZES) as recording:
            self.attn(self.start)
        return recording.trace


def test_steps_of_the_block_and_of_called_functions() -> None:
    x, y = torch.ones(2, 10, 64), torch.ones(2, 12, 64)
    with attnshape.record(sizes={"B": 2, "Lq": 10, "Lk": 12, "D": 64}) as recording:
        shifted = y + 1
        weights = attend(x, shifted)
    trace = recording.trace
    assert names(trace) == ["shifted", None, "scores", None]
    assert [step.outputs[0].tensor.signature for step in trace.steps] == ["B Lk D", "B D Lk", "B Lq Lk", "B Lq Lk"]
    assert [named.name for named in trace.inputs] == ["y", "x"]
    assert {axis.known for step in trace.steps for axis in step.outputs[0].tensor.axes} == {"matched"}
    assert {step.source.file for step in trace.steps if step.source} == {"tests/api/test_api_record.py"}
    assert trace.target.startswith("tests/api/test_api_record.py:")
    assert trace.command == "attnshape.record(sizes={'B': 2, 'Lq': 10, 'Lk': 12, 'D': 64})"
    assert trace.complete
    assert weights.shape == (2, 10, 12)


def test_ambiguous_size_is_not_named() -> None:
    x = torch.ones(8, 8)
    with attnshape.record(sizes={"H": 8, "Dk": 8}) as recording:
        x + 1
    assert recording.trace.steps[0].outputs[0].tensor.signature == "8 8"


def test_derived_sizes_and_custom_symbols() -> None:
    x = torch.ones(2, 4, 16, 64)
    with attnshape.record(sizes={"D": 64, "H": 4, "C": "D+1", "hs": 16}) as recording:
        torch.cat([x, x[..., :1]], dim=-1)
    assert recording.trace.steps[-1].outputs[0].tensor.signature == "2 H 16 C"
    assert recording.trace.sizes["Dk"].size == 16


def test_modules_are_named_after_their_variables() -> None:
    attn, x = FusedSelfAttention(64, 4), torch.ones(2, 10, 64)
    with attnshape.record(sizes=SIZES) as recording:
        attn(x)
    trace = recording.trace
    assert trace.steps[0].module == "attn.Wqkv"
    assert {"attn.Wqkv.weight", "attn.Wqkv.bias"} & {reference.parameter for reference in trace.steps[0].operands}
    assert trace.inputs[0].name == "x"


def test_modules_and_tensors_in_containers_have_paths() -> None:
    owner = Owner()
    trace = owner.run()
    assert trace.steps[0].module == "self.attn.Wqkv"
    assert [named.name for named in trace.inputs] == ["self.start"]
    layers, tensors = [FusedSelfAttention(64, 4)], {"x": torch.ones(2, 10, 64)}
    with attnshape.record(sizes=SIZES) as recording:
        layers[0](tensors["x"])
    assert recording.trace.steps[0].module == "layers[0].Wqkv"
    assert [named.name for named in recording.trace.inputs] == ["tensors['x']"]


def test_view_from_before_the_recording_refers_to_its_base() -> None:
    whole = torch.ones(4, 8)
    half = whole[:2]
    with attnshape.record(sizes={"D": 8}) as recording:
        transposed = half.mT
    storage = recording.trace.steps[0].outputs[0].tensor.storage
    assert (storage.kind, storage.of.input, storage.root.input) == ("view", "half", "whole")  # type: ignore[union-attr]
    assert [named.name for named in recording.trace.inputs] == ["half", "whole"]
    assert transposed.shape == (8, 2)


def test_tensors_without_a_variable_are_constants() -> None:
    def closed() -> contextlib.AbstractContextManager[Tensor]:
        return contextlib.nullcontext(torch.ones(3))

    holder = iter([torch.ones(3)])
    with closed() as _hidden, attnshape.record() as recording:
        next(holder) + 1
    assert recording.trace.inputs == ()
    assert recording.trace.steps[0].operands[0].constant


def test_exception_propagates_and_the_trace_is_kept() -> None:
    query, key = torch.ones(2, 10, 64), torch.ones(2, 12, 32)
    recording = attnshape.record(sizes={"B": 2, "Lq": 10, "Lk": 12, "Dk": 64})
    with pytest.raises(RuntimeError, match="Expected size for first two dimensions") as caught, recording:
        doubled = query * 2
        attend(doubled, key)
    assert "attend" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    trace = recording.trace
    assert not trace.complete
    assert names(trace)[0] == "doubled"
    assert trace.failure is not None
    assert trace.failure.error.startswith("RuntimeError: Expected size for first two dimensions")
    assert trace.failure.operands[0].name == "query"
    assert trace.failure.operands[0].tensor.signature == "B Lq Dk"


def test_user_exception_is_a_failure_at_its_line() -> None:
    recording = attnshape.record()
    with pytest.raises(KeyError), recording:
        raise KeyError("mine")
    assert recording.trace.failure is not None
    assert recording.trace.failure.expression == 'raise KeyError("mine")'


def test_return_ends_the_recording() -> None:
    recordings = []

    def run() -> Tensor:
        x = torch.ones(2)
        with attnshape.record(sizes={"B": 2}) as recording:
            recordings.append(recording)
            return x + 1

    run()
    assert len(recordings[0].trace.steps) == 1


def test_recordings_nest() -> None:
    x = torch.ones(2, 10)
    with attnshape.record(sizes={"B": 2}) as outer:
        first = x + 1
        with attnshape.record(sizes={"L": 10}) as inner:
            second = first * 2
        third = second - 1
    assert third.shape == (2, 10)
    assert names(inner.trace) == ["second"]
    assert names(outer.trace) == ["first", "second", "third"]
    assert [named.name for named in inner.trace.inputs] == ["first"]
    assert inner.trace.steps[0].outputs[0].tensor.signature == "2 L"


def test_recursive_recording() -> None:
    traces = []

    def run(x: Tensor, depth: int) -> Tensor:
        with attnshape.record() as recording:
            doubled = x * 2
            result = run(doubled, depth - 1) if depth else doubled
        traces.append(recording.trace)
        return result

    run(torch.ones(2), 2)
    assert [len(trace.steps) for trace in traces] == [1, 2, 3]


def test_exit_stack_records_its_caller() -> None:
    x = torch.ones(2)
    with contextlib.ExitStack() as stack:
        recording = stack.enter_context(attnshape.record(sizes={"B": 2}))
        shifted = x + 1
    assert names(recording.trace) == ["shifted"]
    assert recording.trace.target.startswith("tests/api/test_api_record.py:")
    assert shifted.shape == (2,)


def test_no_tensor_is_kept_alive_by_a_recording() -> None:
    def run() -> tuple[attnshape.Recording, list[weakref.ref[Tensor]]]:
        x = torch.ones(2)
        recording = attnshape.record()
        with contextlib.suppress(RuntimeError), recording:
            y = x + 1
            y @ torch.ones(3)
        return recording, [weakref.ref(x), weakref.ref(y)]

    recording, tensors = run()
    gc.collect()
    assert [tensor() for tensor in tensors] == [None, None]
    assert recording.trace.failure is not None


def test_recording_does_not_change_modules() -> None:
    attn = nn.Linear(2, 2)
    before = set(vars(attn)), len(list(attn.modules()))
    with attnshape.record():
        attn(torch.ones(2))
    assert (set(vars(attn)), len(list(attn.modules()))) == before
    assert not torch.overrides._get_current_function_mode_stack()  # type: ignore[attr-defined]


def test_misuse_is_an_error() -> None:
    recording = attnshape.record()
    with pytest.raises(AttnshapeError, match="no trace before"):
        recording.trace  # noqa: B018
    with recording:
        with pytest.raises(AttnshapeError, match="no trace before"):
            recording.trace  # noqa: B018
        with pytest.raises(AttnshapeError, match="entered before"):
            recording.__enter__()
        with pytest.raises(AttnshapeError, match="inside a recording"):
            attnshape.trace("scaled-dot-product")
    with pytest.raises(AttnshapeError, match="entered before"):
        recording.__enter__()
    assert attnshape.trace("scaled-dot-product").complete


@pytest.mark.parametrize(
    "sizes, message, hint",
    [
        ({"B": 0}, "B is 0", "B=4"),
        ({"C": "nh*hs"}, "nh and hs aren't size symbols", "nh=4, hs=4"),
        ({"H": 8, "Hkv": 3}, "contradict", "choose H"),
        ({"C": "D/2"}, "isn't a size", "D//2"),
        ({"my size": 3}, "'my size' isn't a name", "nh"),
    ],
)
def test_invalid_sizes_are_refused(sizes: dict[str, int | str], message: str, hint: str) -> None:
    with pytest.raises(AttnshapeError, match=message.replace("**", ".*")) as caught:
        attnshape.record(sizes=sizes)
    assert caught.value.hint is not None
    assert hint in caught.value.hint


class Proxy:
    """Raises on any attribute access, like lazily imported modules and closed connections."""

    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise RuntimeError("asked for its class")

    def __getattr__(self, name: str) -> None:
        raise RuntimeError(f"asked for {name}")


@pytest.mark.filterwarnings("ignore")
def test_unusual_values_in_variables_are_ignored() -> None:
    proxy, data = Proxy(), dict.fromkeys(range(100_000), 1)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    sparse, lazy = torch.ones(2, 2).to_sparse(), nn.LazyLinear(3)
    with attnshape.record(sizes={"B": 2}) as recording:
        total = torch.ones(2) + 1
    assert names(recording.trace) == [None, "total"]
    assert recording.trace.inputs == ()
    assert total.shape == (2,)
    assert {type(value) for value in (proxy, data, nested, sparse, lazy)}
