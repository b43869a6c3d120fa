"""`attnshape catalog`: lists the built-in mechanisms, shows one, or compares several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import indent
from typing import Annotated

import typer

from attnshape.cli.flags import output_option, takes_sizes, typed_command
from attnshape.cli.output import print_message, resolve_format, terminal_width, write
from attnshape.dims.symbols import ORDER
from attnshape.errors import AttnshapeError, Option
from attnshape.model.formatting import join_words
from attnshape.options.flags import command_line, flag_syntax, flag_words
from attnshape.targets.builtin.registry import CATALOG, DEFAULT, CaseDescription, MechanismDescription, describe


@takes_sizes
def catalog(
    sizes: Mapping[str, int],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="A mechanism, such as multi-head; several to compare.")
    ] = None,
    compare: Annotated[
        bool,
        output_option("--compare", help="Set parameters, FLOPs, cached bytes and shapes side by side, at these sizes."),
    ] = False,
) -> None:
    """List the built-in mechanisms; with NAME, show its formula, paper, sizes and code."""
    if compare:
        _compare(names or [], sizes)
        return
    if sizes:
        given = command_line(flag_words(Option("sizes", sizes)))
        raise AttnshapeError(
            ("only --compare takes ", Option("sizes", key=next(iter(sizes)))),
            f"the tensors of one mechanism at these sizes: attnshape trace {names[0] if names else DEFAULT} {given}",
        )
    if not names:
        width = max(len(entry) for entry in CATALOG)
        write("".join(f"{entry:<{width}}  {describe(entry).summary}\n" for entry in CATALOG), None)
        return
    if len(names) > 1:
        together = command_line(["attnshape", "catalog", "--compare", *names])
        raise AttnshapeError("catalog shows one mechanism", f"compare them: {together}")
    name = names[0]
    mechanism = describe(name)
    cases = "\n".join(_case(name, case) for case in mechanism.cases)
    formula, source = indent(mechanism.formula, "    "), indent(mechanism.source, "    ")
    write(
        f"{mechanism.summary}\n\nformula\n{formula}\n\nsource\n{source}\n\ncases\n{cases}\n\ncode\n\n{mechanism.code}",
        None,
    )


def _compare(names: Sequence[str], sizes: Mapping[str, int]) -> None:
    """Write the mechanisms side by side, each at those of the sizes that it takes."""
    if len(names) < 2:
        raise AttnshapeError(
            "--compare needs two mechanisms or more", "for example attnshape catalog --compare multi-head latent"
        )
    mechanisms = {name: describe(name) for name in names}
    notes = list(_sizes_not_taken(mechanisms, sizes))
    # these import torch, which the verb doesn't need otherwise
    from attnshape.cost.cached import kept_per_token
    from attnshape.options.spec import RunOptions, TargetSpec
    from attnshape.pipelines.trace import trace_request
    from attnshape.reporters.mechanisms import ComparedMechanism, mechanisms_markdown, mechanisms_text

    options = RunOptions(grad=True, cost=True, command=typed_command())
    compared = []
    for name, mechanism in mechanisms.items():
        own = {symbol: size for symbol, size in sizes.items() if mechanism.takes(symbol)}
        trace = trace_request(TargetSpec(name, sizes=own), options)
        kept = kept_per_token(trace, mechanism.cached)
        compared.append(ComparedMechanism(name, trace, mechanism.cached, kept))
    if resolve_format("auto", None) == "markdown":
        write(mechanisms_markdown(compared), None)
    else:
        write(mechanisms_text(compared, terminal_width()), None)
    for note in notes:
        print_message(note)


def _sizes_not_taken(mechanisms: Mapping[str, MechanismDescription], sizes: Mapping[str, int]) -> Iterator[str]:
    """Yield which mechanisms lack a size that others take. Raises AttnshapeError if none takes it."""
    for symbol in sizes:
        lacking = [name for name, mechanism in mechanisms.items() if not mechanism.takes(symbol)]
        if len(lacking) == len(mechanisms):
            taken = [other for other in ORDER if any(mechanism.takes(other) for mechanism in mechanisms.values())]
            flags = [part for other in taken for part in (", ", Option("sizes", key=other), f" ({other})")][1:]
            raise AttnshapeError(
                (f"none of {', '.join(mechanisms)} takes ", Option("sizes", key=symbol)), ("their sizes are ", *flags)
            )
        if lacking:
            flag = flag_syntax(Option("sizes", key=symbol))
            yield f"note: {join_words(lacking)} {'have' if len(lacking) > 1 else 'has'} no {flag}"


def _case(name: str, case: CaseDescription) -> str:
    sizes = "  ".join(f"{flag_words(Option('sizes', key=symbol))[0]} {symbol}" for symbol in case.sizes)
    flags = [flag_words(Option("options", key=option))[0] for option in case.options]
    lines = [f"    {name}:{case.name}  {case.summary}", f"        sizes    {sizes}"]
    if flags:
        lines.append(f"        options  {'  '.join(flags)}")
    return "\n".join(lines)
