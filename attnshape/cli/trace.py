"""`attnshape trace`: every intermediate tensor, as a table; with `--expect`, a verdict."""

from __future__ import annotations

import gc
import shlex
import sys
from typing import Annotated, Any

import typer

from attnshape.cli.drawing import Drawing
from attnshape.cli.options import Columns, Depth, Explain, Format, Match, Output
from attnshape.cli.progress import Progress
from attnshape.cli.request import Flags, combine
from attnshape.errors import ExitStatus
from attnshape.tracing.output import to_standard_error

_Size = str | None
_BUILT_IN = "Built-in mechanisms"
_SIZES = "Sizes"


def _size(flag: str, help_: str) -> Any:
    return typer.Option(flag, metavar="N", help=help_, rich_help_panel=_SIZES)


def trace(
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
    expect: Annotated[
        list[str] | None,
        typer.Option(metavar="SPEC", help='Verify a variable or the output: "scores: B H Lq Lk". Repeat.'),
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
    format_: Format = "auto",
    output: Output = None,
    columns: Columns = None,
    match: Match = None,
    depth: Depth = None,
    explain: Explain = False,
) -> None:
    """Every intermediate tensor of attention code, as a table; with --expect, a verdict."""
    drawing = Drawing.prepare(format_, output, columns, match, depth, explain)
    flags = Flags(
        {
            "init": _one(init),
            "input": input_ or [],
            "with": with_ or [],
            "expect": expect or [],
            "dim": dim or [],
            "batch": _one(batch),
            "heads": _one(heads),
            "kv-heads": _one(kv_heads),
            "group": _one(group),
            "past": _one(past),
            "length": _one(length),
            "queries": _one(queries),
            "keys": _one(keys),
            "d-model": _one(d_model),
            "d-head": _one(d_head),
            "d-value": _one(d_value),
            "window": _one(window),
            "causal": ["true"] if causal else [],
            "padding": ["true"] if padding else [],
            "mask-value": _one(mask_value),
            "dropout": _one(dropout),
            "no-bias": ["true"] if no_bias else [],
            "device": _one(device),
            "dtype": _one(dtype),
            "seed": _one(seed),
            "train": ["true"] if train else [],
            "grad": ["true"] if grad else [],
        }
    )
    request, settings = combine(target, flags, shlex.join(["attnshape", *sys.argv[1:]]))
    # torch is imported only here, once everything that can be wrong without it has been looked at
    from attnshape.pipeline import trace_request
    from attnshape.target.device import require_device

    gc.freeze()
    gc.enable()
    require_device(settings.device)
    # until the table is written, since threads of the traced code may print meanwhile
    with to_standard_error():
        with Progress() as progress:
            made = trace_request(request, settings, doing=progress)
        drawing.draw(made)
    if made.found_something:
        raise typer.Exit(ExitStatus.FOUND)


def _one(value: str | None) -> list[str]:
    return [] if value is None else [value]
