"""Reads jaxtyping annotations of a callable's parameters as descriptions of its inputs."""

from __future__ import annotations

import inspect
import typing
from typing import Any

from attnshape.errors import AttnshapeError
from attnshape.signature import TensorSpec, parse_spec


def annotated_inputs(function: Any) -> list[TensorSpec]:
    """Return the described inputs of a callable: each parameter with a jaxtyping annotation and no default.

    Raises AttnshapeError where an annotation leaves an axis open.
    """
    specs = []
    for name, annotation in _annotations(function):
        words = [_axis(word, name, annotation.dim_str) for word in annotation.dim_str.split()]
        kind = _kind(annotation.dtypes)
        specs.append(parse_spec("--input", f"{name}: {kind} {' '.join(words)}"))
    return specs


def annotated_result(function: Any) -> tuple[str, str] | None:
    """Return the kind and the dims string that a callable declares for its one result: `Float`, `B L D`."""
    try:
        annotation = inspect.signature(function, eval_str=True).return_annotation
    except Exception:  # noqa: BLE001 - annotations may name what exists for type checkers alone
        return None
    if not hasattr(annotation, "dim_str") or not hasattr(annotation, "dtypes"):
        return None
    return annotation.__name__.partition("[")[0], " ".join(annotation.dim_str.split())


def _annotations(function: Any) -> list[tuple[str, Any]]:
    if function is None or not callable(function):
        return []
    try:
        parameters = inspect.signature(function, eval_str=True).parameters.values()
    except Exception:  # noqa: BLE001 - annotations may name what exists for type checkers alone
        return []
    found = []
    for parameter in parameters:
        choices = typing.get_args(parameter.annotation) or (parameter.annotation,)
        tensor = next((choice for choice in choices if hasattr(choice, "dim_str") and hasattr(choice, "dtypes")), None)
        if tensor is not None and parameter.default is parameter.empty:
            found.append((parameter.name, tensor))
    return found


def _kind(dtypes: Any) -> str:
    names = list(dtypes) if isinstance(dtypes, (tuple, list)) else []
    if names and all("bool" in str(name) for name in names):
        return "bool"
    if names and all("int" in str(name) for name in names):
        return "int"
    return "float"


def _axis(word: str, name: str, dims: str) -> str:
    plain = word.lstrip("#?").rpartition("=")[2]
    if not plain or plain[0] in "*_." or plain == "...":
        raise AttnshapeError(
            f"the annotation {dims!r} of {name} leaves an axis open ({word})", f'give it: --input "{name}: B L D"'
        )
    return plain
