"""What can be read of tensors of every kind; the expected values are worked out by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import attnshape
from attnshape.model.trace import NO_SIZE
from attnshape.tracing.tensor_access import (
    NoNumbersError,
    axis_symbols,
    bytes_of,
    describe_kind,
    is_ordinary,
    layout_of,
    numbers_of,
    shape_of,
    storage_of,
    stride_of,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def dense() -> Tensor:
    return torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 3.0]])


def jagged() -> Tensor:
    return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)


def nested() -> Tensor:
    return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])


class Counting(Tensor):
    """Counts the calls of its `__torch_function__`."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Counting.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


class Wrapper(Tensor):
    """Supports no operation at all."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(f"no {func}")


@pytest.mark.parametrize(
    ("make", "layout", "shape", "stride", "size"),
    [
        (dense, None, (2, 3), (3, 1), 24),
        # two elements: two indices of two int64 each, and two float32
        (lambda: dense().to_sparse(), "sparse_coo", (2, 3), (), 2 * 2 * 8 + 2 * 4),
        # three row pointers and two column indices of int64, and two float32
        (lambda: dense().to_sparse_csr(), "sparse_csr", (2, 3), (), (3 + 2) * 8 + 2 * 4),
        (lambda: dense().to_sparse_csc(), "sparse_csc", (2, 3), (), (4 + 2) * 8 + 2 * 4),
        (lambda: dense().to_mkldnn(), "mkldnn", (2, 3), (), 0),
        # three rows of three float32, and three offsets of int64
        (jagged, "jagged", (2, NO_SIZE, 3), (), 3 * 3 * 4 + 3 * 8),
        (nested, "nested", (2, NO_SIZE, 3), (), 3 * 3 * 4),
        (lambda: nn.UninitializedParameter(), "uninitialized", (), (), 0),
        (lambda: Wrapper(dense()), "wrapper", (2, 3), (3, 1), 0),
        (lambda: torch.ones(2, 0, 3), None, (2, 0, 3), (3, 3, 1), 0),
        (lambda: torch.ones(()), None, (), (), 4),
        (lambda: torch.ones(3).expand(2, 3), None, (2, 3), (0, 1), 24),
        (lambda: torch.ones(2, 3, dtype=torch.complex64).conj(), None, (2, 3), (3, 1), 48),
        (lambda: torch.empty(2, 3, device="meta"), None, (2, 3), (3, 1), 24),
        (lambda: torch.ones([1] * 65), None, (1,) * 65, (1,) * 65, 4),
    ],
)
def test_layout_sizes_and_bytes(
    make: Callable[[], Tensor], layout: str | None, shape: tuple[int, ...], stride: tuple[int, ...], size: int
) -> None:
    tensor = make()
    assert (layout_of(tensor), shape_of(tensor), stride_of(tensor), bytes_of(tensor)) == (layout, shape, stride, size)
    assert (storage_of(tensor) is None) == (layout not in (None, "nested"))


def test_ragged_axes_have_symbols() -> None:
    tensor = jagged()
    assert axis_symbols(tensor) == {1: str(tensor.shape[1])}
    assert axis_symbols(nested()) == {1: "?"}
    assert axis_symbols(dense()) == {}


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: dense().to_sparse(), dense()),
        (lambda: torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (1, 2)), torch.tensor([[0.0, 3.0]])),
        (lambda: dense().to_sparse_csr(), dense()),
        (lambda: dense().to_mkldnn(), dense()),
        (nested, torch.tensor([[[1.0] * 3] * 2, [[1.0] * 3, [0.0] * 3]])),
        (jagged, torch.tensor([[[1.0] * 3] * 2, [[1.0] * 3, [0.0] * 3]])),
        (
            lambda: torch.masked.masked_tensor(torch.tensor([1.0, 2.0]), torch.tensor([False, True])),
            torch.tensor([0.0, 2.0]),
        ),
        (
            lambda: torch.quantize_per_tensor(torch.tensor([0.52, -1.0]), 0.5, 10, torch.quint8),
            torch.tensor([0.5, -1.0]),
        ),
        (lambda: torch.tensor([1.0, 1.05]).to(torch.float8_e5m2), torch.tensor([1.0, 1.0])),
        (lambda: torch.tensor([5], dtype=torch.uint8).view(torch.uint4), torch.tensor([5], dtype=torch.uint8)),
        (lambda: torch.tensor([1 + 2j], dtype=torch.complex32), torch.tensor([1 + 2j], dtype=torch.complex64)),
        (lambda: dense().as_subclass(Counting), dense()),
    ],
)
def test_numbers_are_those_of_an_ordinary_tensor(make: Callable[[], Tensor], expected: Tensor) -> None:
    numbers = numbers_of(make())
    assert type(numbers) is Tensor
    assert is_ordinary(numbers)
    torch.testing.assert_close(numbers, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: torch.ones(2, device="meta"), "it has no numbers: it is fake, or on the meta device"),
        (lambda: FakeTensorMode().from_tensor(torch.ones(2)), "it has no numbers: it is fake, or on the meta device"),
        (lambda: nn.UninitializedParameter(), "it isn't initialized yet"),
        (lambda: Wrapper(dense()), "the subclass Wrapper has operations of its own"),
        (lambda: torch.ones([1] * 65), "it has 65 axes, and torch compares tensors with up to 64"),
        (lambda: torch.empty(2, dtype=torch.quint8), "torch can't read the numbers of a tensor of quint8"),
    ],
)
def test_tensor_without_numbers_says_why(make: Callable[[], Tensor], why: str) -> None:
    tensor = make()
    assert not is_ordinary(tensor)
    with pytest.raises(NoNumbersError) as raised:
        numbers_of(tensor)
    assert str(raised.value) == why


def test_no_code_of_a_subclass_runs() -> None:
    tensor = dense().as_subclass(Counting)
    Counting.calls = 0
    for read in (layout_of, shape_of, stride_of, bytes_of, storage_of, is_ordinary, numbers_of, describe_kind):
        read(tensor)
    assert Counting.calls == 0


def test_reading_numbers_shows_no_warning() -> None:
    tensor = torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.quint8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        numbers_of(tensor)
        numbers_of(jagged())


def test_jagged_steps_are_shown_with_what_they_have() -> None:
    values, lengths = torch.ones(3, 6), torch.tensor([0, 2, 3])
    with attnshape.record({"B": 2, "D": 6}) as recording:
        made = torch.nested.nested_tensor_from_jagged(values, lengths)
        doubled = made * 2
    step = recording.trace.steps[-1]
    tensor = step.outputs[0].tensor
    assert doubled.shape[0] == 2
    assert (step.outputs[0].name, tensor.signature, tensor.shape) == ("doubled", "B j1 D", (2, NO_SIZE, 6))
    assert (tensor.layout, tensor.stride, tensor.storage.kind, tensor.checked) == ("jagged", (), "unknown", None)
    assert "B j1 D" in str(recording.trace)
    assert attnshape.Trace.from_json(recording.trace.to_json()) == recording.trace


def test_sparse_step_shows_its_layout_and_its_own_bytes() -> None:
    x = dense()
    with attnshape.record({"L": 2, "D": 3}) as recording:
        x.to_sparse()
    tensor = recording.trace.steps[-1].outputs[0].tensor
    assert (tensor.signature, tensor.layout, tensor.stride, tensor.bytes) == ("L D", "sparse_coo", (), 40)
    row = next(line for line in str(recording.trace).splitlines() if "to_sparse" in line)
    assert "sparse_coo" in row
    assert "≁" not in row
