"""`--all`, and targets with several sets of sizes: runs, output and exit status."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnshape.cli import batch
from attnshape.cli.jobs import Job
from attnshape.options.spec import RunOptions, TargetSpec
from tests.cli.running import Attnshape
from tests.projects.models import DOUBLE, ENTRY, FAILS, MISSING, RIGHT, SIZES, WRONG
from tests.reporters import sample_traces
from tests.sampling import sampled


@pytest.fixture(autouse=True)
def project(folder: Path) -> None:
    (folder / "model.py").write_text(RIGHT)
    (folder / "pyproject.toml").write_text(ENTRY + SIZES + DOUBLE)


def sizes_of(trace: dict[str, Any], symbols: str) -> dict[str, int]:
    return {symbol: trace["sizes"][symbol]["size"] for symbol in symbols}


def results(text: str) -> list[dict[str, Any]]:
    return list(json.loads(text)["results"])


def test_all_targets_at_all_their_sizes_in_order(attnshape: Attnshape) -> None:
    result = attnshape("trace --all --format json")
    assert (result.status, result.err) == (0, "")
    found = results(result.out)
    assert [(result["name"], result["sizes"]) for result in found] == [
        ("attention", {"B": 2, "L": 10}),
        ("attention", {"B": 1, "L": 1}),
        ("double", {}),
    ]
    assert [sizes_of(result["trace"], "BL") for result in found[:2]] == [{"B": 2, "L": 10}, {"B": 1, "L": 1}]
    assert sizes_of(found[2]["trace"], "BT") == {"B": 2, "T": 4}
    assert [result["trace"]["target"] for result in found] == [
        "model.py:Attention",
        "model.py:Attention",
        "model.py:double",
    ]


def test_target_with_several_sets_runs_each(attnshape: Attnshape) -> None:
    result = attnshape("trace attention --format markdown")
    assert (result.status, result.err) == (0, "")
    headings = [line for line in result.out.splitlines() if line.startswith("## ")]
    assert headings == ["## attention, B=2 L=10", "## attention, B=1 L=1", "## Summary"]
    assert result.out.endswith("**2 results: 2 fine**\n")


def test_target_with_one_set_is_a_single_trace(attnshape: Attnshape, folder: Path) -> None:
    (folder / "pyproject.toml").write_text(ENTRY + "sizes = { B = 3, L = 7 }")
    found = attnshape("trace attention --format json").trace
    assert found["schema"] == "attnshape/trace/1"
    assert sizes_of(found, "BL") == {"B": 3, "L": 7}


def test_each_result_has_its_own_command(attnshape: Attnshape) -> None:
    found = results(attnshape("trace --all --seed 3 --train --format json").out)
    commands = [result["trace"]["command"] for result in found]
    assert commands[1] == "attnshape trace attention --batch 1 --length 1 --seed 3 --train"
    for entry, command in zip(found, commands, strict=True):
        words = shlex.split(command)[1:]
        alone = attnshape(*words, "--format", "json").trace
        assert {**alone, "command": ""} == {**entry["trace"], "command": ""}


def test_typed_sizes_win_individually(attnshape: Attnshape) -> None:
    found = results(attnshape("trace attention --batch 5 --format json").out)
    assert [result["sizes"] for result in found] == [{"L": 10}, {"L": 1}]
    assert [sizes_of(result["trace"], "BL") for result in found] == [{"B": 5, "L": 10}, {"B": 5, "L": 1}]


def test_sets_made_equal_by_typed_sizes_are_merged(attnshape: Attnshape) -> None:
    found = attnshape("trace attention --batch 5 --length 6 --format json").trace
    assert sizes_of(found, "BL") == {"B": 5, "L": 6}


def test_custom_symbols_are_typed_or_listed(attnshape: Attnshape, folder: Path) -> None:
    (folder / "pyproject.toml").write_text(
        DOUBLE.replace("B T", "U T").replace("T = 4", 'T = 4, U = "2*T"') + "sizes = [{ T = 3 }, { U = 5 }]"
    )
    found = results(attnshape("trace double --format json").out)
    assert [sizes_of(result["trace"], "TU") for result in found] == [{"T": 3, "U": 6}, {"T": 4, "U": 5}]
    found = results(attnshape("trace double --dim T=7 --format json").out)
    assert [sizes_of(result["trace"], "TU") for result in found] == [{"T": 7, "U": 14}, {"T": 7, "U": 5}]


@pytest.mark.parametrize(
    ("toml", "status", "outcomes"),
    [
        (ENTRY + DOUBLE, 0, ["fine", "fine"]),
        (FAILS + ENTRY, 1, ["failed at step 1, model.py:27", "fine"]),
        (MISSING + ENTRY, 2, ["can't be carried out", "fine"]),
        (ENTRY + 'expect = ["scores: B H L D"]', 1, ["1 expectation not met"]),
        (MISSING + FAILS, 2, ["can't be carried out", "failed at step 1, model.py:27"]),
    ],
)
def test_summary_and_status(toml: str, status: int, outcomes: list[str], attnshape: Attnshape, folder: Path) -> None:
    (folder / "pyproject.toml").write_text(toml)
    result = attnshape("trace --all")
    assert (result.status, result.err) == (status, "")
    rows = result.out.partition("## Summary")[2].splitlines()[4:-2]
    assert [row.strip("| ").rpartition(" | ")[2].strip() for row in rows] == outcomes


def test_contradictory_sizes_fail_only_their_run(attnshape: Attnshape, folder: Path) -> None:
    (folder / "pyproject.toml").write_text(ENTRY + "sizes = [{ H = 8, Hkv = 3 }, { H = 4 }]")
    result = attnshape("trace attention --format json")
    first, second = results(result.out)
    assert result.status == 2
    assert "8/3 leaves 2" in first["error"]["message"]
    assert second["trace"]["sizes"]["H"]["size"] == 4
    # the error is also on stderr, since the output is JSON
    assert result.err.startswith("error: attention, H=8 Hkv=3: the sizes contradict each other")


@pytest.mark.parametrize(
    "broken",
    [
        "[tool.attnshape.targets.broken]\nnosuch = 3\n",
        "[tool.attnshape.targets.broken]\n",
        '[tool.attnshape.targets.broken]\ntarget = "average"\nheads = "many"\n',
        '[tool.attnshape.targets.broken]\ntarget = "average"\nsizes = [{ Q = 3 }]\n',
        '[tool.attnshape.targets]\nbroken = "average"\n',
    ],
)
def test_invalid_entry_does_not_affect_the_others(broken: str, attnshape: Attnshape, folder: Path) -> None:
    (folder / "pyproject.toml").write_text(broken + DOUBLE)
    result = attnshape("trace --all --format json")
    found = {entry["name"]: entry for entry in results(result.out)}
    assert result.status == 2
    assert "pyproject.toml: target 'broken'" in found["broken"]["error"]["message"]
    assert found["double"]["trace"]["complete"] is True
    alone = attnshape("trace broken")
    assert (alone.status, alone.out) == (2, "")
    assert "pyproject.toml: target 'broken'" in alone.err


def test_check_all(attnshape: Attnshape, folder: Path) -> None:
    (folder / "model.py").write_text(WRONG)
    (folder / "pyproject.toml").write_text(ENTRY + MISSING + DOUBLE)
    result = attnshape("check --all --format json")
    found = {entry["name"]: entry for entry in results(result.out)}
    assert result.status == 2
    assert [result["code"] for result in found["attention"]["report"]["findings"]] == ["AS201"]
    assert found["double"]["report"]["findings"] == []
    assert found["missing"]["error"]["message"] == "there is no file nosuch.py"
    ignored = attnshape("check --all --ignore AS2 --format json")
    assert [result["code"] for result in results(ignored.out)[0]["report"]["suppressed"]] == ["AS201"]


def test_invalid_claim_is_reported_with_its_target(attnshape: Attnshape, folder: Path) -> None:
    (folder / "pyproject.toml").write_text(ENTRY + 'claims = ["casual"]')
    for line in ("check attention", "check --all --format json"):
        result = attnshape(line)
        assert result.status == 2
        assert "pyproject.toml: target 'attention': the key claims 'casual' isn't a claim" in result.err
    typed = attnshape("check attention --claim casual")
    assert typed.err.startswith("error: --claim 'casual' isn't a claim")


@pytest.mark.parametrize("form", sampled(["text", "markdown", "github", "sarif"], ["text", "sarif"]))
def test_check_at_several_sizes_in_every_format(form: str, attnshape: Attnshape, folder: Path) -> None:
    (folder / "model.py").write_text(WRONG)
    result = attnshape(f"check attention --no-cache --format {form}")
    assert (result.status, result.err) == (1, "")
    assert "AS201" in result.out
    saved = attnshape(f"check attention --no-cache --format {form} --output all.txt")
    assert (saved.status, saved.out, saved.err) == (1, "", "")
    assert (folder / "all.txt").read_text() == result.out.replace(
        f"--format {form}", f"--format {form} --output all.txt"
    )
    if form == "github":
        assert len([line for line in result.out.splitlines() if line.startswith("::error file=model.py,line=")]) == 1


def test_match_without_steps_is_an_error_of_that_target(attnshape: Attnshape) -> None:
    result = attnshape("trace --all --match scores --format markdown")
    assert result.status == 2
    assert result.out.count("| `query @ key.transpose(-2, -1)`") == 2
    assert "## double\n\n**can't be carried out:** no step matches 'scores'" in result.out


@pytest.mark.parametrize(
    ("line", "error", "hint"),
    [
        ("trace --all attention", "'attention' is one target", "attnshape trace --all, or attnshape trace attention"),
        ("trace --all --init D", "--init is of one target", "attnshape trace NAME --init"),
        ("trace --all --input 'x: B'", "--input is of one target", "attnshape trace NAME --input"),
        ("trace --all --with m=None", "--with is of one target", "attnshape trace NAME --with"),
        ("trace --all --batch 3", "--batch is of one target", "attnshape trace NAME --batch"),
        ("trace --all --dim T=3", "--dim is of one target", "attnshape trace NAME --dim"),
        ("trace --all --causal", "--causal is of one target", "attnshape trace NAME --causal"),
        ("trace --all --expect 'y: B'", "--expect is of one target", "attnshape trace NAME --expect"),
        ("check --all --claim causal", "--claim is of one target", "attnshape check NAME --claim"),
        ("check --all ''", "the target's name is empty", "attnshape catalog"),
        ("trace --all --seed x", "--seed is 'x'", "--seed 1"),
        ("trace --all --dtype int", "--dtype is 'int'", ""),
        ("trace --all --format xml", "no format 'xml'", "json"),
        ("trace --all --format sarif", "--format sarif can't show", "auto, table, markdown, json"),
        (
            "trace --all --format mermaid",
            "--format mermaid can't show several traces",
            "auto, table, markdown, json, html",
        ),
        ("trace --all --format html --match scores", "--format html always has the whole trace", "table, markdown"),
        ("check --all --format table", "--format table can't show", "auto, text, markdown, json, html, github, sarif"),
        ("trace attention --batch none", "--batch is 'none'", "--batch 4"),
    ],
)
def test_bad_flags_are_reported_before_any_run(line: str, error: str, hint: str, attnshape: Attnshape) -> None:
    result = attnshape(line)
    assert (result.status, result.out) == (2, "")
    message, given_hint = result.err.splitlines()
    assert error in message
    assert "pyproject.toml: target" not in message
    assert hint in given_hint


@pytest.mark.parametrize(
    ("toml", "error"),
    [
        (None, "there is no pyproject.toml in the current folder"),
        ("", "pyproject.toml names no target"),
        ("[tool.attnshape.targets]", "pyproject.toml names no target"),
        ("[project]\nname = 'x'", "pyproject.toml names no target"),
        ("tool.attnshape.targets = 3", "isn't a table of targets"),
        ("[tool", "pyproject.toml can't be read"),
        ("a = " + "[" * 5000, "pyproject.toml can't be read"),
        ("a = " + "9" * 5000, "pyproject.toml can't be read"),
    ],
)
def test_project_without_targets(toml: str | None, error: str, attnshape: Attnshape, folder: Path) -> None:
    (folder / "pyproject.toml").unlink()
    if toml is not None:
        (folder / "pyproject.toml").write_text(toml)
    result = attnshape("trace --all")
    assert (result.status, result.out) == (2, "")
    message, hint = result.err.splitlines()
    assert error in message
    if "names no target" in error or "there is no" in error:
        assert '[tool.attnshape.targets.attention], and below it target = "model.py:Attention"' in hint


HOSTILE = [
    "a\nb",
    "\x1b[31mred",
    "[bold]x[/]",
    "a|b",
    "`x`",
    "../..",
    "/etc/passwd",
    "<b>",
    "##[error]x",
    "-x",
    "é 注意",
    "%s{}",
]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("form", ["table", "markdown", "json"])
def test_hostile_target_names(name: str, form: str, attnshape: Attnshape, folder: Path) -> None:
    header = DOUBLE.replace("targets.double", f"targets.{json.dumps(name)}")
    (folder / "pyproject.toml").write_text(header + "sizes = [{ T = 2 }, { T = 3 }]\n" + MISSING)
    result = attnshape("trace", "--all", "--format", form)
    assert result.status == 2
    assert all(line.isprintable() for line in (*result.out.splitlines(), *result.err.splitlines()))
    if form == "json":
        assert [entry["name"] for entry in results(result.out)] == [name, name, "missing"]
        command = shlex.split(results(result.out)[0]["trace"]["command"])[1:]
        assert attnshape(command[0], "--format", "json", *command[1:]).status == 0


def test_missing_device_fails_only_its_target(attnshape: Attnshape, folder: Path) -> None:
    (folder / "pyproject.toml").write_text(DOUBLE + 'device = "cuda:63"\n' + ENTRY)
    result = attnshape("trace --all --format json")
    assert result.status == 2
    first, second = results(result.out)
    assert "cuda:63" in first["error"]["message"]
    assert second["trace"]["device"] == "cpu"


def test_internal_error_fails_only_its_target(attnshape: Attnshape, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnshape.pipelines import trace as pipeline

    real = pipeline.trace_request

    def broken(request: Any, settings: Any, **others: Any) -> Any:
        if request.sizes.get("B") == 2:
            raise ZeroDivisionError("a [red]mistake[/red]\n")
        return real(request, settings, **others)

    monkeypatch.setattr(pipeline, "trace_request", broken)
    result = attnshape("trace --all --format json")
    assert result.status == 2
    first, *others = results(result.out)
    line = first["error"]["message"].partition("line ")[2].partition(":")[0]
    assert line.isdecimal()
    assert first["error"] == {
        "message": f"internal error in cli.trace.trace_job, line {line}: ZeroDivisionError: a [red]mistake[/red]",
        "hint": "run it again with ATTNSHAPE_DEBUG=1 in the environment, and report what it prints",
    }
    assert [result["trace"]["complete"] for result in others] == [True, True]


@pytest.mark.parametrize(
    ("word", "suggestion"), [("attentoin", "attention"), ("doubel", "double"), ("averag", "average")]
)
def test_unknown_target_suggests_a_similar_one(word: str, suggestion: str, attnshape: Attnshape) -> None:
    result = attnshape(f"trace {word}")
    assert result.status == 2
    assert f"there is no mechanism '{word}' in the catalog, nor a target in pyproject.toml" in result.err
    assert f"did you mean {suggestion}?" in result.err


def test_undecodable_bytes_are_escaped_in_the_command(attnshape: Attnshape, folder: Path) -> None:
    for line in (("trace", "--all"), ("trace", "average")):
        result = attnshape(*line, "--format", "json", "--output", "all\udcff.json")
        assert (result.status, result.err) == (0, "")
        (saved,) = folder.glob("all*.json")
        assert json.loads(saved.read_text())["command"].endswith("'all\\udcff.json'")


def test_names_are_escaped_in_the_progress_line(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []

    class Recorder:
        def __enter__(self) -> Any:
            return messages.append

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(batch, "Progress", Recorder)
    job = Job("a\n\x1b[31m", {"B": 2}, TargetSpec("average"), RunOptions())

    def run(_: Job, progress: Callable[[str], None]) -> Any:
        progress("running the target")
        return sample_traces.multi_head()

    (outcome,) = batch.run_jobs([job], run)
    assert outcome.name == job.name
    assert messages == ["1 of 1: a\\n\\x1b[31m, B=2: running the target"]


def test_python_api_takes_one_set(attnshape: Attnshape) -> None:
    import attnshape as package

    with pytest.raises(package.AttnshapeError, match="lists 2 sets of sizes"):
        package.trace("attention")
    assert package.trace("attention", B=1, L=2).sizes["L"].size == 2
