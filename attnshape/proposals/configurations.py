"""Proposes the configuration that a constructor takes: of the project's own class, a dictionary, or a namespace."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, get_args

from torch import Tensor

from attnshape.proposals import conventions
from attnshape.proposals.calls import last_name, tested_names
from attnshape.proposals.fields import FieldUses
from attnshape.proposals.source import (
    all_parameters,
    annotation_text,
    attributes_read,
    fields_read,
    keys_read,
    parsed,
    parts_read,
    signature_parameters,
    syntax_tree,
    text_of,
)

_CONFIG_CLASS = re.compile(r"\w*(Config|Configuration|Args|Arguments|Params|HParams|Hyperparameters|Options|Cfg)")
_WIDTHS = ("H", "Hkv", "Dk", "Dv", "D")
ANY_NUMBER = "2"
"""What a number is of which nothing is known."""
_MOST_FILES = 50
"""How many files beside that of an attention are read for the class of its configuration."""


def configurations(kind: type, module: ModuleType, parameter: inspect.Parameter) -> Iterator[str]:
    """Yield expressions for an object with the sizes: of the project's own class, a dictionary, or a namespace."""
    fields = fields_read(kind, parameter.name, module)
    for config in _config_classes(module, parameter, fields):
        uses = FieldUses.of(kind, parameter.name, module, config)
        if (arguments := _config_arguments(config, fields, uses)) is not None:
            is_global = getattr(module, config.__name__, None) is config
            name = config.__name__ if is_global else annotation_text(kind, parameter.name) or config.__name__
            yield f"{name}({arguments})"
            if "=Hkv" in arguments:
                yield f"{name}({arguments.replace('=Hkv', '=H')})"
    if keys := keys_read(kind, parameter.name, module):
        yield mapping(keys)
    elif fields:
        parts = {name: parts_read(kind, parameter.name, module, name) for name in fields}
        inner = {
            name: mapping(keys) if keys else namespace(names)
            for name, (names, keys) in parts.items()
            if _size_among(name, fields) is None and (names or keys)
        }
        uses = FieldUses.of(kind, parameter.name, module)
        unknown = [name for name in fields if _of_field(name, fields) == "None"]
        by_use = {name: value for name in unknown if (value := uses.value(name)) is not None}
        defaults = {name: value for name, value in _defaults_beside(module, fields).items() if name not in inner}
        if defaults:
            yield namespace(fields, {**by_use, **inner, **defaults})
        layers = {name: layer for name in fields if (layer := uses.layer(name)) is not None}
        if layers:
            yield namespace(fields, {**by_use, **inner, **layers})
        yield namespace(fields, inner)
        if by_use:
            yield namespace(fields, {**by_use, **inner})
        untold = [name for name in unknown if name not in by_use and not conventions.may_be_none(name)]
        if numbers := {name: ANY_NUMBER for name in untold if name not in inner}:
            yield namespace(fields, {**by_use, **numbers, **inner})


def is_configuration(kind: type, module: ModuleType, parameter: str) -> bool:
    """Return whether a parameter of a constructor has the sizes as attributes, by its name or as the code reads them.

    A width that is called `H` is a number; `H.n_embd` and `H.n_head` are read from a configuration.
    """
    if conventions.is_config(parameter):
        return True
    fields = fields_read(kind, parameter, module)
    return sum(_size_among(name, fields) is not None for name in fields) > 1


def namespace(fields: Sequence[str], inner: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return an expression for an object with these attributes, as far as their names tell what they are.

    `inner` are expressions for those that are objects with attributes of their own.

    >>> namespace(["n_embd", "n_head", "dropout", "bias", "name"])
    'SimpleNamespace(n_embd=D, n_head=H, dropout=0.0, bias=False, name=None)'
    >>> namespace(["lm_hidden_dim", "lm_n_heads"])
    'SimpleNamespace(lm_hidden_dim=D, lm_n_heads=H)'
    >>> namespace(["dim", "attention"], {"attention": "SimpleNamespace(heads=H)"})
    'SimpleNamespace(dim=D, attention=SimpleNamespace(heads=H))'
    """
    values = {name: _of_field(name, fields) for name in fields} | dict(inner)
    return f"SimpleNamespace({', '.join(f'{name}={value}' for name, value in values.items())})"


def objects(call: Callable[..., Any], parameter: str) -> list[str]:
    """Return expressions for an argument of which the code reads attributes that no tensor has.

    What the code tests for being true is true, else false. An object whose own methods it calls isn't made up.
    """
    tree = syntax_tree(call)
    if tree is None:
        return []
    read = [name for name in attributes_read(tree, parameter) if not hasattr(Tensor, name)]
    called = {last_name(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    if not read or called & set(read):
        return []
    tested = {name for node in ast.walk(tree) for name in tested_names(node)} & set(read)
    return [namespace(read, dict.fromkeys(tested, value)) for value in ("True", "False")]


def mapping(keys: Sequence[str]) -> str:
    """Return an expression for a dictionary with these keys, as far as their names tell what they are.

    >>> mapping(["hidden_size", "num_head"])
    "{'hidden_size': D, 'num_head': H}"
    """
    return f"{{{', '.join(f'{name!r}: {_of_field(name, keys)}' for name in keys)}}}"


def _of_field(name: str, among: Sequence[str]) -> str:
    names = _spellings(name, among)
    known = _size_among(name, among) or next(filter(None, map(conventions.constant_of, names)), None)
    return known or ("False" if any(map(conventions.is_flag, names)) else "None")


def _size_among(name: str, among: Sequence[str]) -> str | None:
    """Return the size that a field stands for, None if it is none."""
    return next(filter(None, map(conventions.size_of, _spellings(name, among))), None)


def _spellings(name: str, among: Sequence[str]) -> list[str]:
    """Return a field's name, also without its first word if other fields have it: it says of what part they are.

    >>> _spellings("lm_hidden_dim", ["lm_hidden_dim", "lm_n_heads"]), _spellings("lm_hidden_dim", ["lm_hidden_dim"])
    (['lm_hidden_dim', 'hidden_dim'], ['lm_hidden_dim'])
    """
    first, separator, rest = conventions.plain(name).partition("_")
    is_shared = any(conventions.plain(other).startswith(f"{first}_") for other in among if other != name)
    return [name, rest] if separator and is_shared else [name]


def _config_classes(module: ModuleType, parameter: inspect.Parameter, fields: Sequence[str]) -> list[type]:
    """Return the classes of which a configuration may be: the annotated one, or those that have the fields read."""
    annotated = [one for one in _annotated_classes(parameter, module) if not hasattr(builtins, one.__name__)]
    if annotated:
        return annotated
    named = [one for name, one in vars(module).items() if inspect.isclass(one) and _CONFIG_CLASS.fullmatch(name)]
    scores = {one: len(set(_own_names(one, fields)) & {*_settable(one), *dir(one)}) for one in named}
    return sorted((one for one in named if scores[one]), key=lambda one: -scores[one])[:2]


def _defaults_beside(module: ModuleType, fields: Sequence[str]) -> dict[str, str]:
    """Return what a configuration in a file beside has by default for the fields that are no sizes, such as flags.

    The file of an attention rarely imports the class of its configuration. It isn't imported: its text says enough.
    """
    file = getattr(module, "__file__", None)
    beside = sorted(Path(file).parent.glob("*.py"))[:_MOST_FILES] if isinstance(file, str) else []
    for path in beside:
        text = text_of(path)
        nodes = (node for tree in parsed(text) for node in tree.body) if all(name in text for name in fields) else ()
        for node in nodes:
            if isinstance(node, ast.ClassDef) and _CONFIG_CLASS.fullmatch(node.name):
                defaults = dict(_literal_defaults(node))
                if set(fields) <= defaults.keys():
                    return {name: defaults[name] for name in fields if defaults[name] in ("True", "False")}
    return {}


def _literal_defaults(config: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the fields of a dataclass with the text of their defaults, empty without one."""
    for one in config.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            yield one.target.id, ast.unparse(one.value) if one.value is not None else ""


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
    return {p.name: p.default for p in all_parameters(config)}


def _config_arguments(config: type, fields: Sequence[str], uses: FieldUses) -> str | None:
    """Return the arguments that give a configuration the sizes which are read; None if it needs something unknown."""
    arguments: list[str] = []
    fields = _own_names(config, fields)
    annotations = {p.name: p.annotation for p in signature_parameters(config)}
    for name, default in _settable(config).items():
        is_required = default is inspect.Parameter.empty
        size = _size_among(name, fields)
        if size is not None and (is_required or (name in fields and type(default) is int)):
            arguments.append(f"{name}={size}")
        elif is_required:
            value = conventions.constant_of(name) or uses.value(name, annotations.get(name, inspect.Parameter.empty))
            if value is None and name in fields:
                return None
            arguments.append(f"{name}={value}")
    taken = {argument.partition("=")[0] for argument in arguments}
    # a class that takes any keyword, or whose fields are attributes of the class only, says nothing of the others
    accepts_any = any(p.kind is p.VAR_KEYWORD for p in signature_parameters(config))
    more = [name for name in fields if accepts_any and name not in taken | set(_settable(config))]
    arguments += [f"{name}={size}" for name in more if (size := _size_among(name, fields)) in _WIDTHS]
    return ", ".join(arguments)
