"""From what a program's processes captured to the summary of its attention: merges, describes and verifies it."""

from __future__ import annotations

import ast
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from attnshape.errors import AttnshapeError
from attnshape.model.program import (
    AttentionSummary,
    CapturedAttention,
    CapturedTensor,
    ProcessCaptures,
    ProgramSummary,
    UncalledAttention,
)
from attnshape.model.trace import Trace, read_trace
from attnshape.options.flags import command_line, flag_words
from attnshape.options.spec import TargetSpec
from attnshape.programs.symbols import describe_target, first_sizes, why_unwritable
from attnshape.runtime.processes import package_command

_SECONDS_EACH = 60
_SECONDS_ALL = 180
_MOST_AT_A_TIME = 4
_LARGE = 2e10
"""The multiplications of one call beyond which a trace runs on the meta device."""
_HARMLESS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Pass)


@dataclass
class Watching:
    """What `attnshape.watch()` watches."""

    summary: ProgramSummary | None = None
    """The summary; None before the block has ended, and under `attnshape run`, which reports at its end."""


def summarize(captures: Sequence[ProcessCaptures], progress: Callable[[str], None] = lambda _: None) -> ProgramSummary:
    """Return the summary of a program; a process for each attention verifies it at other sizes."""
    kept, notes = _of_first_rank(captures)
    attentions = _merged(kept)
    until = time.monotonic() + _SECONDS_ALL

    def verified(captured: CapturedAttention) -> AttentionSummary:
        if time.monotonic() > until:
            why = f"the time for it, {_SECONDS_ALL} seconds, was over"
            return AttentionSummary(captured=captured, sizes=first_sizes(captured), why_not=why)
        progress(f"verifying {captured.name} in a process of its own")
        return _summary_of(captured)

    with ThreadPoolExecutor(max(1, min(_MOST_AT_A_TIME, (os.cpu_count() or 1) // 2))) as pool:
        summaries = list(pool.map(verified, attentions))
    notes += [note for one in kept for note in one.problems]
    if any(not one.is_final for one in kept):
        notes.append("a process was killed: there may have been more calls in its last seconds")
    is_compiled = any(one.is_compiled for one in captures)
    if is_compiled:
        notes.append("calls inside of what torch.compile compiled can't be seen, and aren't counted")
    return ProgramSummary(attentions=tuple(summaries), uncalled=_uncalled(kept), notes=tuple(dict.fromkeys(notes)))


def _of_first_rank(captures: Sequence[ProcessCaptures]) -> tuple[list[ProcessCaptures], list[str]]:
    """Return the captures without those of other ranks, and a note that says how many there are."""
    kept = [one for one in captures if not one.rank]
    world = max((one.world or 0 for one in captures), default=0)
    return kept, [f"rank 0 of {world}; the others aren't shown"] if world > 1 else []


def _merged(captures: Sequence[ProcessCaptures]) -> list[CapturedAttention]:
    """Return each attention once, with the calls of all processes."""
    merged: dict[bytes, CapturedAttention] = {}
    for one in (one for process in captures for one in process.attentions):
        module = "__main__" if one.is_main else one.module
        kinds = {name: _kind(value) for name, value in one.arguments.items()}
        key = msgspec.json.encode([one.file, module, one.name, one.constructor, kinds])
        known = merged.setdefault(key, one)
        if known is not one:
            known.calls += one.calls
            known.recomputed += one.recomputed
            known.modules = max(known.modules, one.modules)
            for seen in one.sizes:
                same = next((other for other in known.sizes if other.shapes == seen.shapes), None)
                if same is None:
                    known.sizes.append(seen)
                else:
                    same.calls += seen.calls
    return list(merged.values())


def _kind(value: object) -> object:
    return (len(value.shape), value.dtype) if isinstance(value, CapturedTensor) else type(value).__name__


def _uncalled(captures: Sequence[ProcessCaptures]) -> tuple[UncalledAttention, ...]:
    called = {(one.file, one.name) for process in captures for one in process.attentions}
    found = {(one.file, one.name): one for process in captures for one in process.uncalled}
    return tuple(one for key, one in found.items() if key not in called)


_FAILS = "run alone, as the command above does, it fails"


def _summary_of(captured: CapturedAttention) -> AttentionSummary:
    """Describe one attention as a target, and verify that in a clean process."""
    sizes = first_sizes(captured)
    target, why = target_of(captured)
    unwritable = why_unwritable(captured)
    if not target or unwritable:
        return AttentionSummary(captured=captured, sizes=sizes, why_not=why or unwritable)
    problem, fails, words = "its arguments can't be written as Python", False, [target]
    for spec in describe_target(target, captured):
        words = [target, *(word for option in spec.given_options() for word in flag_words(option))]
        if _work(spec.sizes) > _LARGE:
            words += ["--device", "meta"]
        trace, failure = _traced(words)
        if trace is not None:
            # where arguments were worked out, some sizes may be none of the program's
            known = {name: size.size for name, size in trace.sizes.items() if size.origin != "default"}
            scores, kept = _scores(trace) if len(known) == len(trace.sizes) else (None, True)
            return AttentionSummary(
                captured=captured,
                command=command_line(["attnshape", "trace", *words]),
                target=_table(spec),
                sizes=known,
                scores_bytes=scores,
                are_scores_kept=kept,
                verified_at=trace.verified_at,
            )
        problem = failure
        fails = problem.startswith(_FAILS)
    command = command_line(["attnshape", "trace", *words]) if fails else ""
    return AttentionSummary(captured=captured, command=command, sizes=sizes, why_not=problem)


def target_of(captured: CapturedAttention) -> tuple[str, str]:
    """Return the name of a captured class as a target, or why a process can't import it."""
    if "." in captured.name:
        return "", "it is defined inside another class or a function, where it can't be imported"
    if captured.is_library:
        package, _, _ = captured.module.partition(".")
        module = "torch.nn" if package == "torch" else captured.module
        return f"{module}:{captured.name}", ""
    if not captured.file.endswith(".py") or not Path(captured.file).is_file():
        return "", "it isn't defined in a file"
    path = Path(captured.file)
    where = str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
    if captured.is_main and not _only_defines(captured.file):
        return "", (
            f"to import {where} would run the program again: put what runs it under "
            "if __name__ == '__main__', or the class into a module"
        )
    return f"{where}:{captured.name}", ""


def _only_defines(file: str) -> bool:
    """Return whether a script only defines things when it is imported."""
    try:
        body = ast.parse(Path(file).read_text(encoding="utf-8")).body
    except (OSError, SyntaxError, ValueError):
        return False
    return all(_is_harmless(statement) for statement in body)


def _is_harmless(node: ast.stmt) -> bool:
    match node:
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value) | ast.Expr(value=value):
            return not any(isinstance(one, ast.Call | ast.Await | ast.NamedExpr) for one in ast.walk(value))
        case ast.AnnAssign():
            return True
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__")), orelse=orelse):
            return all(_is_harmless(one) for one in orelse)
        case ast.If(body=body, orelse=orelse):
            return all(_is_harmless(one) for one in (*body, *orelse))
        case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=finalbody):
            inner = [one for handler in handlers for one in handler.body]
            return all(_is_harmless(one) for one in (*body, *inner, *orelse, *finalbody))
    return isinstance(node, _HARMLESS)


def _work(sizes: object) -> float:
    """Return about how many multiplications one call of attention takes."""
    numbers = {name: size for name, size in dict(sizes).items() if isinstance(size, int)}  # type: ignore[call-overload]
    length = max(numbers.get(name, 1) for name in ("L", "Lq", "Lk"))
    width = numbers.get("D") or numbers.get("H", 8) * numbers.get("Dk", 64)
    return numbers.get("B", 1) * length * width * (4.0 * width + 2.0 * length)


def _traced(words: Sequence[str]) -> tuple[Trace | None, str]:
    """Return the trace of a target from a process of its own, or why there is none."""
    with tempfile.TemporaryDirectory(prefix="attnshape-") as folder:
        file = Path(folder) / "trace.json"
        limits = ["--time-limit", str(_SECONDS_EACH), "--format", "json", "--output", str(file)]
        command, environment = package_command("attnshape", ["trace", *words, *limits])
        try:
            done = subprocess.run(
                command,
                env=environment,
                capture_output=True,
                text=True,
                timeout=2 * _SECONDS_EACH,
                stdin=subprocess.DEVNULL,
                errors="replace",
            )
            trace = read_trace(file) if file.is_file() else None
        except (OSError, subprocess.SubprocessError, AttnshapeError) as error:
            return None, f"{type(error).__name__}"
    if trace is None:
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        return None, errors[0].removeprefix("error: ") if errors else f"attnshape trace ended with {done.returncode}"
    if trace.failure is not None:
        return None, f"{_FAILS}: {trace.failure.error.splitlines()[0] if trace.failure.error else ''}"
    if not trace.complete:
        return None, "the trace of it is incomplete"
    return trace, ""


def _scores(trace: Trace) -> tuple[int | None, bool]:
    """Return the bytes of the scores, and whether they exist as a tensor."""
    for step in trace.steps:
        if step.role == "scores" and step.outputs:
            return step.outputs[0].tensor.bytes, True
    for step in trace.steps:
        if isinstance(step.avoided, msgspec.Struct):
            return step.avoided.bytes, False
    return None, True


def _table(spec: TargetSpec) -> dict[str, object]:
    """Return a target as pyproject.toml has it."""
    table: dict[str, object] = {"target": spec.target}
    if spec.init is not None:
        table["init"] = spec.init
    if spec.inputs:
        table["inputs"] = [f"{name}: {text}" for name, text in spec.inputs.items()]
    if spec.arguments:
        table["with"] = dict(spec.arguments)
    if spec.sizes:
        table["sizes"] = dict(spec.sizes)
    return table
