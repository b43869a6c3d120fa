"""What a call of `attnshape.trace` or `attnshape.check` asks for, as a command line's request and settings."""

from __future__ import annotations

import functools
import operator
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from attnshape.axis import AxisExpression
from attnshape.cli.request import Flags, combine
from attnshape.dims import BY_LETTER, SYMBOLS, flag_of
from attnshape.errors import AttnshapeError
from attnshape.settings import Settings
from attnshape.sizes import check_positive, own_letters
from attnshape.target.request import Request
from attnshape.tracing.contained import paths
from attnshape.tracing.modules import module_of

OPTIONS = ("causal", "padding", "mask_value", "dropout", "bias")


FLAGS = (
    *("init", "input", "with", "expect", "dim"),
    *(symbol.flag.removeprefix("--") for symbol in SYMBOLS),
    *("causal", "padding", "mask-value", "dropout", "no-bias"),
    *("device", "dtype", "seed", "train", "grad"),
)
"""The command line's, which a target in pyproject.toml may have too."""


@dataclass(frozen=True)
class Call:
    """The arguments of one call of `attnshape.trace` or `attnshape.check`, but for where and how to run it."""

    target: str | Callable[..., Any]
    init: str | None
    inputs: Mapping[str, Any]
    arguments: Mapping[str, Any]
    options: Mapping[str, bool | float]
    expect: Mapping[str, str]
    sizes: Mapping[str, int | str]
    verb: str = "trace"
    claims: Sequence[str] = ()

    def request(self, device: object, dtype: object, seed: object, train: bool, grad: bool) -> tuple[Request, Settings]:
        """Return the request and its settings. Raises AttnshapeError where an argument isn't what it must be."""
        self._refuse_misplaced()
        given, own = numbers(self.sizes)
        flags: dict[str, list[str]] = {flag: [] for flag in FLAGS}
        flags["init"] = [self.init] if self.init is not None else []
        flags |= {name: ["true"] for name, chosen in (("train", train), ("grad", grad)) if chosen}
        flags["input"] = [f"{name}: {text}" for name, text in self.inputs.items() if isinstance(text, str)]
        flags["with"] = [f"{name}={text}" for name, text in self.arguments.items() if isinstance(text, str)]
        flags["expect"] = [f"{name}: {signature}" for name, signature in self.expect.items()]
        flags |= {BY_LETTER[letter].flag.removeprefix("--"): [str(size)] for letter, size in given.items()}
        flags["dim"] = [f"{name}={expression.text}" for name, expression in own.items()]
        flags["device"] = [str(one) for one in [device or self._device()] if one is not None]
        flags["dtype"] = [_plain(one) for one in [dtype or self._dtype()] if one is not None]
        flags["seed"] = [str(seed)] if seed != 0 else []
        flags |= self._option_flags()
        name = self.target if isinstance(self.target, str) else None
        request, settings = combine(name, Flags(flags), self._written(device, dtype, seed, train, grad))
        if isinstance(self.target, str):
            return replace(request, values=self._values()), settings
        return replace(request, target=label(self.target), callable=self.target, values=self._values()), settings

    def _refuse_misplaced(self) -> None:
        if not isinstance(self.target, str) and not callable(self.target):
            raise AttnshapeError(
                f"attnshape.{self.verb} was given a {type(self.target).__name__}, expected something to call, "
                "or a name",
                "give a case, a function, a module, its class, or a string such as 'multi-head'",
            )
        for name, value in self.inputs.items():
            if not isinstance(value, str) and next(paths("", value), None) is None:
                raise AttnshapeError(
                    f"inputs[{name!r}] is a {type(value).__name__}, expected a description, 'B L D', or a tensor",
                    f"give what isn't a tensor in arguments={{{name!r}: …}}",
                )
        twice = next((name for name in self.inputs if name in self.arguments), None)
        if twice is not None:
            raise AttnshapeError(f"{twice} is given twice, in inputs and in arguments", "give it once")
        if self.options and not isinstance(self.target, str):
            raise AttnshapeError(
                "options are those of built-in mechanisms", "give your own target's with arguments={…}"
            )
        for name in self.options:
            if name not in OPTIONS:
                raise AttnshapeError(f"there is no option {name!r}", f"the options are {', '.join(OPTIONS)}")

    def _option_flags(self) -> dict[str, list[str]]:
        flags: dict[str, list[str]] = {}
        for name, value in self.options.items():
            if name in ("mask_value", "dropout"):
                flags[name.replace("_", "-")] = [str(value)]
            elif value is (name != "bias"):
                flags[name if value else "no-bias"] = ["true"]
            elif not isinstance(value, bool):
                raise AttnshapeError(f"the option {name} is {value!r}, expected True or False", f"{name}=True")
        return flags

    def _values(self) -> dict[str, Any]:
        given = {**self.inputs, **self.arguments}
        return {name: value for name, value in given.items() if not isinstance(value, str)}

    def _tensors(self) -> list[torch.Tensor]:
        owner = None if isinstance(self.target, str) else module_of(self.target)
        own = [*owner.parameters(), *owner.buffers()] if owner is not None else []
        return own + [tensor for _, tensor in paths("", self._values())]

    def _device(self) -> torch.device | None:
        return next((tensor.device for tensor in self._tensors()), None)

    def _dtype(self) -> torch.dtype | None:
        return next((tensor.dtype for tensor in self._tensors() if tensor.is_floating_point()), None)

    def _written(self, device: object, dtype: object, seed: object, train: bool, grad: bool) -> str:
        """Return the call as it would be typed."""
        parts = {name: getattr(self, name) for name in ("init", "inputs", "arguments", "options", "expect", "claims")}
        parts |= {"device": device and str(device), "dtype": dtype and _plain(dtype)}
        parts |= {"seed": seed or None, "train": train, "grad": grad, **self.sizes}
        first = repr(self.target) if isinstance(self.target, str) else _name(self.target)
        rest = written({name: value for name, value in parts.items() if value or name in self.sizes})
        return f"attnshape.{self.verb}({first}{', ' if rest else ''}{rest})"


def numbers(sizes: Mapping[str, int | str]) -> tuple[dict[str, int], dict[str, AxisExpression]]:
    """Return the given numbers by symbol, and the author's own letters. Raises AttnshapeError where one can't be."""
    given: dict[str, int] = {}
    own: list[str] = []
    for name, size in sizes.items():
        if name not in BY_LETTER and isinstance(size, str):
            own.append(f"{name}={size}")
            continue
        if isinstance(size, (bool, str)) or not hasattr(size, "__index__"):
            raise AttnshapeError(f"the size {name} is {size!r}, expected a whole number", f"for example {name}=4")
        number = check_positive(operator.index(size), flag_of(name).partition("=")[0])
        if name in BY_LETTER:
            given[name] = number
        else:
            own.append(f"{name}={number}")
    return given, own_letters(own)


def written(arguments: Mapping[str, object]) -> str:
    """Return keyword arguments as they would be typed; tensors as their shapes.

    >>> written({"B": 2, "inputs": {"x": torch.ones(2, 3), "y": "B L"}})
    "B=2, inputs={'x': <tensor 2 3>, 'y': 'B L'}"
    """
    return ", ".join(f"{name}={_typed(value)}" for name, value in arguments.items())


def _typed(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"<tensor {' '.join(map(str, value.shape))}>" if value.ndim else "<tensor>"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_typed(item)}' for key, item in value.items())}}}"
    if isinstance(value, (str, int, float)):
        return repr(value)
    return " ".join(reprlib.repr(value).split())


def label(target: Callable[..., Any]) -> str:
    """Return the name of a callable with its module, as on a command line; without it where that is a script."""
    while isinstance(target, functools.partial):
        target = target.func
    kind = target if hasattr(target, "__qualname__") else type(target)
    module = getattr(kind, "__module__", None)
    name = kind.__qualname__.replace("<locals>.", "").replace("<lambda>", "lambda")
    return name if module in (None, "__main__", "builtins") else f"{module}:{name}"


def _name(target: Callable[..., Any]) -> str:
    name = getattr(target, "__name__", None)
    return name if isinstance(name, str) and name.isidentifier() else f"<{type(target).__name__}>"


def _plain(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
