"""The saved trace: to JSON, from JSON, and its JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from attnshape.errors import AttnshapeError
from attnshape.model import SCHEMA, Reference, TensorRecord, Trace

_SEVERAL = "attnshape/traces/1"
"""The schema of the traces of several targets in one file."""


def to_json(trace: Trace) -> str:
    """Return the trace as indented JSON, schema `attnshape/trace/1`."""
    return msgspec.json.format(msgspec.json.encode(trace), indent=1).decode()


def from_json(text: str | bytes, name: str = "the text") -> Trace:
    """Return the trace that `to_json` wrote.

    Raises AttnshapeError where the text isn't JSON, isn't a trace, or is one of another schema.
    """
    again = "save it anew: attnshape trace … --format json --output FILE"
    apart = "save each in a file of its own: attnshape trace --all --format json --output FOLDER/"
    try:
        trace = msgspec.json.decode(text, type=Trace)
    except msgspec.ValidationError as error:
        found = _schema_of(text)
        if found != SCHEMA:
            what = f"says it is {found!r}" if found else "has no schema of ours"
            raise AttnshapeError(
                f"{name} isn't a trace that this version reads: expected {SCHEMA!r}, it {what}",
                apart if found == _SEVERAL else again,
            ) from None
        raise AttnshapeError(f"{name} isn't a whole trace: {error}", again) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AttnshapeError(f"{name} isn't JSON, or not all of it: {error}", again) from None
    except RecursionError:
        raise AttnshapeError(f"{name} is nested too deeply to be a trace", again) from None
    _refuse_dangling(trace, name, again)
    return trace


def read(path: Path) -> Trace:
    """Return the trace saved in a file. Raises AttnshapeError where it can't be read or isn't a trace."""
    try:
        content = path.read_bytes()
    except IsADirectoryError:
        raise AttnshapeError(f"{path} is a folder, expected a saved trace", "name the JSON file in it") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise AttnshapeError(
            f"can't read {path}: {reason}", "save a trace with: attnshape trace … --format json --output FILE"
        ) from None
    except ValueError as error:
        raise AttnshapeError(f"can't read {str(path)!r}: {error}", "name the JSON file of a saved trace") from None
    return from_json(content, str(path))


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the saved trace."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Trace)}


def _refuse_dangling(trace: Trace, name: str, hint: str) -> None:
    """Raise AttnshapeError where steps aren't numbered from 1, or refer to steps or outputs that aren't there."""
    counts = [len(step.outputs) for step in trace.steps]
    for place, step in enumerate(trace.steps, 1):
        if step.index != place or not step.outputs or (step.parent is not None and not 0 < step.parent < place):
            raise AttnshapeError(f"{name} isn't a whole trace: step {place} is out of place", hint)
        for output in step.outputs:
            if output.inner is not None and (output.inner.step or 0) <= place:
                raise AttnshapeError(f"{name} isn't a whole trace: step {place} has no inner step", hint)
    for loop in trace.loops:
        if not 0 < loop.first <= loop.last <= len(trace.steps):
            raise AttnshapeError(f"{name} isn't a whole trace: a loop has no steps", hint)
    for tensor in _tensors(trace):
        # sparse tensors have no strides
        if len(tensor.axes) != len(tensor.shape) or len(tensor.stride) not in (0, len(tensor.shape)):
            raise AttnshapeError(f"{name} isn't a whole trace: a tensor's axes aren't as many as its shape's", hint)
        if len(tensor.strides) != len(tensor.stride) or any(size < 0 for size in tensor.shape):
            raise AttnshapeError(f"{name} isn't a whole trace: a tensor's shape and strides don't fit", hint)
    for reference in _references(trace):
        if reference.step is not None and not (
            0 < reference.step <= len(counts) and 0 <= reference.output < counts[reference.step - 1]
        ):
            raise AttnshapeError(
                f"{name} isn't a whole trace: it refers to step {reference.step}, which isn't there", hint
            )


def _tensors(trace: Trace) -> Iterator[TensorRecord]:
    for named in (*trace.inputs, *(output for step in trace.steps for output in step.outputs)):
        yield named.tensor
    if trace.failure is not None:
        yield from (operand.tensor for operand in trace.failure.operands)


def _references(trace: Trace) -> Iterator[Reference]:
    for step in trace.steps:
        yield from step.operands
    for output in trace.outputs:
        yield output.of
    if trace.peak is not msgspec.UNSET and trace.peak.step is not None:
        yield Reference(step=trace.peak.step)
    yield from (output.inner for step in trace.steps for output in step.outputs if output.inner is not None)
    for tensor in _tensors(trace):
        yield from (r for r in (tensor.storage.of, tensor.storage.root) if r is not None)


def _schema_of(text: str | bytes) -> str | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return str(value["schema"])[:60] if isinstance(value, dict) and "schema" in value else None
