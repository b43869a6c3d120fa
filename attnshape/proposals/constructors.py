"""Proposes the arguments of a constructor, the likeliest first."""

from __future__ import annotations

import enum
import inspect
import itertools
import re
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

import torch

from attnshape.proposals import conventions
from attnshape.proposals.calls import (
    compared_values,
    constructing_calls,
    is_passed,
    is_squared,
    sizes_passed,
    takes_pair,
    used_as,
)
from attnshape.proposals.configurations import ANY_NUMBER, configurations, is_configuration
from attnshape.proposals.source import all_parameters, annotation_text, comment_beside
from attnshape.targets.evaluation import required_parameters

LARGEST_WINDOW = 32
"""Windows that are larger by default make maps on which an attempt takes long."""
_GUESSES = (ANY_NUMBER, "None", "0.5")
"""What a parameter is tried with of which nothing is known at all."""
_MAY_BE_WIDTH = re.compile(r"(input|src|source|tgt)_size")
"""The names of lengths that are widths where a layer gets them."""
_MOST_COMBINATIONS = 6
_PAIRS = {"W": "(W, W)", "height": "(height, width)"}
"""The sides of a window and of a feature map, where the code takes a pair of them."""
_OPTIONAL_SIZES = ("H", "Hkv", "Dk", "Dv", "D")


def constructor_candidates(kind: type, module: ModuleType) -> Iterator[str]:
    """Yield the arguments with which a class may be constructed, as text; nothing if a parameter has no proposal.

    With the sizes among the optional parameters first: `dim, heads=8` becomes `D, heads=H`.
    """
    parameters = all_parameters(kind)
    required = [p for p in parameters if p.default is p.empty]
    # the sizes of a real model may be those of a configuration that is there by default
    if made := [p for p in parameters if conventions.is_config(p.name) and _is_object(p.default)]:
        yield from _constructor_calls(kind, module, parameters, [*required, *map(_by_keyword, made)])
    own = list(_constructor_calls(kind, module, parameters, required))
    yield from own
    yield from constructing_calls(kind, module)
    # `dim_k` may be the width of what keys are projected from
    yield from (re.sub(r"\bD[kv]\b", "D", init) for init in own if re.search(r"\bD[kv]\b", init))
    # a kernel that needs as much padding on each side
    if any(p.name == "padding" and p.default == 0 for p in parameters):
        yield from (f"{init}, padding=1" for init in own[:2])
    # some code needs a layer, or a configuration, that its signature says it can do without
    if layers := {p.name: layer for p in parameters if p.default is None and (layer := conventions.layer_of(p.name))}:
        for called in ("", "()"):
            words = [f"{name}={layer}{called}" for name, layer in layers.items()]
            yield from (", ".join(filter(None, [init, *words])) for init in own[:2])
    if configs := [p for p in parameters if p.default is None and conventions.is_config(p.name)]:
        yield from _constructor_calls(kind, module, parameters, [*required, *map(_by_keyword, configs)])


def guessed_constructors(kind: type, module: ModuleType) -> Iterator[str]:
    """Yield the arguments with which a class may be constructed if some parameters have no proposal: with any values.

    What a name doesn't tell is often a number that determines no shape.
    """
    parameters = all_parameters(kind)
    required = [p for p in parameters if p.default is p.empty]
    choices = [choice or list(_GUESSES) for choice in _choices(kind, module, required)]
    yield from _with_choices(kind, module, parameters, required, choices)


def _by_keyword(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(kind=parameter.KEYWORD_ONLY)


def _is_object(default: Any) -> bool:
    """Return whether a default is an object of a class that isn't one of Python's own."""
    return default is not inspect.Parameter.empty and type(default).__module__ != "builtins"


def unknown_parameters(kind: type, module: ModuleType) -> dict[str, str]:
    """Return what the required parameters of a constructor get, some by their own names; none if all are known.

    A parameter for which there is no proposal gets its own name.
    """
    required = [p for p in all_parameters(kind) if p.default is p.empty]
    values = {p.name: next(iter(_arguments_for(kind, module, p)), p.name) for p in required}
    return values if any(name == value for name, value in values.items()) else {}


def _constructor_calls(
    kind: type,
    module: ModuleType,
    parameters: Sequence[inspect.Parameter],
    required: Sequence[inspect.Parameter],
) -> Iterator[str]:
    """Yield the arguments with what each required parameter may get; nothing if one has no proposal."""
    choices = _choices(kind, module, required)
    if all(choices):
        yield from _with_choices(kind, module, parameters, required, choices)


def _choices(kind: type, module: ModuleType, required: Sequence[inspect.Parameter]) -> list[list[str]]:
    """Return the values that each required parameter may get."""
    sides = {
        p.name: conventions.side_of_map(p.name, [p.name for p in required])
        for p in required
        if "D" not in used_as(kind, p.name)  # a layer's width is no side of a map
    }
    return [[side] if (side := sides.get(p.name)) else list(_arguments_for(kind, module, p)) for p in required]


def _with_choices(
    kind: type,
    module: ModuleType,
    parameters: Sequence[inspect.Parameter],
    required: Sequence[inspect.Parameter],
    choices: Sequence[Sequence[str]],
) -> Iterator[str]:
    """Yield the arguments with combinations of these values, followed by optional sizes."""
    names = [p.name for p in parameters]
    by_default = [
        (p.name, conventions.side_of_map(p.name, names) or conventions.size_of(p.name))
        for p in parameters
        if type(p.default) is int
    ]
    flags = [f"{p.name}=True" for p in parameters if p.default is False and conventions.turns_attention_on(p.name)]
    if not torch.cuda.is_available():  # a default that can't be meant for this machine
        flags += [f"{p.name}='cpu'" for p in parameters if isinstance(p.default, str) and p.default.startswith("cuda")]
    sizes = (*_OPTIONAL_SIZES, "height", "width")
    sized = [*flags, *(f"{name}={size}" for name, size in by_default if size in sizes)]
    windowed = [*flags, *(f"{name}={size}" for name, size in by_default if size in (*sizes, "W"))]
    # a length by default is mostly the largest that is possible, but may be the only one
    lengths = [
        f"{name}={size or 'L'}"
        for name, size in by_default
        if size in ("L", "Lq", "Lk") or (size is None and "L" in used_as(kind, name))
    ]
    has_large_windows = any(
        type(p.default) is int and p.default > LARGEST_WINDOW and conventions.size_of(p.name) == "W" for p in parameters
    )
    widths = _widths_of_inputs(kind, module, parameters)
    for chosen in combinations(choices):
        named = [
            text if p.kind is not p.KEYWORD_ONLY else f"{p.name}={text}"
            for p, text in zip(required, chosen, strict=True)
        ]
        # windows are of the default size where they can be, since it may determine other sizes
        first, second = (windowed, sized) if has_large_windows else (sized, windowed)
        orders = [[*optional, *widths] for optional in ((first, second) if widths else ())] + [first, second, []]
        orders += [[*sized, *lengths]] if lengths else []
        yield from dict.fromkeys(", ".join([*named, *optional]) for optional in orders)


def _widths_of_inputs(kind: type, module: ModuleType, parameters: Sequence[inspect.Parameter]) -> list[str]:
    """Return the widths that a constructor can do without, but not with an input of that name: `edge_dim` of `edges`.

    The module's own calls pass them.
    """
    inputs = [conventions.plain(name).removesuffix("s") for name in required_parameters(getattr(kind, "forward", None))]
    optional = [p.name for p in parameters if p.default is None and conventions.may_be_width(p.name)]
    of_inputs = [name for name in optional if conventions.plain(name).rpartition("_")[0].removesuffix("s") in inputs]
    return [f"{name}=D" for name in of_inputs if is_passed(kind, name, module)]


def combinations(choices: Sequence[Sequence[str]], alike: Sequence[bool] = ()) -> list[tuple[str, ...]]:
    """Return ways to take one of each choice, those first that take the first of most.

    Of the choices that are `alike` each way takes the one at the same place.

    >>> combinations([["None", "mask"], ["q"], ["k", "0"]])
    [('None', 'q', 'k'), ('None', 'q', '0'), ('mask', 'q', 'k'), ('mask', 'q', '0')]
    >>> combinations([["cos", "1"], ["sin", "0"]], [True, True])
    [('cos', 'sin'), ('1', '0')]
    """
    places = sorted(itertools.product(*(range(len(choice)) for choice in choices)), key=sum)
    if sum(alike) > 1:
        places = [
            one for one in places if len({place for place, is_alike in zip(one, alike, strict=True) if is_alike}) == 1
        ]
    most = max([_MOST_COMBINATIONS, *map(len, choices)])
    # each choice comes up once at least, with the first of the others
    taken = [one for rank, one in enumerate(places) if rank < most or sum(map(bool, one)) == 1]
    pairs = (zip(choices, chosen, strict=True) for chosen in taken)
    return [tuple(choice[place] for choice, place in one) for one in pairs]


def _arguments_for(kind: type, module: ModuleType, parameter: inspect.Parameter) -> Iterator[str]:
    """Yield the values that a required parameter of a constructor may take."""
    if is_configuration(kind, module, parameter.name):
        yield from configurations(kind, module, parameter)
    elif (value := value_of(parameter)) is not None:
        known = [*_described_sizes(kind, parameter.name), *sizes_passed(kind, parameter.name, module)]
        yield from (size for size in dict.fromkeys(known) if size != value)
        if value in _PAIRS and takes_pair(kind, parameter.name):
            yield _PAIRS[value]
        if value == "D" and is_squared(kind, parameter.name):
            yield "height"
        if _MAY_BE_WIDTH.fullmatch(conventions.plain(parameter.name)) and "D" in used_as(kind, parameter.name):
            yield "D"
        if value == ANY_NUMBER and conventions.constant_of(parameter.name) is None:
            yield from (size for size in used_as(kind, parameter.name) if size not in known)
        yield value
    elif (layer := conventions.layer_of(parameter.name)) is not None:
        yield from (layer, f"{layer}()") if layer.endswith("GELU") else (layer,)
    elif conventions.may_be_none(parameter.name):
        yield "None"
    else:
        choices = [*_annotated_choices(kind, parameter), *compared_values(kind, parameter.name, module)]
        if choices and all(choice.startswith(("'", '"')) for choice in choices):
            choices.append("''")  # the code may do something else with other strings
        width = ["D"] if conventions.may_be_width(parameter.name) else []
        described = _described_sizes(kind, parameter.name)
        yield from dict.fromkeys(choices or [*described, *used_as(kind, parameter.name), *width])


def _described_sizes(kind: type, parameter: str) -> list[str]:
    """Return the size that a comment beside a parameter of a constructor names: `width, # head dim`."""
    size = conventions.size_of("_".join(re.findall(r"\w+", comment_beside(kind, parameter))))
    return [] if size is None else [size]


def _annotated_choices(kind: type, parameter: inspect.Parameter) -> list[str]:
    """Return the values that an annotation allows: an enumeration's members, or those of `Literal`."""
    annotation = parameter.annotation
    if inspect.isclass(annotation) and issubclass(annotation, enum.Enum):
        text = annotation_text(kind, parameter.name) or annotation.__name__
        return [f"{text}.{member.name}" for member in annotation]
    return [repr(value) for value in get_args(annotation)] if get_origin(annotation) is Literal else []


def value_of(parameter: inspect.Parameter) -> str | None:
    """Return what a parameter that is no tensor gets by its name or annotation; None if neither says anything."""
    by_name = conventions.size_of(parameter.name) or conventions.constant_of(parameter.name)
    if by_name is not None:
        return by_name
    annotation = annotation_name(parameter)
    if annotation == "int" and (conventions.is_query(parameter.name) or conventions.is_memory(parameter.name)):
        return "Dv" if conventions.is_value(parameter.name) else "Dk"
    by_annotation = {"bool": "False", "float": "0.5", "int": ANY_NUMBER}.get(annotation)
    return by_annotation or ("False" if conventions.is_flag(parameter.name) else None)


def annotation_name(parameter: inspect.Parameter) -> str:
    """Return the text of an annotation, or its class's name; nothing if there is neither."""
    annotation = parameter.annotation
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
