"""`assert_shapes`: one line of a test for the shapes that go into attention code and those that come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attnshape.errors import AttnshapeError
from attnshape.reporters.escaping import visible

if TYPE_CHECKING:
    import torch

    from attnshape.model.trace import Failure, Reference, TensorRecord, Trace

_EXAMPLE = 'for example "query: B Lq D, key: B Lk D -> B Lq D"'
_KINDS = {"bool": ("bool",), "int": ("int", "uint"), "float": ("float", "bfloat")}
"""The prefixes of the dtypes of each type."""


def assert_shapes(
    target: str | Callable[..., Any],
    signature: str,
    /,
    *,
    init: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    options: Mapping[str, bool | float] | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    seed: int = 0,
    train: bool = False,
    **sizes: int | str,
) -> None:
    """Assert the shapes that attention code returns, symbolically: at every size, not only at those given.

    The code runs at the sizes given and, with every size another prime, on small CPU tensors: an axis that is `Lk` and
    only happens to equal `Lq` doesn't pass. A module that is built already keeps its own widths.

    Args:
        target: What to run, as for `attnshape.trace`.
        signature: Each tensor argument, as `attnshape.trace` takes it, then one dims string for each tensor that must
            be returned: `"query: B Lq D, mask: bool B Lq Lk -> B Lq D, B H Lq Lk"`. `()` is a scalar, and a type may
            precede the axes of a result as well.
        init: The arguments to call a class with, as for `attnshape.trace`.
        arguments: The arguments that aren't tensors, by parameter, as for `attnshape.trace`.
        options: Options of built-in mechanisms, as for `attnshape.trace`.
        device: Where to run, as for `attnshape.trace`.
        dtype: The dtype of parameters and floating-point inputs, as for `attnshape.trace`.
        seed: The seed of parameters and inputs.
        train: Whether to run in training mode, with dropout.
        **sizes: The sizes of the symbols and of your own dimensions, as for `attnshape.trace`.

    Raises:
        AssertionError: A result has other axes, which the message names, or the code fails at a step.
        AttnshapeError: The signature or another argument is invalid, or the target can't be found or built.

    Example:
        >>> def attention(query, key, value):
        ...     return (query @ key.mT).softmax(-1) @ value
        >>> assert_shapes(attention, "query: B Lq D, key: B Lk D, value: B Lk D -> B Lq D")
        >>> assert_shapes(attention, "query: B Lq D, key: B Lk D, value: B Lk D -> B Lk D")
        Traceback (most recent call last):
            ...
        AssertionError: what attention returns isn't 'B Lk D': axis 1 is Lq=10, expected Lk=16
        it is 'B Lq D', shape 2 10 512, at B=2, Lq=10, Lk=16, D=512
    """
    __tracebackhide__ = True
    from attnshape.api import trace

    inputs, results = _parse(signature)
    traced = trace(
        target,
        init=init,
        inputs=inputs,
        arguments=arguments,
        inside=None,
        options=options,
        expect={f"return[{place}]": dims for place, (dims, _) in enumerate(results)},
        device=device,
        dtype=dtype,
        seed=seed,
        train=train,
        grad=False,
        cost=False,
        behaviour=False,
        **sizes,
    )
    problem = _problem(traced, results)
    if problem is not None:
        raise AssertionError(problem)


_Result = tuple[str, str | None]
"""The dims string and the type of a tensor that must be returned in one place."""


def _parse(signature: str) -> tuple[dict[str, str], list[_Result]]:
    before, arrow, after = signature.partition("->")
    if not arrow or not after.strip() or "->" in after:
        raise AttnshapeError(f"{signature!r} isn't 'inputs -> results'", _EXAMPLE)
    inputs: dict[str, str] = {}
    for part in before.split(",") if before.strip() else []:
        name, colon, described = (text.strip() for text in part.partition(":"))
        if not colon or not name:
            raise AttnshapeError(f"{part.strip()!r} in {signature!r} isn't 'name: axes'", _EXAMPLE)
        if name in inputs:
            raise AttnshapeError(f"{signature!r} gives {name} twice", "give it once")
        inputs[name] = described
    return inputs, [_result(part, signature) for part in after.split(",")]


def _result(part: str, signature: str) -> _Result:
    words = part.split()
    if not words:
        raise AttnshapeError(f"{signature!r} names no axes for a result", "a scalar is written (): " + _EXAMPLE)
    kind = words.pop(0) if words[0] in _KINDS else None
    return "" if words == ["()"] else " ".join(words), kind


def _problem(trace: Trace, results: list[_Result]) -> str | None:
    if trace.failure is not None:
        return _failed(trace, trace.failure)
    tensors = [_tensor(trace, output.of) for output in trace.outputs]
    if len(tensors) != len(results):
        listed = ", ".join(_quoted(tensor.signature) for tensor in tensors if tensor is not None)
        many = "1 tensor" if len(tensors) == 1 else f"{len(tensors)} tensors"
        returns = f": it returns {listed}" if listed else ""
        return visible(f"{_name(trace)} returns {many}, expected {len(results)}{returns}")
    rows = zip(results, trace.expectations, tensors, strict=False)
    for place, ((dims, kind), expectation, tensor) in enumerate(rows):
        what = f"what {_name(trace)} returns" + (f" in place {place}" if len(results) > 1 else "")
        if not expectation.holds:
            return visible(f"{what} isn't {_quoted(dims)}: {expectation.why}") + _actual(trace, tensor)
        if kind and tensor is not None and not tensor.dtype.startswith(_KINDS[kind]):
            return visible(f"{what} isn't {kind}: its dtype is {tensor.dtype}") + _actual(trace, tensor)
    return None


def _failed(trace: Trace, failure: Failure) -> str:
    number = len(trace.steps) + 1
    step = f", `{failure.expression}`" if failure.expression else ""
    where = f" ({failure.source.file}:{failure.source.line})" if failure.source else ""
    lines = [f"{_name(trace)} fails at step {number}{step}{where}: {failure.explanation or failure.error}"]
    lines += [f"the library says: {failure.error}"] if failure.explanation else []
    lines += [f"hint: {failure.hint}"] if failure.hint else []
    return "\n".join(map(visible, lines))


def _actual(trace: Trace, tensor: TensorRecord | None) -> str:
    if tensor is None:
        return ""
    sizes = ", ".join(f"{symbol}={size.size}" for symbol, size in trace.sizes.items())
    shape = f"shape {' '.join(map(str, tensor.shape))}" if tensor.shape else "a scalar"
    return "\n" + visible(f"it is {_quoted(tensor.signature)}, {shape}, at {sizes}")


def _name(trace: Trace) -> str:
    return trace.target.rpartition(":")[2]


def _quoted(signature: str) -> str:
    return repr(signature or "()")


def _tensor(trace: Trace, of: Reference) -> TensorRecord | None:
    if of.step is not None:
        return trace.step(of.step).outputs[of.output].tensor
    return next((named.tensor for named in trace.inputs if named.name == of.input), None)
