"""`attnshape targets`: lists the attention in files and folders, without importing them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated

import typer

from attnshape.cli.flags import Output, format_option, output_option, typed_command
from attnshape.cli.jobs import normal_target
from attnshape.cli.output import check_writable, print_message, resolve_format, screen_for, write
from attnshape.errors import ExitStatus
from attnshape.model.formatting import pluralize
from attnshape.options.pyproject import FILE, project_targets
from attnshape.reporters.registry import find_renderer
from attnshape.targets.builtin.registry import CATALOG

if TYPE_CHECKING:
    from attnshape.model.targets import FoundTarget


def targets(
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="PATH", help="Python files and folders; this folder by default.")
    ] = None,
    write_: Annotated[
        bool, output_option("--write", help="Add them to pyproject.toml, each under a name of its own.")
    ] = False,
    format_: Annotated[str, format_option("targets")] = "auto",
    output: Output = None,
) -> None:
    """List the attention in files and folders, which are read and not run."""
    check_writable(output)
    render = find_renderer(resolve_format(format_, output, "text"), "targets")
    from attnshape.discovery.files import find_targets  # other verbs don't need it

    present = project_targets() if write_ else {}
    found = find_targets(paths or ["."], typed_command())
    if write_:
        _add_to_project(found.to_run, present)
    write(render(found, screen_for(output)), output)
    if found.unread:
        raise typer.Exit(ExitStatus.CANNOT)


def _add_to_project(found: Sequence[FoundTarget], present: Mapping[str, object]) -> None:
    """Write what pyproject.toml doesn't name yet into it, and say what was written."""
    from attnshape.options.write_targets import write_targets  # only --write needs it

    named = {str(table.get("target", "")) for table in present.values() if isinstance(table, dict)}
    named = {normal_target(target) for target in named}
    missing = [one for one in found if normal_target(one.target) not in named]
    names = target_names([one.target for one in missing], [*present, *CATALOG])
    written = write_targets(
        Path(FILE), {name: {"target": one.target} for name, one in zip(names, missing, strict=True)}
    )
    parts = [f"added to {FILE}: {', '.join(written)}"] if written else []
    parts += (
        [f"{FILE} names {pluralize(len(found) - len(missing), 'target')} already"] if len(missing) < len(found) else []
    )
    print_message("; ".join(parts) or "nothing was found to add")


def target_names(targets: Sequence[str], taken: Collection[str]) -> list[str]:
    """Return a name for each `file.py:Name`: of the class or function, with as much of the path as tells it apart.

    >>> target_names(["vit/cait.py:Attention", "vit/vit.py:Attention", "vit/vit.py:LocalAttention"], ["local"])
    ['cait-attention', 'vit-attention', 'local-attention']
    """
    parts = [_name_parts(target) for target in targets]
    lengths = [1] * len(parts)
    while True:
        names = ["-".join(own[-length:]) for own, length in zip(parts, lengths, strict=True)]
        counts = Counter(names)
        alike = [counts[name] > 1 or name in taken for name in names]
        longer = [length + (one and length < len(own)) for own, length, one in zip(parts, lengths, alike, strict=True)]
        if longer == lengths:
            break
        lengths = longer
    used = set(taken)
    for place, name in enumerate(names):
        number = 2
        while names[place] in used:
            names[place], number = f"{name}-{number}", number + 1
        used.add(names[place])
    return names


def _name_parts(target: str) -> list[str]:
    file, _, name = target.partition(":")
    words = [part for part in PurePath(file).with_suffix("").parts if part not in ("/", "..")]
    return [_kebab(word) for word in (*words, name)]


def _kebab(name: str) -> str:
    """Return a name in lower case with hyphens between its words.

    >>> _kebab("MultiHeadAttention"), _kebab("GPT2_attn")
    ('multi-head-attention', 'gpt2-attn')
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name)
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "target"
