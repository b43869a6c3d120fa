"""Generated programs through trace, record, check and annotate: nothing fails, and watching them changes nothing."""

from __future__ import annotations

import json
import shlex
import textwrap
import time
from pathlib import Path

from hypothesis.strategies import SearchStrategy

from attnshape.dims.symbols import SYMBOLS_BY_NAME
from tests.fuzz.cases import Family, Verdict, checked
from tests.fuzz.generated_programs import PROGRAMS, Program
from tests.fuzz.harness import Command, Harness, Outcome, changes, contents
from tests.robust.output_parsers import assert_drawn

_INTERNAL = ("the recorder failed", "the check failed", "the comparison failed", "attnshape itself failed", '"broken"')
_SCRIPT = """\
import contextlib, hashlib, importlib.util, random, sys

import torch

def tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)
    elif hasattr(value, "__dict__"):
        yield from tensors(vars(value))

def digest(value):
    found = hashlib.sha256()
    for tensor in tensors(value):
        found.update(repr((tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad)).encode())
        found.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes() if tensor.dim() else b"")
    return found.hexdigest()

torch.manual_seed({seed})
random.seed({seed})
spec = importlib.util.spec_from_file_location("generated", {file!r})
module = importlib.util.module_from_spec(spec)
sys.modules["generated"] = module
spec.loader.exec_module(module)
B, L, D, H = {B}, {L}, {D}, {H}
inputs = torch.randn(B, L, D, requires_grad={grad})
if {is_module}:
    target, rest = getattr(module, {name!r})(D, H), ()
else:
    target, rest = getattr(module, {name!r}), ([torch.randn(D, D) for _ in range(4)], H)
{record}
with recording:
    result = target(inputs, *rest)
    print("printed", result.__class__.__name__)
print(digest(result))
if {grad}:
    total = sum(tensor.double().sum() for tensor in tensors(result) if tensor.requires_grad)
    if isinstance(total, torch.Tensor):
        total.backward()
        print(digest([inputs.grad] if inputs.grad is not None else []))
        if {is_module}:
            print(digest([each.grad for each in target.parameters() if each.grad is not None]))
print(digest(torch.get_rng_state()), random.random(), torch.is_grad_enabled(), torch.get_default_dtype())
{save}
sys.exit(5)
"""
_RECORD = """\
import attnshape
recording = attnshape.record(sizes=dict(B=B, L=L, D=D, H=H))"""
_SAVE = """\
with open("recorded.json", "w", encoding="utf-8") as stream:
    stream.write(recording.trace.to_json())"""


def programs(harness: Harness) -> SearchStrategy[Program]:
    """Return a strategy for programs."""
    return PROGRAMS


def target_words(program: Program) -> tuple[str, ...]:
    """Return the words that name the program's target and its sizes."""
    words = [f"./{program.file}:{program.name}", "--input", "inputs: B L D"]
    if program.is_module:
        words += ["--init", "D, H"]
    else:
        words += ["--with", "weights=[torch.eye(D) * n for n in range(1, 5)]", "--with", "heads=H"]
    for symbol, size in program.sizes:
        words += [SYMBOLS_BY_NAME[symbol].flag, str(size)]
    return tuple(words)


def attempt(program: Program, harness: Harness) -> Verdict:
    """Trace, record, check and annotate the program."""
    verdict = Verdict(valid=True)
    started = time.monotonic()
    seconds: dict[str, float] = {}
    with harness.case_folder({program.file: program.source.encode(), **_scripts(program)}) as folder:
        for name, step in (("trace", _trace), ("record", _record), ("check", _check), ("annotate", _annotate)):
            begun = time.monotonic()
            step(program, folder, harness, verdict)
            seconds[name] = time.monotonic() - begun
    verdict.work = seconds
    verdict.seconds = time.monotonic() - started
    return verdict


def _scripts(program: Program) -> dict[str, bytes]:
    values = {**dict(program.sizes), "file": program.file, "name": program.name, "seed": program.seed}
    values |= {"grad": program.grad, "is_module": program.is_module}
    plain = _SCRIPT.format(**values, record="recording = contextlib.nullcontext()", save="")
    recorded = _SCRIPT.format(**values, record=_RECORD, save=_SAVE)
    return {"run_plain.py": plain.encode(), "run_recorded.py": recorded.encode()}


def _run(
    words: tuple[str, ...],
    folder: Path,
    harness: Harness,
    verdict: Verdict,
    statuses: tuple[int, ...],
    *written: str,
    width: int = 100,
) -> Outcome:
    before = contents(folder)
    command = Command(words=words, fork_server=words[0] == "annotate", environment={"COLUMNS": str(width)})
    outcome = harness.run(command, folder)
    verdict.statuses.append(outcome.status)
    found = [*outcome.problems(statuses), *changes(before, contents(folder), written)]
    verdict.problems += [f"{words[0]}: {problem}" for problem in found]
    return outcome


def _trace(program: Program, folder: Path, harness: Harness, verdict: Verdict) -> None:
    words = ("trace", *target_words(program), "--format", "json", "--output", "saved.json")
    outcome = _run(words, folder, harness, verdict, (int(program.fails),), "saved.json")
    if outcome.status not in (0, 1) or not (folder / "saved.json").exists():
        return
    text = (folder / "saved.json").read_text(encoding="utf-8")
    checked(verdict, "trace: the json", lambda: assert_drawn("json", text, 100))
    _refuse_internal("trace", text, verdict)
    if outcome.status == 1 and not program.fails:
        verdict.problems.append(f"trace: {json.loads(text)['failure']}")
    format_, explain, width = (
        ("table", "markdown")[program.seed % 2],
        program.seed % 3 == 0,
        (40, 80, 100, 200)[program.seed % 4],
    )
    words = ("show", "saved.json", "--format", format_, *["--explain"] * explain)
    shown = _run(words, folder, harness, verdict, (0,), width=width)
    checked(verdict, f"show: the {format_}", lambda: assert_drawn(format_, shown.out, width, explain))


def _record(program: Program, folder: Path, harness: Harness, verdict: Verdict) -> None:
    before = contents(folder)
    plain, recorded = (harness.run(Command(script=name), folder) for name in ("run_plain.py", "run_recorded.py"))
    verdict.problems += changes(before, contents(folder), ["recorded.json"])
    if plain.status != (1 if program.fails else 5):
        verdict.problems.append(f"the program itself fails: {plain.err[-500:]}")
        return
    compared = ("status", "out") if program.fails else ("status", "out", "err")
    differing = [name for name in compared if getattr(plain, name) != getattr(recorded, name)]
    for name in differing:
        verdict.problems.append(f"record: {name} is {getattr(recorded, name)!r}, and without {getattr(plain, name)!r}")
    if not differing and not program.fails:
        text = (folder / "recorded.json").read_text(encoding="utf-8")
        checked(verdict, "record: the json", lambda: assert_drawn("json", text, 100))
        _refuse_internal("record", text, verdict)
    (folder / "recorded.json").unlink(missing_ok=True)


def _check(program: Program, folder: Path, harness: Harness, verdict: Verdict) -> None:
    words = ("check", *target_words(program), "--format", "json")
    # what it can't decide about unusual code makes the status 2, with the whole report
    outcome = _run(words, folder, harness, verdict, (0,) if program.right else (0, 1, 2))
    _refuse_internal("check", outcome.out, verdict)
    if not outcome.out and program.fails and outcome.status == 2:
        return
    if not outcome.out:
        verdict.problems.append(f"check: no report: {outcome.err[-300:]!r}")
        return
    report = json.loads(outcome.out)
    errors = [finding for finding in report["findings"] if finding["level"] == "error"]
    if program.right and errors:
        verdict.problems.append(f"check: {errors[0]}")


def _annotate(program: Program, folder: Path, harness: Harness, verdict: Verdict) -> None:
    if program.fails:
        return
    before = harness.run(Command(script="run_plain.py"), folder)
    style = ("--style", "comment") if program.seed % 3 == 0 else ()
    outcome = _run(
        ("annotate", *target_words(program), *style, "--write"), folder, harness, verdict, (0,), program.file
    )
    if outcome.status:
        return
    source = (folder / program.file).read_bytes()
    checked(verdict, "annotate: the source", lambda: compile(source, "annotated", "exec"))
    after = harness.run(Command(script="run_plain.py"), folder)
    for name in ("status", "out", "err"):
        if getattr(before, name) != getattr(after, name):
            verdict.problems.append(
                f"annotate: {name} is then {getattr(after, name)!r}, before {getattr(before, name)!r}"
            )


def _refuse_internal(verb: str, text: str, verdict: Verdict) -> None:
    for phrase in _INTERNAL:
        if phrase in text:
            place = text.index(phrase)
            verdict.problems.append(f"{verb}: {text[place : place + 300]!r}")


def describe(program: Program) -> str:
    """Return the command and the source."""
    body = program.source.partition("class Pair")[2].partition("\n\n\n")[2]
    flavour = "right" if program.right else "any"
    return f"{flavour}: {shlex.join(('attnshape', 'trace', *target_words(program)))}\n{textwrap.indent(body, '  > ')}"


FAMILY = Family("programs", programs, attempt, describe, fixed_cases=4, long_cases=2_000)
