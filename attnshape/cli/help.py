"""How `--help` reads: commands with whole sentences, options in groups, and examples at the end."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

TARGET, SIZES, BUILT_IN, RUNNING, CHECKING, ANNOTATING, COMPARING, OUTPUT = GROUPS = (
    "Target",
    "Sizes",
    "Built-in mechanisms only",
    "Running",
    "Checking",
    "Annotating",
    "Comparing",
    "Output",
)
"""The headings of options, in their order; `rich_help_panel` is what typer calls them."""
_OTHERS = "Options"

EXAMPLES: dict[str, tuple[str, ...]] = {
    "attnshape": (
        "attnshape trace model.py:Attention",
        "attnshape check .",
        "attnshape run --check train.py",
        "attnshape trace --help",
    ),
    "trace": (
        "attnshape trace",
        "attnshape trace multi-head --causal --queries 5 --keys 7",
        "attnshape trace model.py:Attention",
        'attnshape trace model.py:Attention --init "D, n_head=H" --input "x: B L D"',
        'attnshape trace model.py:Attention --expect "scores: B H L L"',
        "attnshape trace model.py:Attention --format json --output trace.json",
    ),
    "check": (
        "attnshape check model.py:Attention --claim causal",
        "attnshape check .",
        "attnshape check --all --format github",
    ),
    "explain": (
        "attnshape explain model.py:Attention",
        "attnshape explain model.py:Attention --train --output attention.md",
        "attnshape explain model.py:Attention --format notebook --output attention.ipynb",
    ),
    "annotate": (
        "attnshape annotate model.py:Attention",
        "attnshape annotate model.py:Attention --style comment --write",
    ),
    "diff": (
        "attnshape diff old.json new.json",
        "attnshape diff main:model.py model.py",
        "attnshape diff old/model.py:Attention model.py:Attention",
        "attnshape diff old.json model.py:Attention --fail-on size",
    ),
    "targets": ("attnshape targets", "attnshape targets src --write"),
    "rule": ("attnshape rule", "attnshape rule AS201"),
    "show": ("attnshape show trace.json --explain", "attnshape show trace.json --format html --output trace.html"),
    "catalog": (
        "attnshape catalog",
        "attnshape catalog multi-head",
        "attnshape catalog --compare multi-head grouped-query latent",
        "attnshape catalog --compare multi-head grouped-query --length 4096 --kv-heads 2",
    ),
    "glossary": ("attnshape glossary",),
    "run": (
        "attnshape run train.py --epochs 1",
        "attnshape run --check train.py --epochs 1",
        "attnshape run -m pytest tests",
    ),
}
"""The command lines at the end of each help, by the name of the verb; those of a verb begin with the simplest."""


def _write_examples(name: str, formatter: Any) -> None:
    """Write the examples, one a line, as they are typed."""
    with formatter.section("Examples"):
        for line in EXAMPLES[name]:
            formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class Verb(TyperCommand):
    """A verb whose help has its options in groups, and examples."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options below the headings of their groups."""
        records: dict[str, list[tuple[str, str]]] = {group: [] for group in ("Arguments", *GROUPS, _OTHERS)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if parameter.param_type_name == "argument":
                # typer adds a type of Python to the name
                records["Arguments"].append((parameter.metavar or record[0], record[1]))
            else:
                records[getattr(parameter, "rich_help_panel", None) or _OTHERS].append(record)
        # one width for all groups, so that their texts are in line
        names = max((len(name) for group in records.values() for name, _ in group), default=0)
        for group, rows in records.items():
            if rows:
                with formatter.section(group):
                    formatter.write_dl([(name.ljust(names), text) for name, text in rows])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples."""
        _write_examples(self.name or "", formatter)


class Verbs(TyperGroup):
    """The command, whose help has a whole sentence for each verb."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the verbs, each with the first sentence of its help."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.get_short_help_str(_LONGEST)) for name, verb in commands if verb])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, then what the exit status means."""
        _write_examples("attnshape", formatter)
        super().format_epilog(ctx, formatter)


_LONGEST = 200
"""The length up to which a verb's first sentence isn't cut."""
