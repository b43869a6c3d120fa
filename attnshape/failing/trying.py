"""Tries a change on stand-ins of the failed call's operands: a hint is what was seen to work."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnshape.failing.finding import Candidate
from attnshape.failing.scene import Scene, numel
from attnshape.inference.formula import matched
from attnshape.tracing.raw import Opaque, RawCall, RawFailure, RawTensor, Slot

_MOST_ELEMENTS = 2**20
_LONGEST_AXIS = 2**11
"""Beyond these a stand-in has no memory: what is made of it could be large."""

Shape = tuple[int, ...]


def hint(scene: Scene, candidates: Sequence[Candidate]) -> str | None:
    """Return the most usual change that works, in words; None where none does or several equally usual ones do.

    A change works where the call then succeeds at the user's sizes and at those of every small run that failed alike.
    """
    if scene.call is None or not candidates or _results(scene, Candidate("")) is not None:
        return None
    ordered = sorted(candidates, key=lambda candidate: candidate.rank)
    for _, group in itertools.groupby(ordered, key=lambda candidate: candidate.rank):
        working = [(one, shapes) for one in group if (shapes := _results(scene, one)) is not None]
        if len(working) == 1:
            candidate, shapes = working[0]
            makes = "works" if candidate.inner else f"makes it {_signature(scene, shapes) or 'a scalar'}"
            return f"{candidate.text} {makes} (tried)"
        if working:
            return None
    return None


def _results(scene: Scene, candidate: Candidate) -> list[Shape] | None:
    """Return the result's shape at the user's sizes, then in each small run; None where one of them fails."""
    shapes: list[Shape] = []
    for failure in (scene.failure, *scene.alike.failures):
        shape = _result(failure, scene.device, candidate)
        operands = [operand.tensor.shape for operand in failure.operands]
        if shape is None or (shapes and len(shape) != len(shapes[0])) or not candidate.accepts(shape, operands):
            return None
        shapes.append(shape)
    return shapes


def _result(failure: RawFailure, device: str, candidate: Candidate) -> Shape | None:
    """Return the shape of what the changed call returns, None where it fails or can't be tried."""
    call = failure.call
    if call is None:
        return None
    tensors = [operand.tensor for operand in failure.operands]
    at_home = _device(tensors[0].device) if device not in {_device(one.device) for one in tensors} else device
    small = sum(map(_elements, tensors)) <= _MOST_ELEMENTS and all(
        size <= _LONGEST_AXIS for one in tensors for size in one.shape
    )
    shape: Shape | None = None
    for real in (False, True):
        # without memory dtypes aren't looked at; with it, a result could be large
        if real and (not small or (shape is not None and numel(shape) > _MOST_ELEMENTS)):
            return shape
        made = [_stand_in(one, real == (_device(one.device) == at_home)) for one in tensors]
        shape = _attempt(call, made, candidate)
        if shape is None and not (small and not real):
            return None
    return shape


def _attempt(call: RawCall, tensors: list[Tensor], candidate: Candidate) -> Shape | None:
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            changed = candidate.call(call)
            mended = candidate.tensors(tensors)
            result = changed.function(
                *(_filled(value, mended) for value in changed.args),
                **{name: _filled(value, mended) for name, value in changed.keywords.items()},
            )
    except Exception:  # noqa: BLE001 - whatever is raised, the change doesn't work
        return None
    first = result[0] if isinstance(result, (tuple, list)) and result else result
    return tuple(first.shape) if isinstance(first, Tensor) else None


def _filled(value: Any, tensors: Sequence[Tensor]) -> Any:
    """Return an argument with the stand-ins in it. Raises TypeError where an object of it wasn't kept."""
    match value:
        case Slot(operand=operand):
            return tensors[operand]
        case Opaque():
            raise TypeError("an argument wasn't kept")
        case tuple() | list():
            return type(value)(_filled(item, tensors) for item in value)
        case dict():
            return {key: _filled(item, tensors) for key, item in value.items()}
    return value


def _stand_in(tensor: RawTensor, on_cpu: bool) -> Tensor:
    dtype = getattr(torch, tensor.dtype)
    if len(tensor.stride) != len(tensor.shape):  # a sparse tensor has no strides
        return torch.zeros(tensor.shape, dtype=dtype, device="cpu" if on_cpu else "meta")
    memory = torch.zeros(_elements(tensor), dtype=dtype, device="cpu" if on_cpu else "meta")
    return memory.as_strided(tensor.shape, tensor.stride)


def _elements(tensor: RawTensor) -> int:
    """Return how many elements the memory has that a tensor spans."""
    if not numel(tensor.shape):
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride, strict=False))


def _device(name: str) -> str:
    return name.partition(":")[0]


def _signature(scene: Scene, shapes: Sequence[Shape]) -> str:
    actual, *small = shapes
    return " ".join(_axis(scene, [shape[axis] for shape in small], size) for axis, size in enumerate(actual))


def _axis(scene: Scene, small: list[int], actual: int) -> str:
    if small:
        return scene.alike.formula(small, actual).text
    known = {
        axis.expression
        for party in scene.parties
        for axis, size in zip(party.record.axes, party.shape, strict=True)
        if size == actual and axis.known == "proved"
    }
    return known.pop() if len(known) == 1 else matched(actual, scene.alike.numbers).text
