"""`attnshape catalog`: the built-in mechanisms; with a name, its formula, paper, sizes and code."""

from __future__ import annotations

from typing import Annotated

import typer

from attnshape.cli.flags import flag_words
from attnshape.cli.output import write
from attnshape.errors import Option
from attnshape.targets.builtin.registry import CATALOG, CaseDescription, describe


def catalog(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A mechanism, such as multi-head.")] = None,
) -> None:
    """List the built-in mechanisms; with NAME, show its formula, paper, sizes and code."""
    write(_one(name) if name is not None else _all(), None)


def _all() -> str:
    widest = max(len(name) for name in CATALOG)
    return "".join(f"{name:<{widest}}  {describe(name).summary}\n" for name in CATALOG)


def _one(name: str) -> str:
    mechanism = describe(name)
    cases = "\n".join(_case(name, case) for case in mechanism.cases)
    formula = "\n".join(f"    {line}".rstrip() for line in mechanism.formula.splitlines())
    source = "\n".join(f"    {line}".rstrip() for line in mechanism.source.splitlines())
    parts = [
        mechanism.summary,
        f"formula\n{formula}",
        f"source\n{source}",
        f"cases\n{cases}",
        f"code\n\n{mechanism.code}",
    ]
    return "\n\n".join(parts)


def _case(name: str, case: CaseDescription) -> str:
    sizes = "  ".join(f"{flag_words(Option('sizes', key=symbol))[0]} {symbol}" for symbol in case.sizes)
    flags = [flag_words(Option("options", key=option))[0] for option in case.options]
    lines = [f"    {name}:{case.name}  {case.summary}", f"        sizes    {sizes}"]
    if flags:
        lines.append(f"        options  {'  '.join(flags)}")
    return "\n".join(lines)
