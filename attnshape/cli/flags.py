"""The flags that verbs share, from the command line to typed options and back."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from attnshape.cli.help import BUILT_IN, OUTPUT, RUNNING, SIZES, TARGET
from attnshape.dims.symbols import SIZE_KEYS
from attnshape.options.flags import command_line
from attnshape.options.limits import check_time_limit, parse_memory
from attnshape.options.pyproject import ProjectTarget
from attnshape.options.spec import DtypeName, require_name
from attnshape.reporters.registry import formats_for
from attnshape.reporters.reporter import Kind
from attnshape.runtime.worker import limit_memory, limit_time

_target: Any = partial(typer.Option, rich_help_panel=TARGET)
_sizes: Any = partial(typer.Option, rich_help_panel=SIZES)
_built_in: Any = partial(typer.Option, rich_help_panel=BUILT_IN)
running_option: Any = partial(typer.Option, rich_help_panel=RUNNING)
"""An option of how a target runs."""
output_option: Any = partial(typer.Option, rich_help_panel=OUTPUT)
"""An option of the output."""


def format_option(kind: Kind) -> Any:
    """Return the option `--format` of a verb that writes such values; its help names the formats that render them."""
    *others, last = ("auto", *formats_for(kind))
    return output_option("--format", metavar="NAME", help=f"{', '.join(others)} or {last}.")


TraceFormat = Annotated[str, format_option("trace")]
DifferenceFormat = Annotated[str, format_option("difference")]
Output = Annotated[Path | None, output_option("--output", metavar="FILE", help="Write to a file.")]
OutputOrFolder = Annotated[
    str | None,
    output_option("--output", metavar="PATH", help="Write to a file; for several traces as json also into a FOLDER/."),
]
All = Annotated[bool, _target("--all", help="Every target that pyproject.toml names.")]
Columns = Annotated[
    str | None, output_option("--columns", metavar="LIST", help="Columns, such as step,signature,strides,storage.")
]
Match = Annotated[
    str | None,
    output_option("--match", metavar="LIST", help="Only these roles, operations or modules: scores,view,attn.*"),
]
Depth = Annotated[
    int | None,
    output_option("--depth", metavar="N", min=0, help="Fold what lies deeper than N inside composites; 0 folds all."),
]
TimeLimit = Annotated[
    float,
    running_option("--time-limit", metavar="SECONDS", help="When to stop measuring the behaviour of each version."),
]
Explain = Annotated[bool, output_option("--explain", help="Say in one sentence a step what it does and why.")]
Picture = Annotated[bool, output_option("--picture", help="Add a flow chart of the data to Markdown.")]

TARGET_HELP = (
    "A mechanism of the catalog (multi-head where none is given), path/to/file.py:Name, package.module:Name, or a name "
    "from pyproject.toml. Name is Python, such as build().attn, and running a target runs its code."
)
_Size = int | None


def _size(flag: str, help_: str) -> Any:
    return _sizes(flag, metavar="N", min=1, help=help_)


def _declared(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help=TARGET_HELP,
        ),
    ] = None,
    init: Annotated[
        str | None,
        _target(
            metavar="ARGS",
            help='What to call a class with, as Python, which is run: "D, n_head=H". Sizes are names in it.',
        ),
    ] = None,
    input_: Annotated[
        list[str] | None,
        _target("--input", metavar="SPEC", help='A tensor argument: "query: B Lq D", "ids: int[V] B L". Repeat.'),
    ] = None,
    with_: Annotated[
        list[str] | None,
        _target("--with", metavar="NAME=PYTHON", help="Another argument, as Python, which is run. Repeat."),
    ] = None,
    inside: Annotated[
        str | None,
        _target(
            metavar="MODULE",
            help="Only this module of the target, such as transformer.h.0.attn, with the arguments that it gets there.",
        ),
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
    window_rows: Annotated[_Size, _size("--window-rows", "Nh, windows along the height of a map.")] = None,
    window_columns: Annotated[_Size, _size("--window-columns", "Nw, windows along the width of a map.")] = None,
    latents: Annotated[_Size, _size("--latents", "Lz, latent queries.")] = None,
    selected: Annotated[_Size, _size("--selected", "Ls, keys that each query selects.")] = None,
    index_heads: Annotated[_Size, _size("--index-heads", "Hi, heads of the indexer.")] = None,
    d_index: Annotated[_Size, _size("--d-index", "Di, width of one indexer head.")] = None,
    d_in: Annotated[_Size, _size("--d-in", "Din, width of an input that has its own.")] = None,
    d_out: Annotated[_Size, _size("--d-out", "Dout, width of an output that has its own.")] = None,
    d_rope: Annotated[_Size, _size("--d-rope", "Dr, features of one head that are rotated.")] = None,
    kv_rank: Annotated[_Size, _size("--kv-rank", "Dc, rank of compressed keys and values.")] = None,
    query_rank: Annotated[_Size, _size("--query-rank", "Dcq, rank of compressed queries.")] = None,
    packed: Annotated[_Size, _size("--packed", "Ns, sequences that are packed on one axis.")] = None,
    buckets: Annotated[_Size, _size("--buckets", "Nb, buckets of relative distances.")] = None,
    dim: Annotated[
        list[str] | None,
        _sizes(metavar="NAME=EXPR", help="A dimension of your own, as arithmetic: T=10, or C=nh*hs. Repeat."),
    ] = None,
    causal: Annotated[bool, _built_in("--causal", help="Mask later keys.")] = False,
    padding: Annotated[bool, _built_in("--padding", help="Mask padded keys, B x 1 x 1 x Lk.")] = False,
    mask_value: Annotated[
        float | None, _built_in(metavar="X", help="What masked scores become: -inf or a large negative.")
    ] = None,
    dropout: Annotated[float | None, _built_in(metavar="P", help="Dropout of the weights, with --train.")] = None,
    no_bias: Annotated[bool, _built_in("--no-bias", help="Projections without bias.")] = False,
    device: Annotated[str | None, running_option(metavar="NAME", help="cpu, cuda, cuda:N or meta.")] = None,
    dtype: Annotated[
        DtypeName | None, running_option(metavar="NAME", help="float32, float64, float16 or bfloat16.")
    ] = None,
    seed: Annotated[int | None, running_option(metavar="N", min=0, help="Seed of parameters and inputs.")] = None,
    train: Annotated[bool, running_option("--train", help="Run in training mode, with dropout.")] = False,
    grad: Annotated[
        bool,
        running_option("--grad", help="Run with gradients: of the parameters, or the inputs where there are none."),
    ] = False,
    time_limit: Annotated[
        float | None, running_option(metavar="SECONDS", help="When to give up; for several targets, each.")
    ] = None,
    memory_limit: Annotated[
        str | None, running_option(metavar="SIZE", help="The most memory to allocate: 512MB, 4GB.")
    ] = None,
) -> None:
    """Declare the parameters of each verb that `takes_target` makes."""


def takes_target(verb: Callable[..., None], declares_targets: bool = False) -> Callable[..., None]:
    """Return a verb with the flags of a target in place of its first two parameters.

    The verb is called with a `TargetSpec` and a mapping of run options that have just what the user typed. A verb may
    declare its targets itself.
    """
    shared = dict(inspect.signature(_declared, eval_str=True).parameters)
    if declares_targets:
        del shared["target"]
    own = list(inspect.signature(verb, eval_str=True).parameters.values())[2:]
    limits = [shared.pop(name) for name in ("time_limit", "memory_limit")]
    limits = [limit for limit in limits if limit.name not in {parameter.name for parameter in own}]

    def called(**flags: Any) -> None:
        _limit(**{limit.name: flags.pop(limit.name) for limit in limits})
        declared = declared_by({name: flags.pop(name) for name in shared})
        verb(declared.spec(), declared.run(), **flags)

    return _with_parameters(called, verb, (*shared.values(), *limits, *own))


def takes_sizes(verb: Callable[..., None]) -> Callable[..., None]:
    """Return a verb with the flags of sizes in place of its first parameter, a mapping from symbols to numbers."""
    shared = {
        name: own for name, own in inspect.signature(_declared, eval_str=True).parameters.items() if name in SIZE_KEYS
    }
    own = list(inspect.signature(verb, eval_str=True).parameters.values())[1:]

    def called(**flags: Any) -> None:
        verb(declared_by({name: flags.pop(name) for name in shared}).spec().sizes, **flags)

    return _with_parameters(called, verb, (*own, *shared.values()))


def _with_parameters(
    called: Callable[..., None], verb: Callable[..., None], parameters: Iterable[inspect.Parameter]
) -> Callable[..., None]:
    """Return a function as the verb that typer sees: with its name, its help, and these parameters."""
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    called.__name__, called.__doc__ = verb.__name__, verb.__doc__
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in keywords}
    called.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]  # typer reads it
    return called


takes_targets = partial(takes_target, declares_targets=True)
"""As `takes_target`, for a verb that declares its targets itself."""


def declared_by(flags: Mapping[str, Any]) -> ProjectTarget:
    """Return the target that the flags of `takes_target` describe, by the names of its parameters.

    Raises AttnshapeError if the target's name is empty.
    """
    typed = {_FIELDS.get(name, name): value for name, value in flags.items() if value is not None}
    declared = ProjectTarget(**{"target": "", **typed})
    if "target" in typed:
        require_name(declared.target)
    return declared


TARGET_PARAMETERS = frozenset(inspect.signature(_declared).parameters) - {"time_limit", "memory_limit"}
"""The parameters that `declared_by` takes."""


def _limit(memory_limit: str | None, time_limit: float | None = None) -> None:
    """Apply the limits on this process. Raises AttnshapeError if a value is invalid."""
    if time_limit is not None:
        check_time_limit(time_limit)
        limit_time(time_limit)
    if memory_limit is not None:
        limit_memory(parse_memory(memory_limit))


_FIELDS = {"input_": "inputs", "with_": "arguments"}
"""The fields of `ProjectTarget` that have other names than the flags."""


def typed_command() -> str:
    """Return the command of this process; bytes that aren't text, as file names may have, are escaped."""
    return command_line(["attnshape", *sys.argv[1:]]).encode(errors="backslashreplace").decode()
