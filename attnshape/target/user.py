"""Targets in the user's own code: functions, classes, methods, paths inside objects, and cases."""

from __future__ import annotations

import copy
import dis
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

from attnshape.claims import claimed_by_case
from attnshape.dims import BY_LETTER
from attnshape.ending import reraise_interruption
from attnshape.errors import AttnshapeError
from attnshape.hints import nearest
from attnshape.signature import TensorSpec, parse_spec
from attnshape.target.annotations import annotated_inputs
from attnshape.target.contents import building, make, place
from attnshape.target.evaluate import Names, evaluate, names_used, reach, required_parameters
from attnshape.target.locate import import_target, origin, raised
from attnshape.target.request import Placement, Request, Target
from attnshape.tracing.contained import modules_within, paths
from attnshape.tracing.isolation import seed_all
from attnshape.tracing.runner import Runnable


def user_target(request: Request, where: str, path: str) -> Target:
    """Return the target that `where:path` names. Raises AttnshapeError where it can't be one."""
    return target_in(request, import_target(where), path)


def target_in(request: Request, module: ModuleType, path: str) -> Target:
    """Return the target that a path leads to in a module. Raises AttnshapeError where it can't be one."""
    specs = tuple(parse_spec("--input", text) for text in request.inputs)
    letters = {*BY_LETTER, *request.own}
    _check_symbols(specs, letters, "--input")
    root = path.partition(".")[0].partition("(")[0].partition("[")[0].strip()
    first: Any = getattr(module, root, None)
    if is_case(first, path, request, letters):
        return _case_target(request, first)
    texts = [("the target", path), *(("--with", text) for text in request.arguments.values())]
    if request.init is not None:
        texts.append(("--init", request.init))
    used = {name for flag, text in texts for name in names_used(flag, text) if name in letters}
    used -= {root} - set(request.own)
    used |= {symbol for spec in specs for symbol in spec.symbols}
    if not specs:
        function = _without_building(first, path)
        given = {*request.arguments, *request.values}
        annotated = [spec for spec in annotated_inputs(function) if spec.name not in given]
        _check_symbols(annotated, letters, "the annotation")
        specs = tuple(annotated)
        used |= {symbol for spec in specs for symbol in spec.symbols}
    varies = not any(True for _ in paths("", dict(request.values)))

    def build(numbers: Mapping[str, int], placement: Placement) -> Runnable:
        names = Names(numbers, module)
        seed_all(placement.seed)
        with building(placement):
            function = reach(path, request.init, module, names)
        if "(" not in path and not inspect.isclass(first):
            function = _copied(function)
        if not callable(function):
            raise AttnshapeError(
                f"{request.target} isn't something to call: its type is {type(function).__name__}",
                "name a function, a module, a method, or a case",
            )
        function = _as_written(function)
        for _, owned in modules_within(function):
            place(owned, placement)
        seed_all(placement.seed)
        values: dict[str, Any] = {spec.name: make(spec, numbers, placement) for spec in specs}
        with building(placement):
            values |= {
                name: place(evaluate("--with", text, names), placement) for name, text in request.arguments.items()
            }
        values |= {name: _copied(value) if varies else value for name, value in request.values.items()}
        return _bind(function, request.target, values)

    return Target(request.target, tuple(sorted(used)), request.given, build, library=False, varies=varies)


def _copied(value: Any) -> Any:
    """Return a copy of an object that was built when its module was imported: no run sees another's device or state."""
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - not everything can be copied
        return value


def _as_written(function: Any) -> Any:
    """Return the module that a compiled one was made from: the compiler can't work while the calls are watched."""
    return getattr(function, "_orig_mod", function) if isinstance(function, torch.nn.Module) else function


def _without_building(first: Any, path: str) -> Any:
    """Return the callable whose annotations can be read before anything is built."""
    if inspect.isclass(first):
        attribute = path.partition(".")[2]
        return getattr(first, attribute, None) if attribute.isidentifier() else getattr(first, "forward", None)
    if isinstance(first, torch.nn.Module):
        return first.forward
    return first if path.isidentifier() else None


def is_case(function: Any, path: str, request: Request, letters: set[str]) -> bool:
    """Say whether a function is a case: called with sizes alone, it returns what to call and with what."""
    if not inspect.isfunction(function) or not path.isidentifier():
        return False
    if request.init is not None or request.inputs or request.arguments or request.values:
        return False
    parameters = inspect.signature(function).parameters.values()
    if any(hasattr(p.annotation, "dim_str") or "[Tensor" in str(p.annotation) for p in parameters):
        return False
    required = required_parameters(function)
    unknown = [name for name in required if name not in letters]
    if unknown:
        return False
    return bool(required) or not annotated_inputs(function)


def _case_target(request: Request, function: Callable[..., Any]) -> Target:
    used = tuple(required_parameters(function))

    def build(numbers: Mapping[str, int], placement: Placement) -> Runnable:
        seed_all(placement.seed)
        try:
            with building(placement):
                result = function(**{name: numbers[name] for name in used})
        except AttnshapeError:
            raise
        except BaseException as error:
            reraise_interruption(error)
            sizes = ", ".join(f"{name}={numbers[name]}" for name in used)
            raise AttnshapeError(
                f"the case {request.target}({sizes}) can't be built: {raised(error)}{origin(error)}",
                "mend the case, or give other sizes",
            ) from error
        return from_case(request.target, result, placement)

    return Target(request.target, used, request.given, build, library=False)


def from_case(label: str, result: Any, placement: Placement) -> Runnable:
    """Return what a case returned as something to run. Raises AttnshapeError where it returned something else."""
    claims: Any = None
    match result:
        case (function, args) if callable(function) and isinstance(args, (tuple, list)):
            kwargs: dict[str, Any] = {}
        case (function, args, dict() as kwargs) if callable(function) and isinstance(args, (tuple, list)):
            pass
        case (function, args, dict() as kwargs, claims) if callable(function) and isinstance(args, (tuple, list)):
            pass
        case _:
            raise AttnshapeError(
                f"{label} was called as a case and returned {type(result).__name__}, expected (callable, args), "
                "(callable, args, kwargs) or (callable, args, kwargs, claims)",
                'a function of tensors needs --input for each, for example --input "query: B L D"',
            )
    function = _as_written(function)
    for _, module in modules_within(function):
        place(module, placement)
    said = claimed_by_case(claims, label)
    return Runnable(function, place(tuple(args), placement), place(kwargs, placement), said)


def _bind(function: Callable[..., Any], label: str, values: dict[str, Any]) -> Runnable:
    """Return the call with each value under its parameter. Raises AttnshapeError where the names don't fit."""
    target = Runnable(function).signature_of
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):
        return Runnable(function, tuple(values.values()))
    kinds = {p.kind for p in parameters.values()}
    names = [p.name for p in parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if inspect.Parameter.VAR_KEYWORD not in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        for name in values:
            if name not in names:
                raise AttnshapeError(f"{label} has no parameter {name!r}", nearest(name, names, "it takes"))
    missing = [name for name in required_parameters(target) if name not in values]
    if missing:
        raise AttnshapeError(
            f"{label} takes {', '.join(names)}; nothing is given for {', '.join(missing)}",
            f'describe each tensor: --input "{missing[0]}: B L D", and other arguments with --with "{missing[0]}=…"',
        )
    # what no parameter is named after goes to **kwargs by name where these are read, else to *args in order
    to_args = inspect.Parameter.VAR_POSITIONAL in kinds and not _reads_keywords(target, kinds)
    extra = [name for name in values if to_args and name not in names]
    by_place = {inspect.Parameter.POSITIONAL_ONLY, *([inspect.Parameter.POSITIONAL_OR_KEYWORD] if extra else [])}
    positional = [p.name for p in parameters.values() if p.kind in by_place and p.name in values] + extra
    others = {name: value for name, value in values.items() if name not in positional}
    return Runnable(function, tuple(values[name] for name in positional), others)


def _reads_keywords(function: Callable[..., Any], kinds: set[Any]) -> bool:
    """Say whether a function has `**kwargs`, and anything in its code asks for them."""
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        return False
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None or code.co_flags & inspect.CO_VARKEYWORDS == 0:
        return True
    name = code.co_varnames[code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)]
    return name in code.co_cellvars or any(
        step.opname.startswith("LOAD") and (step.argval == name or (type(step.argval) is tuple and name in step.argval))
        for step in dis.get_instructions(code)
    )


def _check_symbols(specs: Sequence[TensorSpec], letters: set[str], said: str) -> None:
    for spec in specs:
        for symbol in spec.symbols:
            if symbol not in letters:
                raise AttnshapeError(
                    f"{said} {f'{spec.name}: {spec.signature}'!r}: {symbol} isn't a size symbol",
                    f"{nearest(symbol, sorted(letters), 'the symbols are')} (or define your own: --dim {symbol}=4)",
                )
