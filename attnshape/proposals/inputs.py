"""Proposes the arguments of a call, the likeliest first."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from attnshape.proposals import conventions
from attnshape.proposals.arrays import arrays
from attnshape.proposals.axis_orders import memory_among, with_two_lengths
from attnshape.proposals.calls import ELEMENTS, looked_up, may_be_left_out, parts_of_elements, unpacked_parts
from attnshape.proposals.configurations import objects
from attnshape.proposals.constructors import LARGEST_WINDOW, annotation_name, combinations, value_of
from attnshape.proposals.documented import (
    Documented,
    as_documented,
    described_by_names,
    documented_arguments,
    with_documented_rank,
)
from attnshape.proposals.masks import MASKS, MaskUse, use_of_mask
from attnshape.proposals.rotations import HALF_OF_ROTATION, ROTARY, SAME, rotations
from attnshape.proposals.source import all_parameters, batch_axis, indexed_rank, signature_parameters, unpacked_axes
from attnshape.targets.evaluation import required_parameters

_MAP_UNIT = 8
_FRAMES = 2
_ANY_INDEX = "int[2]"
"""Indices into an embedding of which nothing is known: any has two rows."""
_DIVIDES_MAPS = re.compile(r"(\w+_)?(window|patch)_?(size)?")
"""The names of parameters that divide the height and the width of a feature map."""
_CIRCLE = "torch.stack((torch.arange(L), torch.arange(L).roll(1)))"
"""The edges of a graph of L nodes."""
_CACHES = ("B, L, Hkv, Dk", "B, Hkv, L, Dk", "B, L, H, Dk", "B, H, L, Dk")
_WIDTH_OF_CONTEXT = re.compile(
    r"(context|ctx|cross(_attn|_attention)?|kv|key_value|memory|encoder(_hidden)?|cond(itioning)?)_(dim|size|width|channels)"
)
_SECOND = re.compile(r"y|x_?2|other\w*")
"""The names of what keys come from beside `x` where the code is a cross-attention."""
_FAMILIES = {
    2: ("int[V] B L", "L D", "B D"),
    3: ("B L D", "L B D", "B D L"),
    4: ("B D height width", "B height width D", "B H L Dk", "B L H Dk", "B frames L D", "B L D frames"),
    5: ("B D frames height width", "B frames D height width", "B frames height width D"),
}
_OF_MAPS = ("B height*width D", "height*width D")
"""The tokens of a map in one row."""
_OF_TOKENS = (
    "B L D",
    "int[V] B L",
    "B D height width",
    "L B D",
    "B height width D",
    "B D L",
    "B H L Dk",
    "L D",
    "B frames L D",
    "B L D frames",
)
_OF_HEADS = ("B H L Dk", "B L D", "B L H Dk", "L D")


@dataclass(frozen=True)
class Inputs:
    """The arguments of a call: descriptions of tensors, and Python expressions."""

    tensors: Mapping[str, str] = field(default_factory=dict)
    expressions: Mapping[str, str] = field(default_factory=dict)


def map_sizes(root: Any) -> dict[str, int]:
    """Return the sides of a feature map, whose divisors a module's windows and patches are, and a number of frames."""
    defaults = [p.default for p in all_parameters(root) if _DIVIDES_MAPS.fullmatch(conventions.plain(p.name))]
    sizes = [default for default in defaults if type(default) is int and 0 < default <= LARGEST_WINDOW]
    unit = math.lcm(*sizes) if sizes else _MAP_UNIT
    return {"height": 2 * unit, "width": 3 * unit, "frames": _FRAMES}


def input_candidates(
    call: Callable[..., Any],
    module: ModuleType,
    given: Mapping[str, str],
    init: str,
    root: Any,
    also: Sequence[str] = (),
) -> Iterator[Inputs]:
    """Yield the arguments with which a target may be called.

    Args:
        call: A function, or the method of a class that is called.
        module: The module that defines it.
        given: The parameters that need nothing; those with a description of their tensor are models for the others.
        init: The arguments of the constructor, among which a configuration may be.
        root: The function, or the class.
        also: The names of optional parameters to give too.
    """
    names = [name for name in (*required_parameters(call), *also) if name not in given]
    by_name = {p.name: p for p in all_parameters(call)}
    if not any(name not in given for name in required_parameters(call)) and any(
        p.kind is p.VAR_POSITIONAL for p in signature_parameters(call)
    ):
        names, by_name = ["x", *names], {"x": inspect.Parameter("x", inspect.Parameter.POSITIONAL_ONLY), **by_name}
    sides = {name: side for name in names if (side := conventions.side_of_map(name, names)) is not None}
    no_tensors = {name for name in names if objects(call, name) or parts_of_elements(call, name) or arrays(call, name)}
    documented = documented_arguments(call)
    possible_names = [name for name in names if name not in sides and name not in no_tensors]
    tensors = [name for name in possible_names if _is_tensor(by_name[name], is_documented=name in documented)]
    # what the code takes apart may be a tuple, or a tensor where it does so only with a tuple
    whole = [name for name in tensors if not _structures(call, by_name[name])]
    models = [text for name, text in given.items() if text and not conventions.is_mask(name)]
    likely = [re.sub(r"\bL[qk]\b", "L", text) for text in models]
    rows = [*(_OF_MAPS if sides else ()), *(["L D"] if any(map(conventions.has_borders, names)) else [])]
    found = looked_up(call, root)
    tensors = [name for name in possible_names if name in tensors or name in found]
    ids = {name for name in tensors if conventions.has_ids(name)}
    ids |= set(tensors[:1]) if _has_vocabulary(init) else set()
    whole_call = _with_ids(described_by_names(documented), ids)
    named = whole_call.get(next(iter(tensors), ""))
    possible = [*rows, *([named] if named else []), *_families(call, tensors, init, inspect.isfunction(root))]
    families = dict.fromkeys([*likely, *with_documented_rank(possible, documented.get(next(iter(tensors), ""), ()))])
    for described in [tensors] if whole == tensors else [tensors, whole]:
        first = next((name for name in described if not conventions.is_memory(name)), next(iter(described), None))
        rest = [by_name[name] for name in names if name not in described]
        others = [[sides[p.name]] if p.name in sides else _values(call, p, module, init, first) for p in rest]
        if all(others):
            texts = {p.name: texts for p, texts in zip(rest, others, strict=True)}
            flat = [name for name in described if indexed_rank(call, name) == 2]
            memory = memory_among(described, of_two=is_cross_attention(root))
            for inputs in _inputs(described, families, texts, documented, whole_call, memory, flat):
                if found and _has_vocabulary(init):
                    yield _looking_up(inputs, found, "int[V]")
                yield _looking_up(inputs, found, _ANY_INDEX)


def _looking_up(inputs: Inputs, names: Collection[str], kind: str) -> Inputs:
    """Return the arguments with those of an embedding as indices.

    >>> _looking_up(Inputs({"x": "B L D", "gaps": "B L D", "ids": "int[V] B L"}), {"gaps", "ids"}, "int[2]").tensors
    {'x': 'B L D', 'gaps': 'int[2] B L', 'ids': 'int[V] B L'}
    """
    texts = {name: text.removesuffix(" D") if name in names else text for name, text in inputs.tensors.items()}
    indices = {name: f"{kind} {text}" for name, text in texts.items() if name in names and "[" not in text}
    return Inputs({**texts, **indices}, inputs.expressions)


def _has_vocabulary(init: str) -> bool:
    return re.search(r"\bV\b", init) is not None


def _with_ids(described: Mapping[str, str], ids: Collection[str]) -> dict[str, str]:
    """Return descriptions in which some tensors, as far as they have no width, are ids.

    >>> _with_ids({"seq": "B L", "x": "B L D"}, {"seq", "x"})
    {'seq': 'int[V] B L', 'x': 'B L D'}
    """
    has_width = {name: bool(re.search(r"\bD[kv]?\b", text)) for name, text in described.items()}
    return {name: f"int[V] {text}" if name in ids and not has_width[name] else text for name, text in described.items()}


def _inputs(
    tensors: Sequence[str],
    families: Iterable[str],
    others: Mapping[str, Sequence[str]],
    documented: Documented,
    whole: Mapping[str, str],
    memory: Sequence[str],
    flat: Collection[str],
) -> Iterator[Inputs]:
    """Yield the arguments of a call: each family's descriptions of the tensors, with each choice of the others.

    Args:
        tensors: The arguments that are tensors.
        families: What the first of them may be.
        others: What each other argument may be.
        documented: The axes that the code's own text gives the tensors.
        whole: The descriptions that follow from the names of these axes.
        memory: The tensors that keys and values come from.
        flat: Those that have one vector for each batch element.
    """
    is_half = [bool(HALF_OF_ROTATION.fullmatch(name)) for name in others]
    for family in families if tensors else [""]:
        options = list(_described(tensors, family, memory, flat))
        # values may have the width of keys
        narrow = [{name: re.sub(r"\bDv\b", "Dk", text) for name, text in one.items()} for one in options[:1]]
        options = [*options[:1], *(one for one in narrow if one not in options), *options[1:]]
        if documented:
            options = as_documented(_with_documented_names(options, documented), documented)
            options += [dict(whole)] if whole.keys() == set(tensors) and whole not in options else []
        for described in options:
            for chosen in combinations(list(others.values()), is_half):
                texts = {name: text.replace(SAME, f":{family}") for name, text in zip(others, chosen, strict=True)}
                expressions = {name: text for name, text in texts.items() if not text.startswith(":")}
                inputs = {name: text[1:] for name, text in texts.items() if text.startswith(":")}
                yield Inputs({**described, **inputs}, expressions)


def _with_documented_names(options: Sequence[dict[str, str]], documented: Documented) -> list[dict[str, str]]:
    """Return descriptions, first with the tensors beside queries and keys as the names of their axes say.

    The first tensor has the description of the family, and what has keys the one that belongs to it.
    """
    named = described_by_names(documented)
    beside = [name for name in list(options[0])[1:] if name in named]
    beside = [name for name in beside if not conventions.is_query(name) and not conventions.is_memory(name)]
    if not beside or any("Lk" in text for text in options[0].values()):
        return list(options)
    return [{**options[0], **{name: named[name] for name in beside}}, *options]


def axes_are_named(call: Callable[..., Any], tensors: Iterable[str]) -> bool:
    """Return whether the code names the axes of one of these arguments so that their order is certain."""
    unpacked = (unpacked_axes(call, name) for name in tensors)
    return any(axes is not None and conventions.axes_named(axes) is not None for axes in unpacked)


def is_cross_attention(root: Any) -> bool:
    """Return whether a class or a function is a cross-attention, by its name or by a width that its context has."""
    parameters = all_parameters(root) if inspect.isclass(root) else []
    has_width = any(_WIDTH_OF_CONTEXT.fullmatch(conventions.plain(p.name)) for p in parameters)
    return has_width or "cross" in getattr(root, "__name__", "").lower()


def optional_context(call: Callable[..., Any], root: Any) -> Iterator[tuple[str, ...]]:
    """Yield the optional parameters from which a cross-attention takes its keys; none of other code."""
    if is_cross_attention(root) and not any(map(conventions.is_memory, required_parameters(call))):
        optional = [p.name for p in all_parameters(call) if _is_nothing(p.default)]
        memory = tuple(name for name in optional if conventions.is_memory(name) and not conventions.may_be_none(name))
        if not memory and len(required_parameters(call)) == 1 + inspect.isclass(root):
            memory = tuple(name for name in optional if _SECOND.fullmatch(name))
        if memory:
            yield memory[:1]
            yield memory


def optional_inputs(call: Callable[..., Any]) -> Iterator[tuple[str, ...]]:
    """Yield the optional parameters without which a call may fail: rotations, positions, and a second sequence."""
    optional = [p.name for p in all_parameters(call) if _is_nothing(p.default)]
    if rotations := tuple(name for name in optional if ROTARY.fullmatch(name)):
        yield rotations
    if positions := tuple(name for name in optional if conventions.has_positions(name)):
        yield positions
        yield (*rotations, *positions)
    if memory := tuple(name for name in optional if conventions.is_memory(name) and not conventions.may_be_none(name)):
        yield memory[:1]
        yield memory


def optional_masks(call: Callable[..., Any]) -> list[str]:
    """Return the optional parameters that are masks."""
    return [p.name for p in all_parameters(call) if _is_nothing(p.default) and conventions.is_mask(p.name)]


def _is_nothing(default: Any) -> bool:
    """Return whether a default stands for no argument: None, or a tensor without elements."""
    return default is None or (isinstance(default, torch.Tensor) and default.numel() == 0)


def _is_tensor(parameter: inspect.Parameter, *, is_documented: bool = False) -> bool:
    name = parameter.name
    if conventions.may_be_none(name) or conventions.is_bias(name) or conventions.has_positions(name):
        return False
    if ROTARY.fullmatch(name) or conventions.has_borders(name) or conventions.has_coordinates(name):
        return False
    if conventions.is_adjacency(name) or conventions.has_edges(name):
        return False
    if conventions.has_earlier_weights(name) or conventions.has_lengths(name):
        return False
    if conventions.constant_of(name) or annotation_name(parameter) in ("int", "float", "bool", "str"):
        return False
    if "Tensor" in str(parameter.annotation) or conventions.is_query(name) or conventions.is_memory(name):
        return True
    return conventions.size_of(name) in (None, "D") or len(name) == 1 or is_documented


def _families(call: Callable[..., Any], tensors: Sequence[str], init: str, is_function: bool) -> Sequence[str]:
    """Return the descriptions that the first tensor may have, those first that the code suggests."""
    if not tensors:
        return ("",)
    first = next((name for name in tensors if not conventions.is_memory(name)), tensors[0])
    # without a width to construct it with, a module gets heads of queries and keys as a function does
    takes_heads = is_function or (conventions.is_query(first) and not re.search(r"\bD\b", init))
    default = _OF_HEADS if takes_heads else _OF_TOKENS
    if _has_vocabulary(init):  # of what goes in, or of what comes out
        return ("int[V] B L", *default)
    unpacked = (unpacked_axes(call, name) for name in (first, *tensors))
    axes = next((names for names in unpacked if names is not None), None)
    if re.search(r"\bheight\b(?!=)", init):  # the side of a feature map, or both
        side = "width" if re.search(r"\bwidth\b(?!=)", init) else "height"
        of_map: tuple[str, ...]
        of_map, row = (f"B D height {side}", f"B height {side} D"), f"B height*{side} D"
        named = conventions.axes_named(axes) if axes is not None else None
        if named is not None and {"height", side} <= {*named}:
            of_map = tuple(dict.fromkeys((" ".join(named), *of_map)))
        return (row, *of_map) if axes is not None and len(axes) == 3 else (*of_map, row)
    if conventions.has_ids(first):
        return ("int[V] B L", *default)
    families, named = list(default), None
    if axes is not None:
        named = conventions.axes_named(axes) or conventions.axes_of_windows(axes)
        fitting = [family for family in _FAMILIES.get(len(axes), ()) if "[" not in family or not is_function]
        likely = [family for family in default if len(family.split("] ")[-1].split()) == len(axes)]
        families = list(dict.fromkeys([*([" ".join(named)] if named else []), *likely, *fitting]))
    families = _with_batch_in_its_place(families, call, tensors, named)
    rows = [family for family in families if family == "B L D"]
    if re.search(r"\bW\b(?!=)", init):
        maps = [one for one in families if "height width" in one]
        # all tokens of a window, or maps of windows
        families = [*rows, *("B W*W D" for _ in rows), *(family for family in families if family not in rows)]
        families += [one.replace("height", "2*W").replace("width", "3*W") for one in maps]
    elif rows:
        families = [*families, "B height*height D"]  # a square map
    if conventions.has_all_projections(first):  # three projections, or what all three are made from
        families = [*(re.sub(r"\bD\b", "3*D", family) for family in families), *families]
    return families


def _with_batch_in_its_place(
    families: Sequence[str], call: Callable[..., Any], tensors: Sequence[str], named: Sequence[str] | None
) -> list[str]:
    """Return the descriptions with the batch on the axis that the code takes for it; all, if there is no such one.

    It names the axes, or has `batch_size = query.size(0)`. In another order it may run as well, where a batch happens
    to have the size of something else.
    """
    if named is not None and "B" in named:
        batch: int | None = named.index("B")
    else:
        batch = next((axis for name in tensors if (axis := batch_axis(call, name)) is not None), None)
    axes = [family.split("] ")[-1].split() for family in families]
    fitting = [family for family, one in zip(families, axes, strict=True) if batch is None or one[batch:][:1] == ["B"]]
    return fitting or list(families)


def _described(
    tensors: Sequence[str], family: str, memory: Sequence[str], flat: Collection[str]
) -> Iterator[dict[str, str]]:
    """Yield descriptions of all tensors where the first one has that of a family: two lengths, then one."""
    if memory:
        described = with_two_lengths(dict.fromkeys(tensors, family), memory)
        yield {
            name: re.sub(r"\bDk\b", "Dv", text) if conventions.is_value(name) else text
            for name, text in described.items()
        }
    conditions = [*flat, *(name for name in tensors[1:] if conventions.is_condition(name))]
    if conditions and family.startswith("B "):
        yield {name: "B D" if name in conditions else family for name in tensors}
    with_ids = {name: "int[V] B L" if conventions.has_ids(name) else family for name in tensors}
    yield with_ids
    if any(text != family for text in with_ids.values()):
        yield dict.fromkeys(tensors, family)  # `agent_tokens` may be vectors
    if len(tensors) > 1 and family in ("B L D", "L B D"):  # one vector beside a sequence: a decoder's state, a style
        for alone in (tensors[:1], tensors[1:]):
            yield {name: "B D" if name in alone else text for name, text in with_ids.items()}


def _values(
    call: Callable[..., Any], parameter: inspect.Parameter, module: ModuleType, init: str, first: str | None
) -> list[str]:
    """Return what a required parameter that is no sequence of vectors may be; `:` begins a tensor's description."""
    known = [*_structures(call, parameter), *_expressions_for(call, parameter, module, init, first)]
    if of_numpy := arrays(call, parameter.name):
        known = [*of_numpy, *known]
    elif may_be_left_out(call, parameter.name):
        known.append("None")
    else:
        known = [*objects(call, parameter.name), *known]
    return list(dict.fromkeys(known))


def _expressions_for(
    call: Callable[..., Any], parameter: inspect.Parameter, module: ModuleType, init: str, first: str | None
) -> Iterator[str]:
    """Yield what the name of such a parameter says that it may be."""
    name = parameter.name
    if conventions.has_positions(name):
        choices = ("torch.arange(L).expand(B, L)", "torch.arange(L)")
        yield from reversed(choices) if conventions.has_places(name) else choices
        # points in space, and embeddings of each position or distance
        yield from (":B L 3", ":B L D", ":B 2*L-1 D")
    elif conventions.has_coordinates(name):
        yield from (":B L 3", ":B L 2", ":L 3", ":B 3 L")
    elif conventions.has_borders(name):
        yield "torch.tensor([0, L], dtype=torch.int32)"
    elif ROTARY.fullmatch(name):
        yield from rotations(name, module, init, first)
    elif conventions.has_earlier_weights(name):
        yield "None"
        yield from (f":{axes}" for axes in ("B Lk", "B L", "B H Lk", "B H L"))
    elif conventions.has_lengths(name):
        yield "torch.full((B,), L)"
        yield "None"
    elif conventions.has_edges(name):
        yield from (_CIRCLE, ":B L L D")
    elif conventions.is_adjacency(name):
        yield ":L L"
        yield ":B L L"
        yield "torch.ones(L, L).bool()"
    elif conventions.may_be_none(name) or conventions.is_bias(name):
        yield "None"
        if conventions.is_bias(name):
            yield ":B H L L"
            yield ":H L L"
        elif conventions.is_mask(name):
            use = use_of_mask(call, name)
            yield from MASKS[use] if use is not None else ()
            yield from MASKS[MaskUse.KEEPS]
            yield ":bool B L"
            yield "torch.ones(B, L)"
    elif (value := value_of(parameter)) is not None:
        yield value


def _structures(call: Callable[..., Any], parameter: inspect.Parameter) -> list[str]:
    """Return a tuple of tensors for a parameter that the code takes apart: `nodes, edges = data`."""
    name = parameter.name
    if conventions.is_query(name) or conventions.is_memory(name) or conventions.has_all_projections(name):
        return []
    if elements := _elements(parts_of_elements(call, name)):
        return elements
    parts = unpacked_parts(call, name)
    if len(parts) == 2 and conventions.is_cache(name):
        return [f"(torch.zeros({axes}), torch.zeros({axes}))" for axes in _CACHES]
    is_one = len(parts) < 2 or "Tensor" in str(parameter.annotation) or ROTARY.fullmatch(name)
    whole = f"({', '.join(map(_part, parts))})"
    return [] if is_one else list(dict.fromkeys((whole, whole.replace("randn(L, D)", "randn(B, L, D)"))))


def _elements(parts: int) -> list[str]:
    """Return collections of tensors, or of tuples of them; none if these have no parts."""
    if parts > 1:
        return [f"[({', '.join(['torch.randn(B, D)'] * parts)}) for _ in range({ELEMENTS})]"]
    return [f"[torch.randn({axes}) for _ in range({ELEMENTS})]" for axes in ("B, L, D", "B, D")] if parts else []


def _part(name: str) -> str:
    if conventions.has_edges(name):
        return _CIRCLE
    if conventions.is_adjacency(name) or conventions.is_mask(name):
        return f"torch.{'zeros' if conventions.is_mask(name) else 'ones'}(L, L)"
    return "torch.randn(L, D)"
