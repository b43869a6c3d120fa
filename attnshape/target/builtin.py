"""Targets from the catalog."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from attnshape.catalog.describe import describe
from attnshape.catalog.load import load
from attnshape.dims import flag_of
from attnshape.errors import AttnshapeError
from attnshape.hints import nearest
from attnshape.target.contents import building
from attnshape.target.request import Placement, Request, Target
from attnshape.target.user import from_case
from attnshape.tracing.isolation import seed_all
from attnshape.tracing.runner import Runnable


def builtin_target(request: Request, name: str, case: str) -> Target:
    """Return a mechanism of the catalog: the case that is named, else the first that takes every given size.

    Raises AttnshapeError where there is no such mechanism or case, or where it doesn't take a size or an option.
    """
    for flag, value in [
        ("--init", request.init),
        ("--input", request.inputs),
        ("--with", {**request.arguments, **request.values}),
    ]:
        if value:
            raise AttnshapeError(
                f"{flag} is for your own targets; {name} is built in",
                f"its sizes and options: attnshape catalog {name}",
            )
    describe(name)
    cases = load(name)
    if case and case not in cases:
        raise AttnshapeError(f"{name} has no case {case!r}", nearest(case, list(cases), "it has"))
    function = cases[case] if case else _fitting(name, cases, request.given)
    sizes, options = _parameters(function)
    _refuse_contradiction(name, sizes, request.given)
    _refuse_unknown(name, case, sizes, options, request, cases)
    given = {letter: size for letter, size in request.given.items() if letter in sizes or letter in ("D", "Dk")}

    def build(numbers: Mapping[str, int], placement: Placement) -> Runnable:
        # a function has no training mode of its own, so its case takes it
        chosen = {**request.options, "train": placement.train} if "train" in options else request.options
        seed_all(placement.seed)
        with building(placement):
            result = function(*(numbers[letter] for letter in sizes), **chosen)
        return from_case(name, result, placement)

    label = f"{name}:{case}" if case else name
    return Target(label, tuple(sizes), given, build, library=True)


def _parameters(function: Callable[..., Any]) -> tuple[list[str], list[str]]:
    """Return a case's sizes and options."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY], [
        p.name for p in parameters if p.kind is p.KEYWORD_ONLY
    ]


def _fitting(name: str, cases: Mapping[str, Callable[..., Any]], given: Mapping[str, int]) -> Callable[..., Any]:
    for function in cases.values():
        if all(_concerns(letter, _parameters(function)[0]) for letter in given):
            return function
    return next(iter(cases.values()))


def _concerns(letter: str, sizes: list[str]) -> bool:
    """Whether a case takes a size, or one that decides it: D = H*Dk."""
    pair = {"D": "Dk", "Dk": "D"}
    return letter in sizes or (letter in pair and pair[letter] in sizes and "H" in sizes)


def _refuse_unknown(
    name: str,
    case: str,
    sizes: list[str],
    options: list[str],
    request: Request,
    cases: Mapping[str, Callable[..., Any]],
) -> None:
    label = f"{name}:{case}" if case else name
    strange = [letter for letter in request.given if not _concerns(letter, sizes)]
    taking = [other for other, fn in cases.items() if all(_concerns(s, _parameters(fn)[0]) for s in request.given)]
    if {"L", "Lq"} <= request.given.keys() or {"L", "Lk"} <= request.given.keys():
        raise AttnshapeError(
            "--length says that queries and keys are one sequence, "
            f"{'--queries' if 'Lq' in request.given else '--keys'} that they are two",
            "give --length for self-attention, or --queries and --keys for cross-attention",
        )
    elsewhere = f"{name}:{taking[0]} takes it" if taking else ""
    if strange and {"Lq", "Lk"} & set(strange) and "L" in sizes:
        raise AttnshapeError(
            f"{label} is self-attention: queries and keys are one sequence, so it takes no {flag_of(strange[0])}",
            f"give its one length with --length; {elsewhere or 'multi-head and scaled-dot-product take two'}",
        )
    if strange:
        takes = ", ".join(f"{flag_of(letter)} ({letter})" for letter in sizes)
        raise AttnshapeError(
            f"{label} takes no {flag_of(strange[0])}", f"its sizes are {takes}{elsewhere and '; '}{elsewhere}"
        )
    for option in request.options:
        if option not in options or option == "train":
            able = [other for other, fn in cases.items() if option in _parameters(fn)[1]]
            flag = _flag(option)
            raise AttnshapeError(
                f"{name} takes no {flag}",
                f"its case {able[0]} does: attnshape trace {name}:{able[0]}"
                if able and not case
                else f"its options: {', '.join(_flag(o) for o in options) or 'none'}",
            )


def _refuse_contradiction(name: str, sizes: list[str], given: Mapping[str, int]) -> None:
    """In the catalog D = H*Dk must hold where all three matter."""
    if "H" in sizes and "D" in sizes and {"D", "H", "Dk"} <= given.keys() and given["D"] != given["H"] * given["Dk"]:
        product = given["H"] * given["Dk"]
        raise AttnshapeError(
            f"the sizes contradict each other: H*Dk = {given['H']}*{given['Dk']} = {product}, but D = {given['D']}",
            f"leave --d-head out, or give --d-model {product}",
        )


def _flag(option: str) -> str:
    return "--no-bias" if option == "bias" else f"--{option.replace('_', '-')}"
