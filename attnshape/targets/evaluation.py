"""Evaluates the user's Python: paths to targets, arguments of constructors, and other arguments."""

from __future__ import annotations

import ast
import builtins
import contextlib
import inspect
import re
from collections.abc import Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from attnshape.dims.symbols import size_options
from attnshape.errors import (
    AttnshapeError,
    Option,
    Text,
    did_you_mean,
    exception_message,
    format_exception,
    most_similar,
)
from attnshape.runtime.files import display_path
from attnshape.runtime.time_limit import reraise_interruption_or_timeout
from attnshape.targets.imports import definitions, origin, public_names
from attnshape.targets.missing import install_hint


class Names(dict[str, Any]):
    """The names that an expression may use: sizes, other arguments, torch, and what the target's module defines.

    `SimpleNamespace` makes objects that have only attributes, such as configurations. Names are looked up with
    `getattr`, since a lazy module lacks them in `__dict__`; the given values take precedence.
    """

    def __init__(self, values: Mapping[str, Any], module: ModuleType | None) -> None:
        super().__init__({"torch": torch, "SimpleNamespace": SimpleNamespace, "__builtins__": builtins, **values})
        self._module = module

    def defines(self, name: str) -> bool:
        """Return whether an expression may use a name, other than a builtin."""
        return name in self or hasattr(self._module, name)

    def __missing__(self, name: str) -> Any:
        try:
            return getattr(self._module, name)
        except AttributeError:
            raise KeyError(name) from None


Source = Sequence[str | Option]
"""Where an expression is from, as errors name it."""
THE_TARGET: Source = ("the target",)


def names_used(source: Source, text: str) -> tuple[str, ...]:
    """Return the names in an expression. Raises AttnshapeError if it isn't Python."""
    return _names(_parse(source, text, text))


def names_in_call(arguments: str) -> tuple[str, ...]:
    """Return the names in the arguments of a call. Raises AttnshapeError if they aren't Python."""
    return _names(_parse_arguments(arguments))


def whole_numbers_in_call(arguments: str) -> frozenset[int]:
    """Return the whole numbers that are written in the arguments of a call.

    Raises AttnshapeError if they aren't Python.

    >>> sorted(whole_numbers_in_call("D, heads=H, slice_size=5, kernel=(3, 1), rate=0.1, bias=True"))
    [1, 3, 5]
    """
    nodes = ast.walk(_parse_arguments(arguments))
    return frozenset(node.value for node in nodes if isinstance(node, ast.Constant) and type(node.value) is int)


_COUNTS_LAYERS = re.compile(r"((n|num|number_of)_?)?(\w+_)?(layers?|blocks?)|depth", re.IGNORECASE)
"""The name of a parameter, or a symbol, that is a number of layers: `n_layer`, `num_hidden_layers`, `depth`."""
_COUNTS_WORDS = re.compile(
    r"((n|num|number_of)_?)?(\w+_)?(vocab(ulary)?(_?size)?|n_?tokens|items?|users?)", re.IGNORECASE
)
"""The name of a parameter, or a symbol, that is the size of a vocabulary: `vocab_size`, `num_items`."""


def layer_counts(arguments: str, function: Any) -> tuple[str, ...]:
    """Return the names in the arguments of a call of a function that stand for a number of layers.

    Their own names say so, or those of the parameters that they are passed to, here or in a call inside, or the keys of
    a dictionary. Raises AttnshapeError if the arguments aren't Python.
    """
    return _names_for(_COUNTS_LAYERS, arguments, function)


def vocabulary_sizes(arguments: str, function: Any) -> tuple[str, ...]:
    """Return the names in the arguments of a call of a function that stand for the size of a vocabulary.

    Their own names say so, or they are called V and passed to a parameter of such a name. Raises AttnshapeError if the
    arguments aren't Python.
    """
    names = _names_for(_COUNTS_WORDS, arguments, function)
    return tuple(name for name in names if name == "V" or _COUNTS_WORDS.fullmatch(name))


def _names_for(pattern: re.Pattern[str], arguments: str, function: Any) -> tuple[str, ...]:
    call = _parse_arguments(arguments).body
    parameters: list[str] = []
    with contextlib.suppress(TypeError, ValueError):
        parameters = list(inspect.signature(function).parameters)
    positional = zip(parameters, call.args, strict=False) if isinstance(call, ast.Call) else ()
    passed = [*positional, *((part.arg, part.value) for part in ast.walk(call) if isinstance(part, ast.keyword))]
    passed += [(part.id, part) for part in ast.walk(call) if isinstance(part, ast.Name)]
    for mapping in (part for part in ast.walk(call) if isinstance(part, ast.Dict)):
        keyed = zip(mapping.keys, mapping.values, strict=True)
        passed += [
            (key.value, value) for key, value in keyed if isinstance(key, ast.Constant) and type(key.value) is str
        ]
    pairs = [(name, value.id) for name, value in passed if isinstance(value, ast.Name) and name is not None]
    return tuple(dict.fromkeys(name for parameter, name in pairs if pattern.fullmatch(parameter)))


def _names(tree: ast.Expression) -> tuple[str, ...]:
    return tuple(dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)))


def evaluate(source: Source, text: str, names: Names) -> Any:
    """Return the expression's value. Raises AttnshapeError if it doesn't evaluate."""
    return _evaluate(source, text, _parse(source, text, text), names, "<argument>")


def evaluate_arguments(text: str, names: Names) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call. Raises AttnshapeError if they don't evaluate."""
    tree = _parse_arguments(text)
    names["_call"] = lambda *args, **kwargs: (args, kwargs)
    try:
        value: tuple[tuple[Any, ...], dict[str, Any]] = _evaluate((Option("init"),), text, tree, names, "<init>")
    finally:
        del names["_call"]
    return value


def _evaluate(source: Source, text: str, tree: ast.Expression, names: Names, file: str) -> Any:
    try:
        return eval(compile(tree, file, "eval"), names)
    except BaseException as error:
        reraise_interruption_or_timeout(error)
        sizes = ", ".join(name for name, value in names.items() if type(value) is int)
        inputs = ", ".join(name for name, value in names.items() if isinstance(value, torch.Tensor))
        listed = f"the sizes ({sizes or 'none in use'}){f', the arguments {inputs}' if inputs else ''}, torch"
        hint: Text = [f"names in it: {listed}, and what the target's module defines"]
        if isinstance(error, NameError) and error.name in (undefined := _undefined(tree, names)):
            hint = ["if it is a size, define it: ", size_options(undefined), "; ", *hint]
        raise AttnshapeError((*source, f" {text!r} doesn't evaluate: {format_exception(error)}"), hint) from error


def _undefined(tree: ast.Expression, names: Names) -> list[str]:
    """Return the names in an expression that aren't defined, in order, without the variables of comprehensions."""
    found = [name for name in compile(tree, "", "eval").co_names if name in _names(tree)]
    return [name for name in found if not hasattr(builtins, name) and not names.defines(name)]


def reach(path: str, init: str | None, module: ModuleType, names: Names) -> Any:
    """Return the object at a path such as `build().layers[0].attn`; a class on the way is called with `init`.

    Raises AttnshapeError if a part of the path isn't there, or where building fails.
    """
    tree = _parse(THE_TARGET, path, path).body
    value = _walk(tree, path, init, module, names)
    # `init` may be for a function that builds the target
    is_factory = init is not None and isinstance(tree, ast.Name) and inspect.isfunction(value)
    return _built(value, path, init, names) if inspect.isclass(value) or is_factory else value


def _walk(tree: ast.expr, path: str, init: str | None, module: ModuleType, names: Names) -> Any:
    match tree:
        case ast.Name(id=name):
            try:
                return getattr(module, name)
            except AttributeError:
                where = display_path(getattr(module, "__file__", None) or module.__name__)
                similar = most_similar(name, public_names(module))
                hint = did_you_mean(name, [similar] if similar else definitions(module), "it defines")
                raise AttnshapeError(f"{where} has no {name}", hint) from None
        case ast.Attribute(value=owner, attr=attribute):
            value = _walk(owner, path, init, module, names)
            if inspect.isclass(value) and inspect.isfunction(inspect.getattr_static(value, attribute, None)):
                value = _built(value, ast.unparse(owner), init, names)
            try:
                return getattr(value, attribute)
            except AttributeError:
                public = [name for name in dir(value) if not name.startswith("_")]
                hint = did_you_mean(attribute, public[:20], "it has")
                raise AttnshapeError(f"{ast.unparse(owner)} has no {attribute}", hint) from None
            except BaseException as error:
                reraise_interruption_or_timeout(error)
                why = f"{ast.unparse(tree)} can't be read: {format_exception(error)}{origin(error)}"
                raise AttnshapeError(why, "fix it, or name something else") from error
        case ast.Subscript(value=owner, slice=key):
            value = _walk(owner, path, init, module, names)
            position = evaluate(THE_TARGET, ast.unparse(key), names)
            try:
                return value[position]
            except BaseException as error:
                reraise_interruption_or_timeout(error)
                why = f"{ast.unparse(tree)} isn't there: {format_exception(error)}"
                raise AttnshapeError(why, "check the index") from error
        case ast.Call(func=function, args=args, keywords=keywords):
            value = _walk(function, path, init, module, names)
            inner = ast.unparse(ast.Call(ast.Name("_"), args, keywords))[2:-1]
            return _called(value, ast.unparse(function), inner, names)
    raise AttnshapeError(
        f"{path!r} isn't a path to a target", "write names, attributes, indices and calls: build().layers[0].attn"
    )


def _built(value: Any, path: str, init: str | None, names: Names) -> Any:
    if init is None and (required := ", ".join(required_parameters(value))):
        raise AttnshapeError(
            f"{path} is a class whose constructor needs {required}",
            ("say how to build it: ", Option("init", required), ", with the sizes as names (D, H, …)"),
        )
    return _called(value, path, init or "", names)


def _called(value: Any, path: str, text: str, names: Names) -> Any:
    args, kwargs = evaluate_arguments(text, names)
    try:
        return value(*args, **kwargs)
    except AttnshapeError:
        raise
    except BaseException as error:
        reraise_interruption_or_timeout(error)
        sizes = ", ".join(f"{name}={value}" for name, value in names.items() if type(value) is int)
        exits = isinstance(error, SystemExit)
        raise AttnshapeError(
            f"{path}({text}) can't be built: {format_exception(error)}{origin(error)}",
            "trace a part of it that doesn't exit"
            if exits
            else install_hint(error) or f"the sizes were {sizes or 'none'}",
        ) from error


def required_parameters(function: Any) -> list[str]:
    """Return the names of the parameters that must be given."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]


def _parse(source: Source, text: str, expression: str, hint: Text = "check its brackets and quotes") -> ast.Expression:
    try:
        return ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = f" {text!r} isn't a Python expression: {exception_message(error)}"
        raise AttnshapeError((*source, why), hint) from None


def _parse_arguments(text: str) -> ast.Expression:
    hint = ("write the arguments of a call: ", Option("init", "D, n_head=H"))
    return _parse((Option("init"),), text, f"_call({text})", hint)
