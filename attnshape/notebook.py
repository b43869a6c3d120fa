"""The line magic `%attnshape` of IPython and notebooks, for the names that a notebook has.

`%load_ext attnshape` registers it. Nothing here imports IPython, whose shell is passed in.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import typer.main

from attnshape import api
from attnshape.cli.app import UsageError, app, usage_error
from attnshape.cli.flags import TARGET_PARAMETERS, declared_by
from attnshape.cli.output import print_error
from attnshape.errors import AttnshapeError, did_you_mean
from attnshape.options.flags import flag_syntax
from attnshape.options.pyproject import ProjectTarget, project_targets
from attnshape.options.spec import parse_expect
from attnshape.targets.builtin.registry import CATALOG

if TYPE_CHECKING:
    from attnshape.model.difference import Difference
    from attnshape.model.explanation import Explanation
    from attnshape.model.report import Report
    from attnshape.model.trace import Trace

_VERBS = ("trace", "check", "explain", "diff")
_RUN_FLAGS = {"check": {"seed", "train"}, "explain": {"device", "dtype", "seed", "train"}}
"""The flags that say how a target runs, of the verbs that don't take all of them."""
_USAGE = "for example %attnshape trace NAME, where NAME is a module, a class or a function of the notebook"


def load_ipython_extension(shell: Any) -> None:
    """Register the line magic; IPython calls this for `%load_ext attnshape`."""
    shell.register_magic_function(partial(attnshape_magic, shell), "line", "attnshape")


def attnshape_magic(shell: Any, line: str) -> Trace | Report | Explanation | Difference | None:
    """Return what `%attnshape VERB NAME …` asks for; None, with a message on standard error, where that isn't possible.

    The verbs are `trace`, `check`, `explain` and `diff`, with the flags of the command line that describe a target and
    how it runs. A name, also with attributes and items, is one of the notebook's namespace, else a target of the
    command line. So is `NAME` in `--with mask=NAME`.

    Args:
        shell: IPython's shell, which has the namespace and evaluates the names in it.
        line: What follows `%attnshape`.

    Returns:
        The trace, the report, the article or the difference, which displays itself.
    """
    words: list[str] = []
    try:
        words = _split(line)
        return _result(shell, words)
    except AttnshapeError as error:
        print_error(error.written_in(flag_syntax))
    except UsageError as error:
        print_error(usage_error(error, words))
    return None


def _split(line: str) -> list[str]:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise AttnshapeError(f"%attnshape can't read its line: {error}", "close each quote") from None
    if not words:
        raise AttnshapeError("%attnshape needs a verb and a name", _USAGE)
    if words[0] not in _VERBS:
        others = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
        how = f"in a cell: !attnshape {words[0]}" if words[0] in others else did_you_mean(words[0], _VERBS)
        raise AttnshapeError(f"%attnshape has no verb {words[0]!r}, only {', '.join(_VERBS)}", how)
    return words


def _result(shell: Any, words: list[str]) -> Trace | Report | Explanation | Difference:
    verb, *rest = words
    given = _parsed(verb, rest)
    names = _names(verb, given)
    declared = declared_by({name: value for name, value in given.items() if name in TARGET_PARAMETERS - {"target"}})
    keywords = _keywords(shell, declared)
    if verb in _RUN_FLAGS:
        run: dict[str, Any] = dict(declared.run())
        if unknown := run.keys() - _RUN_FLAGS[verb]:
            raise AttnshapeError(f"%attnshape {verb} takes no --{min(unknown)}", "leave it out")
        target = _resolved(shell, names[0])
        if verb == "explain":
            return api.explain(target, **keywords, **run)
        limit: dict[str, Any] = {"time_limit": given["time_limit"]} if "time_limit" in given else {}
        return api.check(target, claims=tuple(given.get("claim", ())), **keywords, **run, **limit)
    if verb == "trace":
        expect = dict(parse_expect(given.get("expect", ())))
        return _trace(_resolved(shell, names[0]), declared, keywords, expect=expect)
    sides = [_resolved(shell, name) for name in names]
    old, new = (side if _is_trace(side) else _trace(side, declared, keywords, behaviour=True) for side in sides)
    return api.diff(old, new)


def _trace(target: Any, declared: ProjectTarget, keywords: Mapping[str, Any], **more: Any) -> Trace:
    run: dict[str, Any] = dict(declared.run())
    return api.trace(target, **keywords, **run, **more)


def _parsed(verb: str, words: list[str]) -> dict[str, Any]:
    """Return the flags and names that were typed, by parameter. Raises UsageError if one is unknown."""
    group: Any = typer.main.get_command(app)
    context = group.get_command(None, verb).make_context(verb, list(words))
    given = {
        name: value
        for name, value in context.params.items()
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }
    known = {*TARGET_PARAMETERS, "targets", "old", "new"}
    known |= {"check": {"claim", "time_limit"}, "trace": {"expect"}, "diff": {"expect"}}.get(verb, set())
    if unknown := [name for name in given if name not in known]:
        flag = unknown[0].rstrip("_").replace("_", "-")
        raise AttnshapeError(
            f"%attnshape {verb} takes no --{flag}", "leave it out: the result is a value that displays itself"
        )
    return given


def _names(verb: str, given: Mapping[str, Any]) -> list[str]:
    names = {
        "trace": [given.get("target")],
        "explain": [given.get("target")],
        "check": given.get("targets"),
        "diff": [given.get("old"), given.get("new")],
    }
    found = [name for name in names[verb] or () if name]
    if len(found) != (2 if verb == "diff" else 1):
        raise AttnshapeError(f"%attnshape {verb} takes {'two names' if verb == 'diff' else 'one name'}", _USAGE)
    return found


def _keywords(shell: Any, declared: ProjectTarget) -> dict[str, Any]:
    """Return the target's options as the Python API takes them."""
    spec = declared.spec()
    variables = shell.user_ns
    arguments = {
        name: variables[text] if text in variables and text not in spec.sizes else text
        for name, text in spec.arguments.items()
    }
    keywords = {
        "init": spec.init,
        "inputs": spec.inputs,
        "arguments": arguments,
        "inside": spec.inside,
        "options": spec.options,
    }
    return {**keywords, **spec.sizes}


def _resolved(shell: Any, name: str) -> Any:
    """Return what a name of the notebook stands for; the name itself where the notebook has none."""
    first = name.partition(".")[0].partition("[")[0].partition("(")[0].strip()
    if first not in shell.user_ns:
        if name.isidentifier() and name not in {*CATALOG, *project_targets()}:
            raise AttnshapeError(
                f"the notebook has no name {name!r}",
                "run the cell that defines it, or name a target as on the command line, such as model.py:Attention",
            )
        return name
    try:
        return shell.ev(name)
    except Exception as error:
        raise AttnshapeError(f"{name} can't be evaluated: {type(error).__name__}: {error}", _USAGE) from error


def _is_trace(value: object) -> bool:
    from attnshape.model.trace import Trace

    return isinstance(value, Trace)
