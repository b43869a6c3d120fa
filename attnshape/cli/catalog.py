"""`attnshape catalog`: lists the built-in mechanisms, or shows one mechanism's formula, paper, sizes and code."""

from __future__ import annotations

from textwrap import indent
from typing import Annotated

import typer

from attnshape.cli.output import write
from attnshape.errors import Option
from attnshape.options.flags import flag_words
from attnshape.targets.builtin.registry import CATALOG, CaseDescription, describe


def catalog(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A mechanism, such as multi-head.")] = None,
) -> None:
    """List the built-in mechanisms; with NAME, show its formula, paper, sizes and code."""
    if name is None:
        width = max(len(entry) for entry in CATALOG)
        write("".join(f"{entry:<{width}}  {describe(entry).summary}\n" for entry in CATALOG), None)
        return
    mechanism = describe(name)
    cases = "\n".join(_case(name, case) for case in mechanism.cases)
    formula, source = indent(mechanism.formula, "    "), indent(mechanism.source, "    ")
    write(
        f"{mechanism.summary}\n\nformula\n{formula}\n\nsource\n{source}\n\ncases\n{cases}\n\ncode\n\n{mechanism.code}",
        None,
    )


def _case(name: str, case: CaseDescription) -> str:
    sizes = "  ".join(f"{flag_words(Option('sizes', key=symbol))[0]} {symbol}" for symbol in case.sizes)
    flags = [flag_words(Option("options", key=option))[0] for option in case.options]
    lines = [f"    {name}:{case.name}  {case.summary}", f"        sizes    {sizes}"]
    if flags:
        lines.append(f"        options  {'  '.join(flags)}")
    return "\n".join(lines)
