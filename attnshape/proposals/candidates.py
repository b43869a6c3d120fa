"""Proposes constructor arguments and inputs for a target, the likeliest first."""

from __future__ import annotations

import builtins
import dataclasses
import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, get_args

from attnshape.proposals import conventions
from attnshape.proposals.source import fields_read, unpacked_axes
from attnshape.targets.evaluation import required_parameters

_MAP_UNIT = 8
_DIVIDES_MAPS = re.compile(r"(\w+_)?(window|patch)_?(size)?")
"""The names of parameters that divide the height and the width of a feature map."""
_MOST_COMBINATIONS = 6
_OPTIONAL_SIZES = ("H", "Hkv", "Dk", "Dv", "D")
_CONFIG_CLASS = re.compile(r"\w*(Config|Configuration|Args|Arguments|Params|HParams|Hyperparameters|Options|Cfg)")
_ROTARY_CLASS = re.compile(r"\w*(Rotary|Rope|RoPE)\w*")
_ROTARY = re.compile(
    r"position_embeddings?|rotary(_pos)?_emb\w*|rope\w*|freqs?(_cis|_complex)?|freqs_cos|freqs_sin|cos|sin|pos_emb\w*"
)
_MAKES = re.compile(r"comp|make|build|get|pre")
_ROTARY_SIZES = {"dim": "Dk", "end": "L", "n_elem": "Dk"}
_FAMILIES = {
    2: ("int[V] B L", "L D", "B D"),
    3: ("B L D", "L B D", "B D L"),
    4: ("B D height width", "B height width D", "B H L Dk", "B L H Dk"),
}
_OF_TOKENS = ("B L D", "int[V] B L", "B D height width", "L B D", "B height width D", "B H L Dk", "L D")
_OF_HEADS = ("B H L Dk", "B L D", "B L H Dk", "L D")


@dataclass(frozen=True)
class Inputs:
    """The arguments of a call: descriptions of tensors, and Python expressions."""

    tensors: Mapping[str, str] = field(default_factory=dict)
    expressions: Mapping[str, str] = field(default_factory=dict)


def constructor_candidates(kind: type, module: ModuleType) -> Iterator[str]:
    """Yield the arguments with which a class may be constructed, as text; nothing if a parameter has no proposal.

    With the sizes among the optional parameters first: `dim, heads=8` becomes `D, heads=H`.
    """
    parameters = _parameters(kind)
    yield from _constructor_calls(kind, module, parameters, [p for p in parameters if p.default is p.empty])
    # some code reads a configuration that its signature says it can do without
    if configs := [p for p in parameters if p.default is None and conventions.is_config(p.name)]:
        required = [p for p in parameters if p.default is p.empty]
        by_keyword = [p.replace(kind=p.KEYWORD_ONLY) for p in configs]
        yield from _constructor_calls(kind, module, parameters, [*required, *by_keyword])


def _constructor_calls(
    kind: type, module: ModuleType, parameters: Sequence[inspect.Parameter], required: Sequence[inspect.Parameter]
) -> Iterator[str]:
    choices = [list(_arguments_for(kind, module, parameter)) for parameter in required]
    if not all(choices):
        return
    sized = [
        f"{p.name}={size}"
        for p in parameters
        if p.default is not p.empty
        and type(p.default) is int
        and (size := conventions.size_of(p.name)) in _OPTIONAL_SIZES
    ]
    for chosen in _combinations(choices):
        named = [
            text if p.kind is not p.KEYWORD_ONLY else f"{p.name}={text}"
            for p, text in zip(required, chosen, strict=True)
        ]
        for optional in [sized, []] if sized else [[]]:
            yield ", ".join([*named, *optional])


def _combinations(choices: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return ways to take one of each choice, those first that take the first of most.

    >>> _combinations([["None", "mask"], ["cos"], ["sin", "0"]])
    [('None', 'cos', 'sin'), ('None', 'cos', '0'), ('mask', 'cos', 'sin'), ('mask', 'cos', '0')]
    """
    places = sorted(itertools.product(*(range(len(choice)) for choice in choices)), key=sum)
    pairs = (zip(choices, chosen, strict=True) for chosen in places[:_MOST_COMBINATIONS])
    return [tuple(choice[place] for choice, place in one) for one in pairs]


def _arguments_for(kind: type, module: ModuleType, parameter: inspect.Parameter) -> Iterator[str]:
    """Yield the values that a required parameter of a constructor may take."""
    if conventions.is_config(parameter.name):
        yield from _configurations(kind, module, parameter)
    elif (value := _value_of(parameter)) is not None:
        yield value


def _value_of(parameter: inspect.Parameter) -> str | None:
    """Return what a parameter that is no tensor gets by its name or annotation; None if neither says anything."""
    by_name = conventions.size_of(parameter.name) or conventions.constant_of(parameter.name)
    if by_name is not None:
        return by_name
    return {"bool": "False", "float": "0.5", "int": "2"}.get(_annotation_name(parameter))


def _annotation_name(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")


def _configurations(kind: type, module: ModuleType, parameter: inspect.Parameter) -> Iterator[str]:
    """Yield expressions for an object that has the sizes as attributes: of the project's own class, or a namespace."""
    fields = fields_read(kind, parameter.name, module)
    for config in _config_classes(module, parameter, fields):
        if (arguments := _config_arguments(config, fields)) is not None:
            yield f"{config.__name__}({arguments})"
            if "=Hkv" in arguments:
                yield f"{config.__name__}({arguments.replace('=Hkv', '=H')})"
    if fields:
        yield namespace(fields)


def namespace(fields: Sequence[str]) -> str:
    """Return an expression for an object with these attributes, as far as their names tell what they are.

    >>> namespace(["n_embd", "n_head", "dropout", "bias", "name"])
    'SimpleNamespace(n_embd=D, n_head=H, dropout=0.0, bias=False, name=None)'
    """
    return f"SimpleNamespace({', '.join(f'{name}={_of_field(name)}' for name in fields)})"


def _of_field(name: str) -> str:
    known = conventions.size_of(name) or conventions.constant_of(name)
    is_flag = re.match(r"(use|is|has|do|enable|return|output)_|.*bias$|.*causal$|flash|gated?$", name)
    return known or ("False" if is_flag else "None")


def _config_classes(module: ModuleType, parameter: inspect.Parameter, fields: Sequence[str]) -> list[type]:
    """Return the classes of which a configuration may be: the annotated one, or those that have the fields read."""
    annotated = [one for one in _annotated_classes(parameter, module) if not hasattr(builtins, one.__name__)]
    if annotated:
        return annotated
    named = [one for name, one in vars(module).items() if inspect.isclass(one) and _CONFIG_CLASS.fullmatch(name)]
    scores = {one: len(set(_own_names(one, fields)) & {*_settable(one), *dir(one)}) for one in named}
    return sorted((one for one in named if scores[one]), key=lambda one: -scores[one])[:2]


def _annotated_classes(parameter: inspect.Parameter, module: ModuleType) -> list[type]:
    """Return the classes that an annotation names, also `Config | None` and one that is text."""
    annotation = parameter.annotation
    if isinstance(annotation, str):
        parts: tuple[Any, ...] = tuple(getattr(module, word, None) for word in re.findall(r"\w+", annotation))
    else:
        parts = (annotation, *get_args(annotation))
    return [one for one in parts if inspect.isclass(one) and one not in (type(None), parameter.empty)]


def _own_names(config: type, fields: Sequence[str]) -> list[str]:
    """Return the fields under the names that a configuration's constructor has for them, as transformers' may."""
    aliases = getattr(config, "attribute_map", {})
    return [aliases.get(name, name) for name in fields]


def _settable(config: type) -> dict[str, Any]:
    """Return the fields that a configuration's constructor takes, with their defaults; `empty` if there is none."""
    empty = inspect.Parameter.empty
    if dataclasses.is_dataclass(config):
        missing = dataclasses.MISSING
        return {
            f.name: f.default if f.default is not missing else None if f.default_factory is not missing else empty
            for f in dataclasses.fields(config)
            if f.init
        }
    if fields := getattr(config, "model_fields", None):  # pydantic
        return {name: empty if one.is_required() else one.default for name, one in fields.items()}
    return {p.name: p.default for p in _parameters(config)}


def _config_arguments(config: type, fields: Sequence[str]) -> str | None:
    """Return the arguments that give a configuration the sizes which are read; None if it needs something unknown."""
    arguments: list[str] = []
    fields = _own_names(config, fields)
    for name, default in _settable(config).items():
        is_required = default is inspect.Parameter.empty
        size = conventions.size_of(name)
        if size is not None and (is_required or (name in fields and type(default) is int)):
            arguments.append(f"{name}={size}")
        elif is_required:
            if (constant := conventions.constant_of(name)) is None:
                return None
            arguments.append(f"{name}={constant}")
    taken = {argument.partition("=")[0] for argument in arguments}
    # a class that takes any keyword, or whose fields are attributes of the class only, says nothing of the others
    accepts_any = any(p.kind is p.VAR_KEYWORD for p in _signature(config))
    more = [name for name in fields if accepts_any and name not in taken | set(_settable(config))]
    arguments += [f"{name}={size}" for name in more if (size := conventions.size_of(name)) in _OPTIONAL_SIZES]
    return ", ".join(arguments)


def map_sizes(root: Any) -> dict[str, int]:
    """Return the height and the width of a feature map, of which the windows and patches of a module are divisors."""
    defaults = [p.default for p in _parameters(root) if _DIVIDES_MAPS.fullmatch(conventions.plain(p.name))]
    sizes = [default for default in defaults if type(default) is int and default > 0]
    unit = math.lcm(*sizes) if sizes else _MAP_UNIT
    return {"height": 2 * unit, "width": 3 * unit}


def input_candidates(
    call: Callable[..., Any],
    module: ModuleType,
    given: Mapping[str, str],
    init: str,
    is_function: bool,
    also: Sequence[str] = (),
) -> Iterator[Inputs]:
    """Yield the arguments with which a target may be called.

    Args:
        call: A function, or the method of a class that is called.
        module: The module that defines it.
        given: The parameters that need nothing; those with a description of their tensor are models for the others.
        init: The arguments of the constructor, among which a configuration may be.
        is_function: Whether it is no method.
        also: The names of optional parameters to give too.
    """
    names = [name for name in (*required_parameters(call), *also) if name not in given]
    by_name = {p.name: p for p in _parameters(call)}
    if not any(name not in given for name in required_parameters(call)) and any(
        p.kind is p.VAR_POSITIONAL for p in _signature(call)
    ):
        names, by_name = ["x", *names], {"x": inspect.Parameter("x", inspect.Parameter.POSITIONAL_ONLY), **by_name}
    tensors = [name for name in names if _is_tensor(by_name[name])]
    first = next((name for name in tensors if not conventions.is_memory(name)), next(iter(tensors), None))
    others = [list(_expressions_for(by_name[name], module, init, first)) for name in names if name not in tensors]
    if not all(others):
        return
    rest = [name for name in names if name not in tensors]
    models = [text for name, text in given.items() if text and not conventions.is_mask(name)]
    likely = [re.sub(r"\bL[qk]\b", "L", text) for text in models]
    for family in dict.fromkeys([*likely, *_families(call, tensors, init, is_function)]):
        for described in _described(tensors, family):
            for chosen in _combinations(others):
                expressions = {name: text for name, text in zip(rest, chosen, strict=True) if ":" not in text}
                inputs = {name: text[1:] for name, text in zip(rest, chosen, strict=True) if ":" in text}
                yield Inputs({**described, **inputs}, expressions)


def with_sequence_first(tensors: Mapping[str, str]) -> dict[str, str]:
    """Return descriptions with the axes of the batch and of the sequence exchanged.

    >>> with_sequence_first({"query": "B Lq D", "key": "B Lk D"})
    {'query': 'Lq B D', 'key': 'Lk B D'}
    """
    return {name: re.sub(r"^B (L\w*) ", r"\1 B ", text) for name, text in tensors.items()}


def axes_are_named(call: Callable[..., Any], tensors: Iterable[str]) -> bool:
    """Return whether the code names the axes of one of these arguments so that their order is certain."""
    unpacked = (unpacked_axes(call, name) for name in tensors)
    return any(axes is not None and conventions.axes_named(axes) is not None for axes in unpacked)


def optional_inputs(call: Callable[..., Any]) -> Iterator[tuple[str, ...]]:
    """Yield the optional parameters without which a call may fail: rotations, positions, and a second sequence."""
    optional = [p.name for p in _parameters(call) if p.default is None]
    if rotations := tuple(name for name in optional if _ROTARY.fullmatch(name)):
        yield rotations
    if positions := tuple(name for name in optional if conventions.has_positions(name)):
        yield positions
        yield (*rotations, *positions)
    if memory := tuple(name for name in optional if conventions.is_memory(name) and not conventions.may_be_none(name)):
        yield memory[:1]
        yield memory


def _is_tensor(parameter: inspect.Parameter) -> bool:
    name = parameter.name
    if conventions.may_be_none(name) or conventions.is_bias(name) or conventions.has_positions(name):
        return False
    if _ROTARY.fullmatch(name):
        return False
    if conventions.constant_of(name) or _annotation_name(parameter) in ("int", "float", "bool", "str"):
        return False
    if "Tensor" in str(parameter.annotation) or conventions.is_query(name) or conventions.is_memory(name):
        return True
    return conventions.size_of(name) in (None, "D") or len(name) == 1


def _families(call: Callable[..., Any], tensors: Sequence[str], init: str, is_function: bool) -> Sequence[str]:
    """Return the descriptions that the first tensor may have, those first that the code suggests."""
    if not tensors:
        return ("",)
    first = next((name for name in tensors if not conventions.is_memory(name)), tensors[0])
    # without a width to construct it with, a module gets heads of queries and keys as a function does
    takes_heads = is_function or (conventions.is_query(first) and not re.search(r"\bD\b", init))
    default = _OF_HEADS if takes_heads else _OF_TOKENS
    if re.search(r"\bV\b", init):
        return ("int[V] B L",)
    if re.search(r"\bheight\b(?!=)", init):  # one number for both sides of a feature map
        return ("B D height height", "B height height D")
    if conventions.has_ids(first):
        return ("int[V] B L", *default)
    unpacked = (unpacked_axes(call, name) for name in (first, *tensors))
    axes = next((names for names in unpacked if names is not None), None)
    families = list(default)
    if axes is not None:
        named = conventions.axes_named(axes)
        fitting = [family for family in _FAMILIES.get(len(axes), ()) if "[" not in family or not is_function]
        likely = [family for family in default if len(family.split("] ")[-1].split()) == len(axes)]
        families = list(dict.fromkeys([*([" ".join(named)] if named else []), *likely, *fitting]))
    if conventions.has_all_projections(first):
        families = [re.sub(r"\bD\b", "3*D", family) for family in families]
    return families


def _described(tensors: Sequence[str], family: str) -> Iterator[dict[str, str]]:
    """Yield descriptions of all tensors where the first one has that of a family: two lengths, then one."""
    memory = [name for name in tensors if conventions.is_memory(name)]
    if memory and len(memory) < len(tensors):
        described = {}
        for name in tensors:
            text = re.sub(r"\bL\b", "Lk" if name in memory else "Lq", family)
            described[name] = re.sub(r"\bDk\b", "Dv", text) if conventions.is_value(name) else text
        yield described
    yield {name: "int[V] B L" if conventions.has_ids(name) else family for name in tensors}


def _expressions_for(parameter: inspect.Parameter, module: ModuleType, init: str, first: str | None) -> Iterator[str]:
    """Yield what a required parameter that is no sequence of vectors may be; a tensor's description begins with `:`."""
    name = parameter.name
    if conventions.has_positions(name):
        yield "torch.arange(L).expand(B, L)"
        yield "torch.arange(L)"
    elif _ROTARY.fullmatch(name):
        yield from _rotary(name, module, init, first)
    elif conventions.may_be_none(name) or conventions.is_bias(name):
        yield "None"
        if conventions.is_bias(name):
            yield ":B H L L"
            yield ":H L L"
        elif conventions.is_mask(name):
            yield "torch.ones(L, L).tril().bool()"
            yield "torch.ones(L, L).triu(1).bool()"
            yield ":bool B L"
    elif (value := _value_of(parameter)) is not None:
        yield value


def _rotary(name: str, module: ModuleType, init: str, first: str | None) -> Iterator[str]:
    """Yield rotations: made by the module's own class or function, else angles of zero."""
    config = re.match(r"\w+\(.*?\)(?=,|$)", init)
    for kind in [one for key, one in vars(module).items() if inspect.isclass(one) and _ROTARY_CLASS.fullmatch(key)]:
        takes_config = any(conventions.is_config(parameter) for parameter in required_parameters(kind))
        if takes_config and config is not None and first is not None:
            yield f"{kind.__name__}({config[0]})({first}, torch.arange(L)[None])"
    stem = re.sub(r"_(cis|complex|cos|sin)$", "", name)
    makers = [key for key, one in vars(module).items() if inspect.isfunction(one) and _MAKES.search(key)]
    for key in makers:
        if not re.search(rf"{stem}|rope|rotary", key):
            continue
        needed = required_parameters(getattr(module, key))
        values = [_ROTARY_SIZES.get(one) or conventions.size_of(one) for one in needed]
        if all(values):
            part = {"freqs_cos": "[0]", "cos": "[0]", "freqs_sin": "[1]", "sin": "[1]"}.get(name, "")
            yield f"{key}({', '.join(filter(None, values))}){part}"
    if name in ("cos", "sin", "freqs_cos", "freqs_sin"):
        value = "ones" if "cos" in name else "zeros"
        yield f"torch.{value}(L, Dk)"
        yield f"torch.{value}(L, Dk//2)"
    else:
        yield "(torch.ones(1, L, Dk), torch.zeros(1, L, Dk))"
        yield "torch.polar(torch.ones(L, Dk//2), torch.zeros(L, Dk//2))"


def _signature(function: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def _parameters(function: Any) -> list[inspect.Parameter]:
    """Return the parameters of a callable, except `*args` and `**kwargs`."""
    return [p for p in _signature(function) if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
