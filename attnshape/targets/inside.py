"""A module inside a target, with the arguments that it gets in a run of the target."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.overrides import BaseTorchFunctionMode

from attnshape.errors import AttnshapeError, Option, format_exception, most_similar
from attnshape.options.spec import RunOptions
from attnshape.runtime.isolation import seed_all
from attnshape.runtime.time_limit import reraise_interruption_or_timeout
from attnshape.targets.imports import origin
from attnshape.targets.target import Target
from attnshape.tracing.containers import modules_within
from attnshape.tracing.opaque import force_eager
from attnshape.tracing.runner import Runnable, run_to_completion

_LISTED = 8
"""How many modules an error lists."""


class _ReachedError(BaseException):
    """Ends a run at the module's first call; a BaseException, since the traced code may catch exceptions."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.call = args, kwargs


def module_inside(target: Target, path: str) -> Target:
    """Return a module inside a target as a target of its own.

    Each time that it is built, the outer target is built and run until it first calls the module. The module's
    arguments are those of this call.

    Args:
        target: The outer target, which is or holds a module.
        path: The path of the module, as `named_modules` has it: `transformer.h.0.attn`.

    Building raises AttnshapeError if there is no such module, or a run doesn't call it.
    """

    def build(numbers: Mapping[str, int], options: RunOptions) -> Runnable:
        outer = target.build(numbers, options)
        module = _named(outer, target.label, path)
        args, kwargs = _first_call(outer, module, target.label, path, options)
        return Runnable(module, args, kwargs, outer.claims, outer.made_in, outer.is_uncompiled)

    # what the user wrote of the outer inputs says nothing of an input of the module that has the same name
    sizes = replace(
        target.sizes, inputs={f"{target.label}: {name}": axes for name, axes in target.sizes.inputs.items()}
    )
    return replace(target, label=f"{target.label} inside {path}", sizes=sizes, build=build)


def _named(outer: Runnable, label: str, path: str) -> nn.Module:
    modules: dict[str, nn.Module] = {}
    for root, owned in modules_within(outer.function):
        # a container isn't called; one that is shared has several names
        for name, module in owned.named_modules(remove_duplicate=False):
            modules.setdefault(".".join(filter(None, (root, name))), module)
    modules.pop("", None)  # the target itself
    module = modules.get(path)
    if module is None:
        raise AttnshapeError(f"{label} has no module {path!r}", _which(path, modules))
    if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        inner = [f"{path}.{name}" for name, _ in module.named_children()]
        hint = f"name one in it: {inner[0]}" if inner else "name another module"
        raise AttnshapeError(f"{path} of {label} is a {type(module).__name__}, which is never called", hint)
    return module


def _which(path: str, modules: Mapping[str, nn.Module]) -> str:
    if not modules:
        return "name a module, or a case that returns one"
    if (similar := most_similar(path, modules)) is not None:
        return f"did you mean {similar}?"
    # one for all modules of a list, and those first that may be meant
    first = list({re.sub(r"\d+", "#", name): name for name in reversed([*modules])}.values())
    first.sort(key=lambda name: ("attn" not in name.lower() and "attention" not in name.lower(), name.count(".")))
    more = ", …" if len(first) > _LISTED else ""
    return f"its modules are: {', '.join(first[:_LISTED])}{more}"


def _first_call(
    outer: Runnable, module: nn.Module, label: str, path: str, options: RunOptions
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of the module's first call in a run of the outer target."""

    def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        raise _ReachedError(args, kwargs)

    # before the module's own hooks, which run again when it is called with these arguments
    handle = module.register_forward_pre_hook(stop, prepend=True, with_kwargs=True)
    seed_all(options.seed)
    try:
        # under any mode torch's fused paths, which call no inner modules, aren't taken
        with torch.no_grad(), force_eager(), BaseTorchFunctionMode():
            run_to_completion(outer.call())
    except _ReachedError as reached:
        return reached.call
    except BaseException as error:
        reraise_interruption_or_timeout(error)
        why = f"{label} fails before it calls {path}: {format_exception(error)}{origin(error)}"
        raise AttnshapeError(why, ("attnshape trace without ", Option("inside"), " shows where and why")) from error
    finally:
        handle.remove()
    raise AttnshapeError(f"a run of {label} doesn't call {path}", "name a module that it calls, or give other inputs")
