"""Targets in the user's own code: functions, classes, methods, attributes, cases, and objects passed from Python."""

from __future__ import annotations

import builtins
import copy
import dis
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch

from attnshape.dims.expressions import parse_tensor
from attnshape.dims.sizes import resolve
from attnshape.dims.symbols import NUMBER_OF_LAYERS, SYMBOLS_BY_NAME, VOCABULARY_SIZE, require_known
from attnshape.errors import AttnshapeError, Option, did_you_mean, format_exception
from attnshape.options.claims import claim_texts
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.runtime.isolation import seed_all
from attnshape.runtime.time_limit import reraise_interruption_or_timeout
from attnshape.targets.evaluation import (
    THE_TARGET,
    Names,
    evaluate,
    layer_counts,
    names_in_call,
    names_used,
    reach,
    required_parameters,
    vocabulary_sizes,
    whole_numbers_in_call,
)
from attnshape.targets.imports import import_target, notes_on, origin
from attnshape.targets.inputs import annotated_inputs, device_context, make_tensor, move
from attnshape.targets.missing import install_hint
from attnshape.targets.target import Target
from attnshape.tracing.containers import module_of, modules_within, tensor_paths
from attnshape.tracing.runner import Runnable, parameters_within


def user_target(spec: TargetSpec, where: str, path: str) -> Target:
    """Return the target that `where:path` names. Raises AttnshapeError if it can't be a target."""
    return _target_in(spec, import_target(where), path)


def _target_in(spec: TargetSpec, module: ModuleType, path: str) -> Target:
    """Return the target that a path leads to in a module. Raises AttnshapeError if it can't be a target."""
    tensors = tuple(parse_tensor(name, text) for name, text in spec.inputs.items())
    dims = {name for name in spec.sizes if name not in SYMBOLS_BY_NAME}
    root = path.partition(".")[0].partition("(")[0].partition("[")[0].strip()
    root_object: Any = getattr(module, root, None)
    defaults = _defaults(spec, module, root_object)
    symbols = {*SYMBOLS_BY_NAME, *dims, *defaults}
    if is_case(root_object, path, spec, symbols):
        return _case_target(spec, root_object, _defining(module))
    names = [*names_used(THE_TARGET, path), *(names_in_call(spec.init) if spec.init is not None else ())]
    names += [name for text in spec.arguments.values() for name in names_used((Option("arguments"),), text)]
    used = {name for name in names if name in symbols} - ({root} - dims)
    if not tensors:
        given_names = {*spec.arguments, *spec.values}
        annotated = annotated_inputs(_annotated_callable(root_object, path))
        tensors = tuple(tensor for tensor in annotated if tensor.name not in given_names)
        for tensor in tensors:
            require_known(tensor.symbols, sorted(symbols), f"the annotation {tensor.signature!r} of {tensor.name}")
    used |= {symbol for tensor in tensors for symbol in tensor.symbols}
    resizable = not any(True for _ in tensor_paths("", dict(spec.values)))

    def build(numbers: Mapping[str, int], options: RunOptions) -> Runnable:
        names = Names(numbers, module)
        seed_all(options.seed)
        with device_context(options):
            function = reach(path, spec.init, module, names)
        if "(" not in path and not inspect.isclass(root_object):
            function = _try_deepcopy(function)
        if not callable(function):
            raise AttnshapeError(
                f"{spec.target} isn't something to call: its type is {type(function).__name__}",
                "name a function, a module, a method, or a case",
            )
        function, is_compiled = _uncompiled(function)
        made_in = _parameter_dtypes(function)
        for _, owned in modules_within(function):
            move(owned, options)
        seed_all(options.seed)
        values: dict[str, Any] = {tensor.name: make_tensor(tensor, numbers, options) for tensor in tensors}
        given = {name: _try_deepcopy(value) if resizable else value for name, value in spec.values.items()}
        with device_context(options):
            for name, text in spec.arguments.items():
                names = Names({**given, **values, **numbers}, module)
                values[name] = move(evaluate((Option("arguments"),), text, names), options)
        values |= given
        return replace(_bind(function, spec.target, values), made_in=made_in, is_uncompiled=is_compiled)

    sizes = replace(
        resolve(used, spec.sizes, defaults),
        inputs={tensor.name: tensor.axes for tensor in tensors},
        literals=frozenset().union(*map(whole_numbers_in_call, [spec.init or "", *spec.arguments.values()])),
    )
    return Target(
        spec.target,
        sizes,
        build,
        is_builtin=False,
        resizable=resizable,
        module=_defining(module),
        notes=notes_on(module),
    )


def _defaults(spec: TargetSpec, module: ModuleType, root_object: Any) -> dict[str, int]:
    """Return the sizes of the user's own symbols that need not be given: of a vocabulary, and numbers of layers."""
    bounds = [name for name in spec.vocabulary_symbols if name not in spec.sizes]
    defined = {*SYMBOLS_BY_NAME, *spec.sizes, *bounds, *dir(builtins)}

    def undefined(names: Iterable[str]) -> list[str]:
        return [name for name in names if name not in defined and not hasattr(module, name)]

    if spec.init is None:
        return dict.fromkeys(bounds, VOCABULARY_SIZE)
    words = undefined(vocabulary_sizes(spec.init, root_object))
    layers = undefined(layer_counts(spec.init, root_object))
    return dict.fromkeys([*bounds, *words], VOCABULARY_SIZE) | dict.fromkeys(layers, NUMBER_OF_LAYERS)


def _try_deepcopy(value: Any) -> Any:
    """Return a deep copy if possible, so that runs don't share a device or state; else the value itself."""
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - not everything can be copied
        return value


def _uncompiled(function: Any) -> tuple[Any, bool]:
    """Return the original of a compiled module, since the compiler fails while calls are recorded, and True.

    Return anything else as it is, and False.
    """
    original = getattr(function, "_orig_mod", None) if isinstance(function, torch.nn.Module) else None
    return (function, False) if original is None else (original, True)


def _annotated_callable(root_object: Any, path: str) -> Any:
    """Return the callable that has the target's annotations, without building it; None if it isn't known yet."""
    if inspect.isclass(root_object):
        attribute = path.partition(".")[2]
        return getattr(root_object, attribute if attribute.isidentifier() else "forward", None)
    if isinstance(root_object, torch.nn.Module):
        return root_object.forward
    return root_object if path.isidentifier() else None


def is_case(function: Any, path: str, spec: TargetSpec, symbols: set[str]) -> bool:
    """Return whether a function is a case: it takes only sizes and returns a callable with its arguments."""
    has_arguments = spec.init is not None or spec.inputs or spec.arguments or spec.values
    if not inspect.isfunction(function) or not path.isidentifier() or has_arguments:
        return False
    parameters = inspect.signature(function).parameters.values()
    if any(hasattr(p.annotation, "dim_str") or "[Tensor" in str(p.annotation) for p in parameters):
        return False
    required = required_parameters(function)
    return symbols.issuperset(required) and (bool(required) or not annotated_inputs(function))


def _case_target(spec: TargetSpec, function: Callable[..., Any], module: ModuleType | None) -> Target:
    used = tuple(required_parameters(function))

    def build(numbers: Mapping[str, int], options: RunOptions) -> Runnable:
        seed_all(options.seed)
        try:
            with device_context(options):
                result = function(**{name: numbers[name] for name in used})
        except AttnshapeError:
            raise
        except BaseException as error:
            reraise_interruption_or_timeout(error)
            case = f"{spec.target}({', '.join(f'{name}={numbers[name]}' for name in used)})"
            why = f"the case {case} can't be built: {format_exception(error)}{origin(error)}"
            raise AttnshapeError(why, install_hint(error) or "fix the case, or give other sizes") from error
        return runnable_from_case(spec.target, result, options)

    notes = notes_on(module) if module is not None else ()
    return Target(spec.target, resolve(used, spec.sizes), build, is_builtin=False, module=module, notes=notes)


def runnable_from_case(label: str, result: Any, options: RunOptions) -> Runnable:
    """Return the result of a case as a runnable. Raises AttnshapeError if it has another form."""
    claims: Any = None
    match result:
        case (function, args) if callable(function) and isinstance(args, (tuple, list)):
            kwargs: dict[str, Any] = {}
        case (function, dict() as kwargs) if callable(function):
            args = ()
        case (function, args, dict() as kwargs) if callable(function) and isinstance(args, (tuple, list)):
            pass
        case (function, args, dict() as kwargs, claims) if callable(function) and isinstance(args, (tuple, list)):
            pass
        case _:
            raise AttnshapeError(
                f"{label} was called as a case and returned {type(result).__name__}, expected (callable, args), "
                "(callable, kwargs), (callable, args, kwargs) or (callable, args, kwargs, claims)",
                ("describe each tensor that a function takes, for example ", Option("inputs", "B L D", "query")),
            )
    function, is_compiled = _uncompiled(function)
    made_in = _parameter_dtypes(function)
    for _, module in modules_within(function):
        move(module, options)
    claimed = claim_texts(claims, label)
    # together, so that what is one tensor in both stays one
    args, kwargs = move((tuple(args), kwargs), options)
    return Runnable(function, args, kwargs, claimed, made_in, is_compiled)


def _parameter_dtypes(function: Callable[..., Any]) -> frozenset[torch.dtype]:
    return frozenset(tensor.dtype for _, tensor in parameters_within(function, {}))


def _bind(function: Callable[..., Any], label: str, values: dict[str, Any]) -> Runnable:
    """Return the call that passes each value to its parameter. Raises AttnshapeError if the names don't match."""
    target = Runnable(function).signature_of
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):
        return Runnable(function, tuple(values.values()))
    kinds = {p.kind for p in parameters.values()}
    variadic = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    names = [p.name for p in parameters.values() if p.kind not in variadic]
    unknown = next((name for name in values if name not in names), None)
    if unknown is not None and not kinds & variadic:
        raise AttnshapeError(f"{label} has no parameter {unknown!r}", did_you_mean(unknown, names, "it takes"))
    missing = [name for name in required_parameters(target) if name not in values]
    if missing:
        problem = f"; nothing is given for {', '.join(missing)}" if missing != names else ", but no value is given"
        described, passed = Option("inputs", "B L D", missing[0]), Option("arguments", "…", missing[0])
        hint = ("describe each tensor: ", described, ", or write its value in Python: ", passed)
        raise AttnshapeError(f"{label} takes {', '.join(names)}{problem}", hint)
    # a value without a parameter of its name goes to **kwargs if the code reads them, else to *args
    to_args = inspect.Parameter.VAR_POSITIONAL in kinds and not _reads_keywords(target, kinds)
    extra = [name for name in values if to_args and name not in names]
    positional_kinds = {
        inspect.Parameter.POSITIONAL_ONLY,
        *([inspect.Parameter.POSITIONAL_OR_KEYWORD] if extra else []),
    }
    positional = [p.name for p in parameters.values() if p.kind in positional_kinds and p.name in values] + extra
    keywords = {name: value for name, value in values.items() if name not in positional}
    return Runnable(function, tuple(values[name] for name in positional), keywords)


def _reads_keywords(function: Callable[..., Any], kinds: set[Any]) -> bool:
    """Return whether a function has `**kwargs` and its code reads them."""
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


class DefiningModule(ModuleType):
    """The module that defines a callable, with the callable as an additional attribute.

    This also makes callables that are defined inside a function reachable by a path.
    """

    def __init__(self, name: str, value: Any) -> None:
        super().__init__(getattr(value, "__module__", None) or type(value).__module__)
        self._module = sys.modules.get(self.__name__)
        self._globals = getattr(value, "__globals__", {})
        setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_module", "_globals"):
            raise AttributeError(name)
        if name in self._globals:
            return self._globals[name]
        return getattr(self._module, name)


def _defining(module: ModuleType) -> ModuleType | None:
    """Return the module itself, or the imported one for which a `DefiningModule` stands."""
    return sys.modules.get(module.__name__) if isinstance(module, DefiningModule) else module


def callable_target(spec: TargetSpec) -> Target:
    """Return the target of `spec.callable`, whose original is never moved or modified.

    Raises AttnshapeError if it can't be a target.
    """
    value = spec.callable
    if module_of(value) is not None:
        try:
            value = copy.deepcopy(value)
        except Exception as error:
            raise AttnshapeError(
                f"{spec.target} can't be copied, so that runs would change it: {format_exception(error)}",
                "give its class with init=…, or watch your own call: with attnshape.record(sizes=…) as recording",
            ) from error
    name = callable_name(value)
    return _target_in(spec, DefiningModule(name, value), name)


def callable_name(value: Any) -> str:
    """Return the path by which a callable is reached in its `DefiningModule`."""
    name = getattr(value, "__name__", "")
    return name if isinstance(value, type) and name.isidentifier() else "target"
