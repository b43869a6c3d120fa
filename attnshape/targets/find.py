"""Finds the target of a spec: a mechanism, the user's code, or an object that Python code gave."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from attnshape.dims.sizes import resolve
from attnshape.dims.symbols import SYMBOLS_BY_NAME, size_option
from attnshape.errors import AttnshapeError, Option, did_you_mean
from attnshape.options.pyproject import FILE, project_targets
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.runtime.isolation import seed_all
from attnshape.targets.builtin.registry import CATALOG, DEFAULT, concerns, load
from attnshape.targets.imports import example_of, import_target
from attnshape.targets.inputs import device_context
from attnshape.targets.inside import module_inside
from attnshape.targets.target import Target
from attnshape.targets.user import callable_target, is_case, runnable_from_case, user_target
from attnshape.tracing.runner import Runnable


def mechanism_target(spec: TargetSpec, name: str, case: str) -> Target:
    """Return a mechanism of the catalog: the case that is named, else the first that takes every given size.

    Raises AttnshapeError if there is no such mechanism or case, or if it doesn't take a size or an option.
    """
    own = {
        "init": spec.init,
        "inputs": spec.inputs,
        "arguments": {**spec.arguments, **spec.values},
        "inside": spec.inside,
    }
    if option := next((option for option, value in own.items() if value), None):
        why = (Option(option), f" is for your own targets; {name} is built in")
        raise AttnshapeError(why, f"its sizes and options: attnshape catalog {name}")
    cases = load(name)
    if case and case not in cases:
        raise AttnshapeError(f"{name} has no case {case!r}", did_you_mean(case, list(cases), "it has"))
    given = {name: size for name, size in spec.sizes.items() if name in SYMBOLS_BY_NAME and isinstance(size, int)}
    fitting = (fn for fn in cases.values() if all(concerns(symbol, _parameters(fn)[0]) for symbol in given))
    function = cases[case] if case else next(fitting, next(iter(cases.values())))
    symbols, options = _parameters(function)
    # in the catalog D is H*Dk, where all three matter
    if {"H", "D"} <= {*symbols} and {"D", "H", "Dk"} <= given.keys() and given["D"] != given["H"] * given["Dk"]:
        product = given["H"] * given["Dk"]
        raise AttnshapeError(
            f"the sizes contradict each other: H*Dk = {given['H']}*{given['Dk']} = {product}, but D = {given['D']}",
            ("leave ", size_option("Dk"), " out, or give ", size_option("D", product)),
        )
    _refuse_sizes(f"{name}:{case}" if case else name, name, symbols, given, cases)
    _refuse_options(name, case, options, spec, cases)
    taken = {k: size for k, size in spec.sizes.items() if k not in SYMBOLS_BY_NAME or k in symbols or k in ("D", "Dk")}

    def build(numbers: Mapping[str, int], run: RunOptions) -> Runnable:
        # a function has no training mode of its own, so its case takes it
        chosen = {**spec.options, "train": run.train} if "train" in options else spec.options
        seed_all(run.seed)
        with device_context(run):
            result = function(*(numbers[symbol] for symbol in symbols), **chosen)
        return runnable_from_case(name, result, run)

    return Target(f"{name}:{case}" if case else name, resolve(symbols, taken), build, is_builtin=True)


def _parameters(function: Callable[..., Any]) -> tuple[list[str], list[str]]:
    parameters = inspect.signature(function).parameters.values()
    sizes = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    return sizes, [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]


def _refuse_sizes(
    label: str, name: str, symbols: list[str], given: Mapping[str, int], cases: Mapping[str, Callable[..., Any]]
) -> None:
    if "L" in given and {"Lq", "Lk"} & given.keys():
        L, Lq, Lk = map(size_option, ("L", "Lq", "Lk"))
        raise AttnshapeError(
            (L, " says that queries and keys are one sequence, ", Lq if "Lq" in given else Lk, " that they are two"),
            ("give ", L, " for self-attention, or ", Lq, " and ", Lk, " for cross-attention"),
        )
    strange = next((symbol for symbol in given if not concerns(symbol, symbols)), None)
    if strange is None:
        return
    taking = [case for case, fn in cases.items() if all(concerns(size, _parameters(fn)[0]) for size in given)]
    elsewhere = f"{name}:{taking[0]} takes it" if taking else ""
    if {"Lq", "Lk"} & {symbol for symbol in given if not concerns(symbol, symbols)} and "L" in symbols:
        raise AttnshapeError(
            (f"{label} is self-attention: queries and keys are one sequence, so it takes no ", size_option(strange)),
            (
                "give its one length with ",
                size_option("L"),
                "; ",
                elsewhere or "multi-head and scaled-dot-product take two",
            ),
        )
    takes = [part for symbol in symbols for part in (", ", size_option(symbol), f" ({symbol})")][1:]
    raise AttnshapeError(
        (f"{label} takes no ", size_option(strange)), ("its sizes are ", *takes, f"{elsewhere and '; '}{elsewhere}")
    )


def _refuse_options(
    name: str, case: str, options: list[str], spec: TargetSpec, cases: Mapping[str, Callable[..., Any]]
) -> None:
    for option in spec.options:
        if option not in options or option == "train":
            able = next((other for other, fn in cases.items() if option in _parameters(fn)[1]), None)
            takes = [part for one in options for part in (", ", Option("options", key=one))][1:] or ["none"]
            raise AttnshapeError(
                (f"{name} takes no ", Option("options", key=option)),
                f"its case {able} does: {name}:{able}" if able and not case else ("its options: ", *takes),
            )


def find_target(spec: TargetSpec) -> Target:
    """Return the target of a spec. Raises AttnshapeError if there is none of that name."""
    target = _whole_target(spec)
    return target if spec.inside is None else module_inside(target, spec.inside)


def _whole_target(spec: TargetSpec) -> Target:
    if spec.callable is not None:
        return callable_target(spec)
    where, colon, path = (spec.target or DEFAULT).partition(":")
    where, path = where.strip(), path.strip()
    if where in CATALOG:
        if colon and not path:
            raise AttnshapeError(f"{spec.target!r} names no case", f"its cases: attnshape catalog {where}")
        return mechanism_target(spec, where, path)
    if spec.options:
        why = (Option("options", key=next(iter(spec.options))), f" is for built-in mechanisms, {spec.target} isn't one")
        how = f"the built-in ones: {', '.join(CATALOG)}; your own target takes its arguments with "
        raise AttnshapeError(why, (how, Option("init"), " and ", Option("arguments")))
    if not colon and where.endswith(".json") and Path(where).is_file():
        from attnshape.targets.config_file import config_target

        return config_target(spec)
    if not colon or not path:
        raise _incomplete(where)
    return user_target(spec, where, path)


def may_lack_arguments(spec: TargetSpec) -> bool:
    """Return whether a spec names code of the user's own, without constructor arguments or without inputs."""
    if spec.options or spec.values:
        return False
    if spec.callable is not None:  # Python code that names some inputs means these only
        return not spec.inputs and not spec.arguments
    where, colon, path = (part.strip() for part in spec.target.partition(":"))
    return bool(colon and path) and where not in CATALOG and (spec.init is None or not spec.inputs)


def _incomplete(where: str) -> AttnshapeError:
    with contextlib.suppress(OSError, ValueError):
        if Path(where).is_file():
            example, others = example_of(where)
            return AttnshapeError(
                f"{where} is a file; which of its functions or classes?", f"write {where}:{example}{others}"
            )
    ours = list(project_targets())
    return AttnshapeError(
        f"there is no mechanism {where!r} in the catalog" + (f", nor a target in {FILE}" if ours else ""),
        f"{did_you_mean(where, [*ours, *CATALOG])} (name your own code as path/to/file.py:Name)",
    )


def without_arguments_of_a_case(spec: TargetSpec) -> TargetSpec:
    """Return the spec without what belongs to a class or a function, where it names a case: that takes none of it.

    Raises AttnshapeError if its module doesn't import.
    """
    where, _, path = (part.strip() for part in spec.target.partition(":"))
    if where in CATALOG or not path.isidentifier():
        return spec
    plain = replace(spec, init=None, inputs={}, arguments={})
    function = getattr(import_target(where), path, None)
    return plain if is_case(function, path, plain, {*SYMBOLS_BY_NAME, *spec.sizes}) else spec
