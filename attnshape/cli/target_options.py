"""The target, its sizes and how to run it: what every verb that runs code takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from attnshape.cli.request import Flags

_Size = str | None
_BUILT_IN = "Built-in mechanisms"
_SIZES = "Sizes"


def _size(flag: str, help_: str) -> Any:
    return typer.Option(flag, metavar="N", help=help_, rich_help_panel=_SIZES)


def _declared(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]",
            help="A mechanism of the catalog (multi-head where none is given), path/to/file.py:Name, "
            "package.module:Name, or a name from pyproject.toml. Running a target runs its code.",
        ),
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(metavar="ARGS", help='What to call a class with: "D, n_head=H". Sizes are names in it.'),
    ] = None,
    input_: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="SPEC", help='A tensor argument: "query: B Lq D", "ids: int[V] B L". Repeat.'),
    ] = None,
    with_: Annotated[
        list[str] | None, typer.Option("--with", metavar="NAME=PYTHON", help="Another argument, in Python. Repeat.")
    ] = None,
    batch: Annotated[_Size, _size("--batch", "B, sequences in a batch.")] = None,
    heads: Annotated[_Size, _size("--heads", "H, query heads.")] = None,
    kv_heads: Annotated[_Size, _size("--kv-heads", "Hkv, key/value heads.")] = None,
    group: Annotated[_Size, _size("--group", "G, query heads to one key/value head.")] = None,
    past: Annotated[_Size, _size("--past", "Lp, cached positions before the first query.")] = None,
    length: Annotated[_Size, _size("--length", "L, where queries and keys are one sequence.")] = None,
    queries: Annotated[_Size, _size("--queries", "Lq, number of queries.")] = None,
    keys: Annotated[_Size, _size("--keys", "Lk, number of keys and values.")] = None,
    d_model: Annotated[_Size, _size("--d-model", "D, model width.")] = None,
    d_head: Annotated[_Size, _size("--d-head", "Dk, width of one head's queries and keys.")] = None,
    d_value: Annotated[_Size, _size("--d-value", "Dv, width of one head's values.")] = None,
    window: Annotated[_Size, _size("--window", "W, sliding-window width.")] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=EXPR", help="A letter of your own: T=10, or C=nh*hs. Repeat.", rich_help_panel=_SIZES
        ),
    ] = None,
    causal: Annotated[bool, typer.Option("--causal", help="Mask later keys.", rich_help_panel=_BUILT_IN)] = False,
    padding: Annotated[
        bool, typer.Option("--padding", help="Mask padded keys, B x 1 x 1 x Lk.", rich_help_panel=_BUILT_IN)
    ] = False,
    mask_value: Annotated[
        str | None,
        typer.Option(
            metavar="X", help="What masked scores become: -inf or a large negative.", rich_help_panel=_BUILT_IN
        ),
    ] = None,
    dropout: Annotated[
        str | None, typer.Option(metavar="P", help="Dropout of the weights, with --train.", rich_help_panel=_BUILT_IN)
    ] = None,
    no_bias: Annotated[
        bool, typer.Option("--no-bias", help="Projections without bias.", rich_help_panel=_BUILT_IN)
    ] = False,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="cpu, cuda, cuda:N or meta.")] = None,
    dtype: Annotated[str | None, typer.Option(metavar="NAME", help="float32, float64, float16 or bfloat16.")] = None,
    seed: Annotated[str | None, typer.Option(metavar="N", help="Seed of parameters and inputs.")] = None,
    train: Annotated[bool, typer.Option("--train", help="Run in training mode, with dropout.")] = False,
    grad: Annotated[
        bool, typer.Option("--grad", help="Run with gradients: of the parameters, or the inputs where there are none.")
    ] = False,
) -> None:
    """Only its parameters count: they are those of each verb that `takes_target` makes."""


def takes_target(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the verb as typer takes it: what is declared here, then the verb's own parameters but for its first two.

    The verb is called with the target and with the flags that were typed, `Flags`, before its own.
    """
    return _taking(verb, 2, ())


def takes_flags(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the verb as `takes_target` does, for one that has targets of its own: its first parameter is the flags."""
    return _taking(verb, 1, ("target",))


def _taking(verb: Callable[..., None], first: int, without: Sequence[str]) -> Callable[..., None]:
    declared = inspect.signature(_declared, eval_str=True).parameters
    shared = {name: one for name, one in declared.items() if name not in without}
    own = dict(list(inspect.signature(verb, eval_str=True).parameters.items())[first:])

    def called(**given: Any) -> None:
        target = [given.pop("target")] if "target" in shared else []
        flags = {_flag(name): texts(given.pop(name)) for name in shared if name != "target"}
        verb(*target, Flags(flags), **given)

    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*shared.values(), *own.values())]
    called.__name__, called.__doc__ = verb.__name__, verb.__doc__
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return called


def texts(value: str | bool | list[str] | None) -> list[str]:
    """Return what was given for an option, as `Flags` have it.

    >>> texts(None), texts("8"), texts(True), texts(["a", "b"])
    ([], ['8'], ['true'], ['a', 'b'])
    """
    if isinstance(value, list):
        return value
    if isinstance(value, bool):
        return ["true"] if value else []
    return [] if value is None else [value]


def _flag(name: str) -> str:
    return name.removesuffix("_").replace("_", "-")
