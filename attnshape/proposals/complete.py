"""Completes the description of a target: proposes what is missing, tries it at small sizes, and takes what works."""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from msgspec.structs import replace

from attnshape.checks.interventions.module_state import ModuleState
from attnshape.dims.symbols import SYMBOLS_BY_NAME
from attnshape.errors import AttnshapeError, Option, Text, exception_message, exception_text, format_exception
from attnshape.options.spec import TargetSpec
from attnshape.proposals import conventions
from attnshape.proposals.calls import constructs
from attnshape.proposals.cases import sizes_of_case
from attnshape.proposals.constructors import constructor_candidates, guessed_constructors, unknown_parameters
from attnshape.proposals.examples import LEVELS, Examples
from attnshape.proposals.inputs import map_sizes
from attnshape.proposals.search import Search, failing_line, has_module
from attnshape.runtime.time_limit import TooLong
from attnshape.targets.evaluation import required_parameters
from attnshape.targets.imports import import_target, origin
from attnshape.targets.inputs import annotated_inputs
from attnshape.targets.missing import how_to_install, install_hint, starred_and_missing
from attnshape.targets.scripts import needs_cuda, stop_of
from attnshape.targets.user import callable_name, is_case

_MOST_CONSTRUCTING = 4
_CERTAIN = re.compile(
    r"(x_?)?(q|k|v|kv)|x|query|keys?|values?|queries|hidden_states|memory|context|[qkv]_states|tgt|src", re.I
)
"""The names of tensors of whose shape there is hardly any doubt."""


@dataclass(frozen=True)
class Completed:
    """A target's description with what was worked out, and the options that say the same."""

    spec: TargetSpec
    found: tuple[Option, ...] = ()
    cut_short: bool = False
    """Whether time ended an attempt, so that a quieter machine may find another description."""
    notes: tuple[str, ...] = ()
    """What is uncertain about it."""


def complete(spec: TargetSpec, report: Callable[[str], None] | None = None, *, may_fail: bool = False) -> Completed:
    """Return the description of a target of the user's own with the constructor arguments and inputs that it lacks.

    What the user gave stays as it is. Nothing is tried where nothing is missing; building the target then says what is
    wrong.

    Args:
        spec: The description.
        report: What is told each description that is tried, as flags.
        may_fail: Whether, if none works because the code itself fails, the one with which it gets furthest is returned.

    Raises:
        AttnshapeError: The target doesn't import, something that its constructor needs has no proposal, or none of the
            proposals works.
    """
    incomplete = _incomplete(spec)
    if incomplete is None:
        return Completed(spec)
    search = Search(map_sizes(incomplete.root), incomplete.module, report)
    taken = _as_case(incomplete) or incomplete.taken(search)
    if taken is None:
        if search.failure is not None:
            is_settled = not search.cut_short and not search.is_out_of_time
            if may_fail and _is_the_codes_own(search, incomplete) and _constructing_class(incomplete) is None:
                return _completed(spec, search.failure.spec, search, f"{_tried(search)}, and this gets furthest")
            error = _nothing_works(incomplete, search)
            error.is_settled = is_settled
            raise error
        return Completed(spec)
    return _completed(spec, taken, search)


def _completed(spec: TargetSpec, taken: TargetSpec, search: Search, *notes: str) -> Completed:
    own = list(spec.given_options())
    found = tuple(option for option in taken.given_options() if option not in own)
    return Completed(taken, found, search.cut_short, notes)


def _is_the_codes_own(search: Search, incomplete: _Incomplete) -> bool:
    """Return whether the nearest attempt fails in a call of torch, and no argument is likely to be described wrongly.

    If other arguments than the likeliest ones get further, they may get there by coincidence.
    """
    failure, likeliest = search.failure, search.likeliest
    if failure is None or search.missing is not None or likeliest is None or failure.progress == (0, 0):
        return False
    if (failure.spec.inputs, failure.spec.arguments) != (likeliest.inputs, likeliest.arguments):
        return False
    cause = failure.error.__cause__ or failure.error
    is_of_tensors = isinstance(cause, RuntimeError | IndexError) and not needs_cuda(cause)
    names = list(failure.spec.inputs)
    is_known = len(names) == 1 or all(_CERTAIN.fullmatch(name) for name in names)
    is_known &= set(failure.spec.arguments.values()) <= {"None"} and not incomplete.unknown_parameters()
    return is_of_tensors and is_known


def _tried(search: Search) -> str:
    number = f"{search.attempts} combinations were tried" if search.attempts > 1 else "one was tried"
    return f"what it takes couldn't be worked out for certain: {number}"


@dataclass(frozen=True)
class _Incomplete:
    """A target whose description lacks something."""

    spec: TargetSpec
    root: Any
    module: ModuleType
    call: Callable[..., Any]
    given: Mapping[str, str]
    """The arguments of the call that need no proposal, with the descriptions of those that are tensors."""
    needs_init: bool

    def taken(self, search: Search) -> TargetSpec | None:
        """Return the first description that works, else the first about which something is odd."""
        inits: list[str | None] = [self.spec.init]
        if self.needs_init or (inspect.isclass(self.root) and self.spec.init is None):
            # a constructor whose parameters all have defaults may take sizes too
            inits = [init or None for init in constructor_candidates(self.root, self.module)]
        state = ModuleState(self.module)
        examples = Examples(self.root, self.call, self.module)
        taken = (
            search.example_that_works(self.spec, examples.at(LEVELS[:3]), self.given)
            or search.first_that_works(self.spec, inits, self.module, self.call, self.given, self.root)
            or search.example_that_works(self.spec, examples.at(LEVELS[3:]), self.given)
            or search.first_that_works(self.spec, self._guesses(), self.module, self.call, self.given, self.root)
            or search.doubtful
            or search.refined(self.call, self.given)
            or search.doubtful
        )
        state.restore()
        return taken

    def unknown_parameters(self) -> dict[str, str]:
        """Return what the constructor's parameters get, some by their own names; none if something is known of all."""
        return unknown_parameters(self.root, self.module) if self.needs_init else {}

    def _guesses(self) -> list[str]:
        """Return what the constructor may get where nothing is known of some of its parameters."""
        return list(guessed_constructors(self.root, self.module)) if self.unknown_parameters() else []


def _incomplete(spec: TargetSpec) -> _Incomplete | None:
    """Return what the description of a target lacks; None if nothing is missing, or nothing can be proposed."""
    where, _, path = (part.strip() for part in spec.target.partition(":"))
    root: Any = spec.callable
    if root is None:
        module: ModuleType | None = import_target(where)
        root = getattr(module, path, None) if path.isidentifier() else None
    else:
        module, path = sys.modules.get(getattr(root, "__module__", None) or ""), callable_name(root)
    if root is None or module is None or is_case(root, path, spec, {*SYMBOLS_BY_NAME, *spec.sizes}):
        return None
    call = root.forward if isinstance(root, torch.nn.Module) else root
    if inspect.isclass(root):
        call = getattr(root, "forward", None) or vars(root).get("__call__")
    if not callable(call) or not _has_signature(call) or (not spec.inputs and _is_annotated(call, spec)):
        return None
    bound = [*inspect.signature(call).parameters][:1] if inspect.isclass(root) else []
    given = {**dict.fromkeys([*bound, *spec.arguments], ""), **spec.inputs}
    if not _takes(call, given):
        return None
    needs_init = inspect.isclass(root) and spec.init is None and bool(required_parameters(root))
    needs_inputs = bool(set(required_parameters(call)) - given.keys()) or (
        not spec.inputs and not spec.arguments and _takes_any(call, bound)
    )
    return _Incomplete(spec, root, module, call, given, needs_init) if needs_init or needs_inputs else None


def _is_annotated(call: Callable[..., Any], spec: TargetSpec) -> bool:
    """Return whether annotations describe the inputs by size symbols; names such as `batch` are to be worked out."""
    try:
        tensors = annotated_inputs(call)
    except AttnshapeError:  # an axis is left open
        return False
    known = {*SYMBOLS_BY_NAME, *spec.sizes}
    return bool(tensors) and known.issuperset(symbol for tensor in tensors for symbol in tensor.symbols)


def _as_case(incomplete: _Incomplete) -> TargetSpec | None:
    """Return the description of a case whose parameters are sizes under names of the user's own; None of other code."""
    spec, root = incomplete.spec, incomplete.root
    sizes = {**sizes_of_case(root), **spec.sizes}
    described = replace(spec, sizes=sizes)
    if not is_case(root, getattr(root, "__name__", ""), described, {*SYMBOLS_BY_NAME, *sizes}):
        return None
    return described if Search({}, incomplete.module).works(described) else None


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


def _nothing_works(incomplete: _Incomplete, search: Search) -> AttnshapeError:
    assert search.failure is not None
    spec, failure = incomplete.spec, search.failure
    if search.missing is not None:
        cause = search.missing.error.__cause__ or search.missing.error
        return AttnshapeError(
            f"{spec.target} can't run: {exception_message(cause)}", install_hint(search.missing.error)
        )
    cause = failure.error.__cause__ or failure.error
    place = origin(cause, spec.target.partition(":")[0].strip())
    if needs_cuda(cause):
        return AttnshapeError(
            f"{spec.target} can't run: it needs CUDA, which torch doesn't find here{place}",
            "run it where CUDA is, or let that line take the device of an input: .to(x.device)",
        )
    if isinstance(cause, NameError):
        why = f"{spec.target} can't run: {format_exception(cause)}{place}"
        if (stop := stop_of(incomplete.module)) is not None:
            return AttnshapeError(f"{why}; its file stopped at {stop.place}: {stop.why}", "let the file run to its end")
        if modules := starred_and_missing(incomplete.module):
            return AttnshapeError(f"{why}; {', '.join(modules)} may define it", how_to_install(modules))
        return AttnshapeError(why, "define that name, or import it")
    if unknown_arguments := incomplete.unknown_parameters():
        return _nothing_known(incomplete, unknown_arguments, search)
    own = list(spec.given_options())
    unknown = _unknown_input(incomplete, search)
    tried_options = [option for option in failure.spec.given_options() if option not in own]
    flags: list[str | Option] = []
    for option in tried_options:
        is_unknown = option.field == "inputs" and option.key == unknown
        flags += [" " if flags else "", Option("arguments", "…", unknown) if is_unknown else option]
    why = "it took too long" if isinstance(failure.error, TooLong) else f"{_described(cause).rstrip('.')}{place}"
    tried = f"{search.attempts} combinations were tried" if search.attempts > 1 else "one was tried"
    message: Text = (f"{spec.target}: what it takes couldn't be worked out; {tried}. The nearest fails: {why}",)
    add: Text = ("add what was tried, to see where it fails, or correct it: ", *flags)
    if unknown is not None:
        line = failing_line(failure.error, incomplete.call).strip()
        add = (f"say what {unknown} is, which none of the shapes tried fits in `{line}`: ", *flags)
    return AttnshapeError(message, _constructing_class(incomplete) or add)


def _unknown_input(incomplete: _Incomplete, search: Search) -> str | None:
    """Return the tensor of the nearest attempt whose name says nothing, if the line that fails uses it.

    Of several shapes the one with which the code gets furthest may be one that it reads in another way: as where a
    length meets an axis of 1.
    """
    assert search.failure is not None
    failure = search.failure
    line = failing_line(failure.error, incomplete.call) if failure.is_built else ""
    words = re.findall(r"\w+", line)
    names = [name for name in list(failure.spec.inputs)[1:] if name in words and name not in incomplete.given]
    names = [name for name in names if not conventions.is_query(name) and not conventions.is_memory(name)]
    return names[0] if len(names) == 1 and search.attempts > 1 else None


def _described(error: BaseException) -> str:
    """Return the kind and the message of an exception; the line of an assertion that has no message."""
    if isinstance(error, AssertionError) and not exception_text(error) and error.__traceback__ is not None:
        return f"AssertionError: {traceback.extract_tb(error.__traceback__)[-1].line}"
    if isinstance(error, AttnshapeError):
        return error.message
    return format_exception(error)


def _nothing_known(incomplete: _Incomplete, unknown: Mapping[str, str], search: Search) -> AttnshapeError:
    """Return the error about parameters of a constructor of which nothing is known, and with which any value fails.

    `unknown` are all required parameters, with the arguments that are known, or their own names.
    """
    assert search.failure is not None
    names = [name for name, text in unknown.items() if text == name]
    _, _, path = incomplete.spec.target.rpartition(":")
    cause = search.failure.error.__cause__ or search.failure.error
    place = origin(cause, incomplete.spec.target.partition(":")[0].strip())
    why = f"with {search.failure.spec.init} it fails: {_described(cause).rstrip('.')}{place}"
    return AttnshapeError(
        f"{path or incomplete.spec.target} is a class whose constructor needs {', '.join(names)}: its code doesn't say "
        f"what to try; {why}",
        _constructing_class(incomplete)
        or (f"replace {' and '.join(names)} by Python expressions: ", Option("init", ", ".join(unknown.values()))),
    )


def _constructing_class(incomplete: _Incomplete) -> str | None:
    """Return the advice to name another class of the module, which constructs the target and needs nothing more."""
    where, colon, _ = incomplete.spec.target.partition(":")
    classes = [one for one in vars(incomplete.module).values() if inspect.isclass(one)] if colon else []
    own = [one for one in classes if one.__module__ == incomplete.module.__name__ and issubclass(one, torch.nn.Module)]
    waiting, seen = [incomplete.root], {incomplete.root}
    while waiting and len(seen) <= _MOST_CONSTRUCTING:
        inner = waiting.pop(0)
        for kind in (one for one in own if one not in seen and constructs(one, inner)):
            seen.add(kind)
            waiting.append(kind)
            other = _incomplete(TargetSpec(target=f"{where}:{kind.__name__}"))
            taken = other.taken(Search(map_sizes(kind), incomplete.module)) if other is not None else None
            if taken is not None and has_module(taken, incomplete.root):
                return f"name {kind.__name__}, which constructs it and runs: {where}:{kind.__name__}"
    return None
