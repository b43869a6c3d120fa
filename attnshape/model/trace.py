"""The trace: the immutable value that recording and inference make and everything after them reads, and its saved form.

Field by field this is the saved form, schema `attnshape/trace/1`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from attnshape.errors import AttnshapeError, ExitStatus
from attnshape.model.behaviour import Behaviour

SCHEMA: Literal["attnshape/trace/1"] = "attnshape/trace/1"
_BATCH_SCHEMA = "attnshape/traces/1"
"""The schema of the traces of several targets in one file."""

_T = TypeVar("_T")

NO_SIZE = -1
"""The size of an axis that has no single size, such as the ragged axis of a nested tensor."""
Known = Literal["verified", "matched", "literal"]
StorageKind = Literal["new", "view", "same", "inplace", "unknown"]
Role = Literal[
    "projection", "split", "transpose", "scores", "scale", "mask", "softmax", "dropout", "context", "merge", "output"
]


def json_text(value: object, indent: int = 1) -> str:
    r"""Return a value as JSON; with an indent of 0, on one line with spaces.

    >>> print(json_text("##[error]"), json_text("\udcff"))
    "#\u0023[error]" "\udcff"
    """
    try:
        text = msgspec.json.format(msgspec.json.encode(value), indent=indent).decode()
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can express
        text = json.dumps(msgspec.to_builtins(value), indent=indent or None)
    # in a log, GitHub's runner and others carry out `##[…]` and `##name[…]` as commands
    return re.sub(r"##(?=\w*\[)", r"#\\u0023", text)


def decode_json(text: str | bytes, kind: type[_T]) -> _T:
    """Return the value in JSON that `json_text` wrote. Raises ValidationError or DecodeError of msgspec."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        # msgspec doesn't read half a surrogate pair, as in the name of a file whose bytes aren't UTF-8
        try:
            return msgspec.convert(json.loads(text), kind)
        except msgspec.ValidationError:
            raise
        except ValueError:
            raise msgspec.DecodeError(str(error)) from None


class Saved(Struct, frozen=True):
    """A value that is saved as JSON; its `schema` is the first key there."""

    def to_json(self) -> str:
        """Return the value as indented JSON, as it is saved.

        >>> import attnshape
        >>> print(attnshape.trace("scaled-dot-product").to_json().splitlines()[1])
         "schema": "attnshape/trace/1",
        """
        return json_text(self)


class Displayed(Saved, frozen=True):
    """A value that consoles and notebooks display; the reporters are imported only then."""

    def __str__(self: Any) -> str:
        from attnshape.reporters.display import display_text

        return display_text(self)

    __repr__ = __str__

    def _repr_markdown_(self: Any) -> str:
        from attnshape.reporters.display import display_markdown

        return display_markdown(self)


class Reference(Struct, frozen=True, omit_defaults=True):
    """Where a tensor comes from: exactly one of a step's output, an input, a parameter, or a constant."""

    step: int | None = None
    output: int = 0
    """Which of the step's outputs, from 0."""
    input: str | None = None
    parameter: str | None = None
    constant: bool = False


class Axis(Struct, frozen=True, omit_defaults=True):
    """One axis: its expression, and how it is known."""

    expression: str
    known: Known
    unexplained: bool = False
    """Whether a number isn't known to be a constant: it varied with the sizes, or some size could not vary."""
    where: str | None = None
    """The comparison under which the expression holds, such as `W <= L` or `D >= 128`; None if it always does."""


class Storage(Struct, frozen=True):
    """What memory a tensor lies in: new, another tensor's, the very same tensor's, or one that was written to.

    It is unknown for a tensor without a storage of its own, such as a sparse one.
    """

    kind: StorageKind
    of: Reference | None = None
    """The tensor that it is a view of, the same as, or a write to."""
    root: Reference | None = None
    """The tensor that allocated the memory."""


class TensorRecord(Struct, frozen=True, kw_only=True):
    """One tensor: signature, layout and storage; strides and the offset count elements.

    The size of an axis that has no single size, such as the ragged one of a nested tensor, is -1.
    """

    signature: str
    dtype: str
    device: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    axes: tuple[Axis, ...]
    strides: tuple[str, ...]
    contiguous: bool
    bytes: int
    layout: str | UnsetType = UNSET
    """How it is laid out, present if it has no strides or no memory of its own: `sparse_csr`, `jagged`, `wrapper`."""
    checked: Literal["declared", "inferred"] | None = None
    held_out: bool = False
    """Whether it was checked at the sizes held out, and not only at those of this run."""
    declared: str | None = None
    """The dims string of the source's own annotation."""
    storage: Storage


class NamedTensor(Struct, frozen=True, omit_defaults=True):
    """An input, or one output of a step, under the name that the source gives it."""

    name: str | None
    tensor: TensorRecord
    by_use: bool = False
    """Whether the name is a later consumer's variable, not what the expression itself is assigned to."""
    inner: Reference | None = None
    """For a composite's result, the inner step's output that it is."""


class Source(Struct, frozen=True):
    """Where in the source a step stands; line from 1, column from 1."""

    file: str
    line: int
    column: int
    function: str


class Avoided(Struct, frozen=True):
    """The scores that a fused attention step never makes."""

    signature: str
    bytes: int


UNKNOWN_FORMULA = "?"
"""The formula of an argument that varies with the sizes, or may do so, in a way that isn't known."""


class Argument(Struct, frozen=True, omit_defaults=True):
    """An argument of a call that is no tensor, such as `is_causal` or `dim`."""

    name: str
    value: str
    """Its value in this run, as Python writes it: `True`, `-1`, `0.125`."""
    formula: str | None = None
    """What it is in the sizes, such as `1/sqrt(Dk)`, if it varies with them; `?` if that isn't known."""
    default: bool = False
    """Whether the function takes the same value where the argument isn't given."""


class Quantity(Struct, frozen=True, omit_defaults=True):
    """A number of operations or bytes in this run, and its formula."""

    value: int
    expression: str | None = None
    """A sum of products of sizes that gave the number in every run; None if there is none."""


class Cost(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a step, or all steps together, compute and move."""

    flops: Quantity | None = None
    """Floating-point operations: a multiplication and an addition are two; None if they aren't known."""
    moved: Quantity | None = None
    """Bytes that are read and written, each operand and each result of an operation once; None if not known."""
    temporary: Quantity | None = None
    """Bytes of tensors that operations make inside, such as hidden copies, and that aren't results."""
    saved: Quantity | None = None
    """Bytes that are kept for the backward pass, each storage counted once, without parameters; None if not known."""
    unknown: tuple[str, ...] = ()
    """The operations whose floating-point operations aren't known."""

    @property
    def intensity(self) -> float | None:
        """The floating-point operations per byte that is moved; None if either isn't known, or no byte is."""
        if self.flops is None or self.moved is None or not self.moved.value:
            return None
        return self.flops.value / self.moved.value


class TotalCost(Cost, frozen=True, kw_only=True, omit_defaults=True):
    """What a whole run computes and moves, every iteration of its loops included."""

    parameters: Quantity
    """The number of elements of all parameters, without buffers."""
    products: Quantity | None = None
    """The floating-point operations in products of matrices and convolutions; None if they aren't known."""
    attention: Quantity | UnsetType | None = UNSET
    """The floating-point operations of the products for scores and context; present if there are any."""
    needless: float | UnsetType = UNSET
    """The share of the attention weights that are exactly 0; present if there are any."""
    cache: Quantity | UnsetType = UNSET
    """The bytes that cached tensors grow by with each token; present where such tensors are seen."""


class Step(Struct, frozen=True, kw_only=True):
    """One tensor-producing operation."""

    index: int
    parent: int | None = None
    expression: str
    operation: str
    role: Role | None = None
    module: str | None = None
    source: Source | None = None
    operands: tuple[Reference, ...] = ()
    arguments: tuple[Argument, ...] | UnsetType = UNSET
    """Its arguments that are no tensors, without those that only say which shape the result has, or where it is.

    Absent in traces of earlier versions.
    """
    outputs: tuple[NamedTensor, ...] = ()
    cost: Cost | UnsetType = UNSET
    """Present where it was counted; of a composite, what its steps cost together."""
    avoided: Avoided | UnsetType = UNSET
    """Present where the step is fused attention."""
    opaque: str | UnsetType = UNSET
    """Why what happened inside couldn't be seen; present where it couldn't."""


class Loop(Struct, frozen=True):
    """Repeated steps, of which the trace has one iteration, from the first step to the last.

    A loop's number of iterations follows from the sizes, or its iterations are equal, as a model's layers are.
    """

    first: int
    last: int
    count: int
    expression: str
    known: Known
    modules: tuple[str, str] | UnsetType = UNSET
    """The modules of the first and the last iteration, present where each iteration is in another one of a list."""


class Size(Struct, frozen=True, omit_defaults=True):
    """One size symbol's number, and where it is from."""

    size: int
    origin: Literal["given", "default", "derived"] = field(name="from")
    expression: str | None = None


class TargetOutput(Struct, frozen=True):
    """One tensor that the target returned: `output`, or a path such as `output[0]`."""

    name: str
    of: Reference


class Operand(Struct, frozen=True, omit_defaults=True):
    """One operand of the step that failed."""

    name: str
    tensor: TensorRecord
    disagree: tuple[int, ...] = ()
    """Its axes that don't fit those of the others, from 0."""


class Failure(Struct, frozen=True, kw_only=True):
    """The step at which the traced code failed."""

    expression: str | None
    source: Source | None
    operation: str | None
    error: str
    operands: tuple[Operand, ...] = ()
    explanation: str | None = None
    """Which axes disagree, in words; None if no more is known than the error says."""
    hint: str | None = None
    """A change that was tried on placeholders for the operands, and works."""


class Expectation(Struct, frozen=True):
    """One `--expect`, and whether it holds."""

    name: str
    signature: str
    holds: bool
    why: str | None = None
    """Where it doesn't hold: what differs. Where it does: what the verdict is limited to."""


class Peak(Struct, frozen=True, kw_only=True):
    """The most memory that a run on a real device holds at one time, estimated from small runs."""

    bytes: int
    known: Literal["verified", "estimate"]
    """Proved where every block that is held has a formula, and the run took the steps of the small ones."""
    expression: str | None = None
    """The bytes as a sum over the sizes, where it is short."""
    step: int | None = None
    """The step during which it is reached; None while the target is being built."""
    parameters: int
    """The bytes of it that parameters, buffers and constants take."""
    inputs: int


class HeldOut(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The run that checked the formulas at sizes from which none was inferred, or why there was none."""

    sizes: dict[str, int] = {}
    reason: str | None = None


class Trace(Displayed, frozen=True, kw_only=True):
    """The ordered steps of one run, with what was inferred and checked.

    It is immutable, and shows itself: as a table in a console and in `print`, as HTML in a notebook.

    >>> import attnshape
    >>> trace = attnshape.trace("scaled-dot-product", B=3, Lk=7)
    >>> weights = next(step for step in trace.steps if step.role == "softmax").outputs[0]
    >>> weights.name, weights.tensor.signature, weights.tensor.shape, weights.tensor.stride
    ('weights', 'B Lq Lk', (3, 10, 7), (70, 7, 1))
    """

    schema: Literal["attnshape/trace/1"] = SCHEMA
    attnshape: str
    torch: str
    python: str
    target: str
    command: str
    found: str | UnsetType = UNSET
    """Present where attnshape worked out arguments of the target: the flags that say the same."""
    device: str
    dtype: str
    seed: int
    sizes: dict[str, Size]
    complete: bool
    verified_at: int
    held_out: HeldOut | UnsetType = UNSET
    """Absent where jaxtyping checked no signature."""
    preconditions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    inputs: tuple[NamedTensor, ...] = ()
    steps: tuple[Step, ...] = ()
    loops: tuple[Loop, ...] = ()
    outputs: tuple[TargetOutput, ...] = ()
    failure: Failure | None = None
    expectations: tuple[Expectation, ...] = ()
    grad: bool | UnsetType = UNSET
    """Present where the run kept what gradients need."""
    peak: Peak | UnsetType = UNSET
    """Present where the run's memory was estimated: at large sizes, and with gradients."""
    cost: TotalCost | UnsetType = UNSET
    """Present where it was counted: what all steps cost together, every iteration of loops included."""
    behaviour: Behaviour | UnsetType = UNSET
    """Present where the behaviour was measured."""

    @property
    def found_something(self) -> bool:
        """Whether the code failed, an expectation doesn't hold, or one of the source's own annotations is wrong."""
        wrong = any(
            output.tensor.declared and not output.tensor.checked for step in self.steps for output in step.outputs
        )
        return self.failure is not None or wrong or not all(e.holds for e in self.expectations)

    @property
    def exit_status(self) -> ExitStatus:
        """The exit status of a command with this trace alone."""
        return ExitStatus.FOUND if self.found_something else ExitStatus.FINE

    def step(self, index: int) -> Step:
        """Return the step of that index, counted from 1.

        >>> import attnshape
        >>> attnshape.trace("scaled-dot-product").step(1).expression
        'key.transpose(-2, -1)'
        """
        return self.steps[index - 1]

    @property
    def composites(self) -> frozenset[int]:
        """The indices of the steps that have inner steps."""
        return frozenset(step.parent for step in self.steps if step.parent is not None)

    @classmethod
    def from_json(cls, text: str | bytes) -> Trace:
        """Return the trace that `to_json` wrote. Raises AttnshapeError if the text is something else.

        >>> import attnshape
        >>> trace = attnshape.trace("scaled-dot-product")
        >>> attnshape.Trace.from_json(trace.to_json()) == trace
        True
        """
        return decode_trace(text)

    def _repr_html_(self) -> str:
        from attnshape.reporters.display import display_html

        return display_html(self)


def loops_by_step(loops: Sequence[Loop]) -> dict[int, list[Loop]]:
    """Return the loops around each step that is in any, the outermost first, by the step's index."""
    around: dict[int, list[Loop]] = {}
    for loop in sorted(loops, key=lambda loop: loop.first - loop.last):
        for index in range(loop.first, loop.last + 1):
            around.setdefault(index, []).append(loop)
    return around


def decode_trace(text: str | bytes, name: str = "the text") -> Trace:
    """Return the trace that `Trace.to_json` wrote.

    Raises AttnshapeError if the text isn't JSON, isn't a trace, or is one of another schema.
    """
    again = "save it again: attnshape trace … --format json --output FILE"
    apart = "save each in a file of its own: attnshape trace --all --format json --output FOLDER/"
    try:
        trace = decode_json(text, Trace)
    except msgspec.ValidationError as error:
        schema = _schema_of(text)
        if schema != SCHEMA:
            what = f"says it is {schema!r}" if schema else "has no schema of ours"
            raise AttnshapeError(
                f"{name} isn't a trace that this version reads: expected {SCHEMA!r}, it {what}",
                apart if schema == _BATCH_SCHEMA else again,
            ) from None
        raise AttnshapeError(f"{name} isn't a whole trace: {error}", again) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AttnshapeError(f"{name} isn't JSON, or not all of it: {error}", again) from None
    except RecursionError:
        raise AttnshapeError(f"{name} is nested too deeply to be a trace", again) from None
    if (problem := next(_inconsistencies(trace), None)) is not None:
        raise AttnshapeError(f"{name} isn't a whole trace: {problem}", again)
    return trace


def read_trace(path: Path) -> Trace:
    """Return the trace saved in a file. Raises AttnshapeError if it can't be read or isn't a trace."""
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
    return decode_trace(content, str(path))


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the saved trace."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Trace)}


def _inconsistencies(trace: Trace) -> Iterator[str]:
    """Yield where steps aren't numbered from 1, refer to steps or outputs that don't exist, or don't fit together."""
    counts = [len(step.outputs) for step in trace.steps]
    for place, step in enumerate(trace.steps, 1):
        if step.index != place or not step.outputs or (step.parent is not None and not 0 < step.parent < place):
            yield f"step {place} is out of place"
        if any(output.inner is not None and (output.inner.step or 0) <= place for output in step.outputs):
            yield f"step {place} has no inner step"
    if any(not 0 < loop.first <= loop.last <= len(trace.steps) for loop in trace.loops):
        yield "a loop has no steps"
    for tensor in _tensors(trace):
        # sparse tensors have no strides
        if len(tensor.axes) != len(tensor.shape) or len(tensor.stride) not in (0, len(tensor.shape)):
            yield "a tensor's axes aren't as many as its shape's"
        if len(tensor.strides) != len(tensor.stride) or any(map(_is_wrong, tensor.shape, tensor.axes)):
            yield "a tensor's shape and strides don't fit"
    for reference in _references(trace):
        number, output = reference.step, reference.output
        if number is not None and not (0 < number <= len(counts) and 0 <= output < counts[number - 1]):
            yield f"it refers to step {number}, which isn't there"


def _is_wrong(size: int, axis: Axis) -> bool:
    """Return whether a size is negative, unless it is that of an axis without a single size."""
    return size < 0 and not (size == NO_SIZE and axis.unexplained)


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
    if trace.peak is not UNSET and trace.peak.step is not None:
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
