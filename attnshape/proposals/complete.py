"""Completes the description of a target: proposes what is missing, tries it at small sizes, and takes what works."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from attnshape.checks.interventions.module_state import ModuleState
from attnshape.dims.symbols import SYMBOLS_BY_NAME
from attnshape.errors import AttnshapeError, Option, Text, format_exception
from attnshape.options.spec import TargetSpec
from attnshape.proposals.candidates import constructor_candidates, map_sizes
from attnshape.proposals.search import Search
from attnshape.runtime.time_limit import TooLong
from attnshape.targets.evaluation import required_parameters
from attnshape.targets.imports import import_target
from attnshape.targets.inputs import annotated_inputs
from attnshape.targets.user import callable_name, is_case


@dataclass(frozen=True)
class Completed:
    """A target's description with what was worked out, and the options that say the same."""

    spec: TargetSpec
    found: tuple[Option, ...] = ()


def complete(spec: TargetSpec) -> Completed:
    """Return the description of a target of the user's own with the constructor arguments and inputs that it lacks.

    What the user gave stays as it is. Nothing is tried where nothing is missing, or where something that is needed has
    no proposal; building the target then says what it is.

    Raises:
        AttnshapeError: The target doesn't import, or none of the proposals works.
    """
    where, _, path = (part.strip() for part in spec.target.partition(":"))
    root: Any = spec.callable
    if root is None:
        module: ModuleType | None = import_target(where)
        root = getattr(module, path, None) if path.isidentifier() else None
    else:
        module, path = sys.modules.get(getattr(root, "__module__", None) or ""), callable_name(root)
    if root is None or module is None or is_case(root, path, spec, {*SYMBOLS_BY_NAME, *spec.sizes}):
        return Completed(spec)
    call = root.forward if isinstance(root, torch.nn.Module) else root
    if inspect.isclass(root):
        call = getattr(root, "forward", None) or vars(root).get("__call__")
    if not callable(call) or not _has_signature(call) or (not spec.inputs and annotated_inputs(call)):
        return Completed(spec)
    bound = [*inspect.signature(call).parameters][:1] if inspect.isclass(root) else []
    given = {**dict.fromkeys([*bound, *spec.arguments], ""), **spec.inputs}
    if not _takes(call, given):
        return Completed(spec)
    needs_init = inspect.isclass(root) and spec.init is None and bool(required_parameters(root))
    needs_inputs = bool(set(required_parameters(call)) - given.keys()) or (
        not spec.inputs and not spec.arguments and _takes_any(call, bound)
    )
    if not needs_init and not needs_inputs:
        return Completed(spec)
    search = Search(map_sizes(root))
    inits: list[str | None] = [spec.init]
    if needs_init or (inspect.isclass(root) and spec.init is None):
        # a constructor whose parameters all have defaults may take sizes too
        inits = [init or None for init in constructor_candidates(root, module)]
    state = ModuleState(module)
    taken = search.first_that_works(spec, inits, module, call, given, is_function=inspect.isfunction(root))
    state.restore()
    if taken is None:
        if search.failure is not None:
            raise _nothing_works(spec, search)
        return Completed(spec)
    own = list(spec.given_options())
    return Completed(taken, tuple(option for option in taken.given_options() if option not in own))


def _has_signature(call: Callable[..., Any]) -> bool:
    """Return whether the parameters of a callable are known; those of most functions written in C aren't."""
    try:
        inspect.signature(call)
    except (TypeError, ValueError):
        return False
    return True


def _takes(call: Callable[..., Any], given: Iterable[str]) -> bool:
    """Return whether a callable has parameters of these names, or takes any."""
    parameters = inspect.signature(call).parameters
    variadic = any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters.values())
    return variadic or parameters.keys() >= set(given)


def _takes_any(call: Callable[..., Any], bound: Sequence[str]) -> bool:
    """Return whether a callable passes on whatever it gets, apart from what it is bound to."""
    parameters = [p for p in inspect.signature(call).parameters.values() if p.name not in bound]
    return bool(parameters) and all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.KEYWORD_ONLY) for p in parameters)


def _nothing_works(spec: TargetSpec, search: Search) -> AttnshapeError:
    assert search.failure is not None
    failure = search.failure
    own = list(spec.given_options())
    flags: list[str | Option] = []
    for option in failure.spec.given_options():
        if option not in own:
            flags += [" " if flags else "", option]
    cause = failure.error.__cause__ or failure.error
    why = "it took too long" if isinstance(failure.error, TooLong) else format_exception(cause)
    tried = f"{search.attempts} combinations were tried" if search.attempts > 1 else "one was tried"
    message: Text = (f"{spec.target}: what it takes couldn't be worked out; {tried}. The nearest fails: {why}",)
    return AttnshapeError(message, ("correct it: ", *flags))
