"""Evaluates what the user wrote in Python: paths to targets, `--init` and `--with`."""

from __future__ import annotations

import ast
import builtins
import difflib
import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch

from attnshape.ending import reraise_interruption
from attnshape.errors import AttnshapeError
from attnshape.hints import nearest
from attnshape.paths import display_path
from attnshape.target.locate import definitions, origin, public_names, raised, reason


class Names(dict[str, Any]):
    """The names that an expression may use: the sizes, torch, and what the target's own module defines.

    The module is asked by attribute, since lazy modules lack their names in `__dict__`; sizes win over it.
    """

    def __init__(self, numbers: Mapping[str, int], module: ModuleType | None) -> None:
        super().__init__({"torch": torch, "__builtins__": builtins, **numbers})
        self._module = module

    def __missing__(self, name: str) -> Any:
        try:
            return getattr(self._module, name)
        except AttributeError:
            raise KeyError(name) from None


def names_used(flag: str, text: str) -> tuple[str, ...]:
    """Return the names in an expression. Raises AttnshapeError where it isn't Python."""
    tree = _parse(flag, text, f"_call({text})" if flag == "--init" else text)
    return tuple(dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)))


def evaluate(flag: str, text: str, names: Names) -> Any:
    """Return the expression's value. Raises AttnshapeError where it doesn't evaluate."""
    tree = _parse(flag, text, text)
    try:
        return eval(compile(tree, f"<{flag}>", "eval"), names)
    except BaseException as error:
        reraise_interruption(error)
        raise _failed(flag, text, error, names) from error


def arguments(text: str, names: Names) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that `--init` stands for. Raises AttnshapeError where it doesn't evaluate."""
    tree = _parse("--init", text, f"_call({text})")
    names["_call"] = lambda *args, **kwargs: (args, kwargs)
    try:
        value: tuple[tuple[Any, ...], dict[str, Any]] = eval(compile(tree, "<--init>", "eval"), names)
    except BaseException as error:
        reraise_interruption(error)
        raise _failed("--init", text, error, names) from error
    finally:
        del names["_call"]
    return value


def reach(path: str, init: str | None, module: ModuleType, names: Names) -> Any:
    """Return what a path such as `build().layers[0].attn` leads to; a class on the way is called with `--init`.

    Raises AttnshapeError where a part of the path isn't there, or where building fails.
    """
    tree = _parse("the target", path, path).body
    value = _walk(tree, path, init, module, names)
    return (
        _built(value, path, init, names)
        if inspect.isclass(value) or (init is not None and _is_factory(tree, value))
        else value
    )


def _is_factory(tree: ast.expr, value: Any) -> bool:
    """`--init` also calls a function that builds the target."""
    return isinstance(tree, ast.Name) and inspect.isfunction(value)


def _walk(tree: ast.expr, path: str, init: str | None, module: ModuleType, names: Names) -> Any:
    match tree:
        case ast.Name(id=name):
            try:
                return getattr(module, name)
            except AttributeError:
                where = display_path(getattr(module, "__file__", None) or module.__name__)
                near = difflib.get_close_matches(name, public_names(module), 1)
                raise AttnshapeError(
                    f"{where} has no {name}", nearest(name, near or definitions(module), "it defines")
                ) from None
        case ast.Attribute(value=owner, attr=attribute):
            value = _walk(owner, path, init, module, names)
            if inspect.isclass(value) and inspect.isfunction(inspect.getattr_static(value, attribute, None)):
                value = _built(value, ast.unparse(owner), init, names)
            try:
                return getattr(value, attribute)
            except AttributeError:
                public = [name for name in dir(value) if not name.startswith("_")]
                raise AttnshapeError(
                    f"{ast.unparse(owner)} has no {attribute}", nearest(attribute, public[:20], "it has")
                ) from None
            except BaseException as error:
                reraise_interruption(error)
                raise AttnshapeError(
                    f"{ast.unparse(tree)} can't be read: {raised(error)}{origin(error)}",
                    "mend it, or name something else",
                ) from error
        case ast.Subscript(value=owner, slice=key):
            value = _walk(owner, path, init, module, names)
            position = evaluate("the target", ast.unparse(key), names)
            try:
                return value[position]
            except BaseException as error:
                reraise_interruption(error)
                raise AttnshapeError(f"{ast.unparse(tree)} isn't there: {raised(error)}", "check the index") from error
        case ast.Call(func=function, args=args, keywords=keywords):
            value = _walk(function, path, init, module, names)
            inner = ast.unparse(ast.Call(ast.Name("_"), args, keywords))[2:-1]
            return _called(value, ast.unparse(function), inner, names)
    raise AttnshapeError(
        f"{path!r} isn't a path to a target", "write names, attributes, indices and calls: build().layers[0].attn"
    )


def _built(value: Any, path: str, init: str | None, names: Names) -> Any:
    if init is None:
        required = required_parameters(value)
        if required:
            raise AttnshapeError(
                f"{path} is a class whose constructor needs {', '.join(required)}",
                f'say how to build it: --init "{", ".join(required)}", with the sizes as names (D, H, …)',
            )
    return _called(value, path, init or "", names)


def _called(value: Any, path: str, text: str, names: Names) -> Any:
    args, kwargs = arguments(text, names)
    try:
        return value(*args, **kwargs)
    except AttnshapeError:
        raise
    except BaseException as error:
        reraise_interruption(error)
        sizes = ", ".join(f"{name}={value}" for name, value in names.items() if type(value) is int)
        raise AttnshapeError(
            f"{path}({text}) can't be built: {raised(error)}{origin(error)}",
            "trace a part of it that doesn't exit"
            if isinstance(error, SystemExit)
            else f"the sizes were {sizes or 'none'}",
        ) from error


def required_parameters(function: Any) -> list[str]:
    """Return the names of the parameters that must be given."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]


def _parse(flag: str, text: str, expression: str) -> ast.Expression:
    try:
        return ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise AttnshapeError(
            f"{flag} {text!r} isn't a Python expression: {reason(error)}",
            '--init takes the arguments of a call: "D, n_head=H"'
            if flag == "--init"
            else "check its brackets and quotes",
        ) from None


def _failed(flag: str, text: str, error: BaseException, names: Names) -> AttnshapeError:
    sizes = ", ".join(name for name, value in names.items() if type(value) is int)
    return AttnshapeError(
        f"{flag} {text!r} doesn't evaluate: {raised(error)}",
        f"names in it: the sizes ({sizes or 'none in use'}), torch, and what the target's module defines",
    )
