"""`attnshape diff`: its inputs, exit statuses and error messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from attnshape.comparison.snapshot import snapshot_of, write_snapshot
from attnshape.model.trace import Trace
from tests.cli.running import Attnshape
from tests.reporters.hostile_text import with_text
from tests.reporters.sample_traces import every_text, failed, multi_head, trace_of

MODEL = """
from helper import scaled

def attention(q, k):
    return scaled(q @ k.mT).softmax(-1)
"""


@pytest.fixture
def saved(folder: Path) -> Path:
    """A folder with saved traces: two that differ only in their environment, and others."""
    trace = multi_head()
    save(folder / "old.json", trace)
    save(folder / "same.json", replace(trace, torch="9.9", seed=4, device="cuda:0", command="elsewhere", python="4"))
    save(folder / "shorter.json", replace(trace, steps=trace.steps[:-1], outputs=()))
    save(folder / "empty.json", trace_of(()))
    save(folder / "failed.json", failed())
    return folder


def save(path: Path, trace: Trace) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(Trace.to_json(trace))


def write_model(path: Path, scaled: str) -> None:
    path.mkdir(parents=True)
    (path / "model.py").write_text(MODEL)
    (path / "helper.py").write_text(f"def scaled(x):\n    return {scaled}\n")


# inputs


def test_files_stand_for_the_one_attention_in_them(attnshape: Attnshape, folder: Path) -> None:
    code = "def attention(q, k):\n    return (q @ k.mT {}).softmax(-1) @ k\n"
    (folder / "old.py").write_text(code.format("/ q.shape[-1] ** 0.5"))
    (folder / "new.py").write_text(code.format(""))
    result = attnshape("diff old.py new.py")
    assert result.status == 1
    assert "found in old.py: attention" in result.err
    assert "scores are not scaled" in result.out
    # several aren't compared in some order
    (folder / "two.py").write_text(code.format("") + code.format("").replace("attention", "another"))
    result = attnshape("diff old.py two.py")
    assert (result.status, result.out) == (2, "")
    assert "two.py is a file; which of its functions or classes?" in result.err
    assert "two.py:a" in result.err


def test_what_an_argument_that_is_left_out_would_change_is_unknown(attnshape: Attnshape, folder: Path) -> None:
    code = "import torch\ndef attention(q, k, past=None):\n    if past is not None:\n        k = torch.cat({})\n"
    for name, joined in (("old", "(past, k), -2"), ("new", "(k, past), -2")):
        (folder / f"{name}.py").write_text(code.format(joined) + "    return (q @ k.mT).softmax(-1) @ k\n")
    result = attnshape("diff old.py new.py")
    assert result.status == 0, result.out
    assert "unknown behaviour: inputs (what past would change: left at the default None)" in result.out
    assert "left at the default None" not in attnshape("diff multi-head multi-head").out


# git revisions


@pytest.fixture
def repository(folder: Path) -> Path:
    """A repository with one commit, whose model was changed since: the current folder is one inside it."""
    write_model(folder / "src", "x * 0.5")
    for words in (["init"], ["add", "."], ["-c", "user.name=A", "-c", "user.email=a@b.c", "commit", "-m", "one"]):
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)
    (folder / "src" / "helper.py").write_text("def scaled(x):\n    return x * 0.25\n")
    os.chdir(folder / "src")
    return folder


def test_a_target_is_compared_with_itself_at_a_revision(attnshape: Attnshape, repository: Path) -> None:
    before = sorted(repository.rglob("*"))
    inputs = "--input 'q: B L D' --input 'k: B L D'"
    result = attnshape(f"diff HEAD:model.py:attention model.py:attention {inputs}")
    assert result.status == 1, result.err
    assert "**HEAD:model.py:attention → model.py:attention**" in result.out
    # the helper too is that of the revision
    assert "x * 0.5" in result.out
    assert "x * 0.25" in result.out
    assert attnshape(f"diff HEAD:model.py:attention HEAD:model.py:attention {inputs}").status == 0
    assert [path for path in sorted(repository.rglob("*")) if "__pycache__" not in str(path)] == before


def test_a_saved_trace_may_be_of_a_revision(attnshape: Attnshape, repository: Path) -> None:
    save(repository / "old.json", multi_head())
    subprocess.run(["git", "add", "."], cwd=repository, check=True)
    commit = ["git", "-c", "user.name=A", "-c", "user.email=a@b.c", "commit", "-qm", "two"]
    subprocess.run(commit, cwd=repository, check=True)
    os.chdir(repository)
    save(repository / "old.json", replace(multi_head(), steps=multi_head().steps[:-1], outputs=()))
    result = attnshape("diff HEAD:old.json old.json")
    assert (result.status, result.err) == (1, "")
    assert "1 step removed" in result.out


def test_links_out_of_the_repository_are_left_out(attnshape: Attnshape, repository: Path) -> None:
    (repository / "src" / "data").symlink_to("/usr/share")
    for words in (["add", "."], ["-c", "user.name=A", "-c", "user.email=a@b.c", "commit", "-qm", "link"]):
        subprocess.run(["git", *words], cwd=repository, check=True, capture_output=True)
    same = "HEAD:model.py:attention --input 'q: B L D' --input 'k: B L D'"
    assert attnshape(f"diff HEAD:model.py:attention {same}").status == 0


@pytest.mark.parametrize(
    ("old", "problem", "hint"),
    [
        ("HEAD~7:model.py", "git knows no commit 'HEAD~7'", "git log --oneline"),
        ("--output:model.py", "git knows no commit '--output'", "git log --oneline"),
        ("HEAD:other.py", "HEAD has no such file", "git ls-tree -r --name-only HEAD"),
        ("HEAD:model.py:none", "model.py has no none", "attention"),
    ],
)
def test_a_revision_that_has_no_such_thing(
    attnshape: Attnshape, repository: Path, old: str, problem: str, hint: str
) -> None:
    result = attnshape("diff", "--", old, "model.py:attention")
    assert (result.status, result.out) == (2, "")
    assert problem in result.err
    assert hint in result.err
    assert "Traceback" not in result.err


# exit statuses


def test_no_difference_is_status_0(attnshape: Attnshape, saved: Path) -> None:
    result = attnshape("diff old.json same.json")
    assert (result.status, result.err) == (0, "")
    assert "- no difference" in result.out
    assert "unchanged" not in result.out


@pytest.mark.parametrize(
    ("fail_on", "status"),
    [
        ("", 1),
        ("--fail-on any", 1),
        ("--fail-on steps", 1),
        ("--fail-on size,signature,stride,storage,dtype", 0),
        ("--fail-on size --fail-on steps", 1),
        ("--fail-on signature --fail-on ' stride , dtype'", 0),
    ],
)
def test_fail_on_selects_kinds(attnshape: Attnshape, saved: Path, fail_on: str, status: int) -> None:
    result = attnshape(f"diff old.json shorter.json {fail_on}")
    assert result.status == status
    assert "- differs in steps: 1 step removed" in result.out


# formats


def test_files_get_markdown(attnshape: Attnshape, saved: Path) -> None:
    result = attnshape("diff old.json shorter.json --output out.md")
    assert (result.status, result.out) == (1, "")
    text = (saved / "out.md").read_text()
    assert text.startswith("`attnshape diff old.json shorter.json --output out.md`\n\n**multi-head**\n")
    assert "| --: |" in text
    assert "unchanged steps" in text


def test_table_fits_the_terminal(attnshape: Attnshape, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (40, 80, 100, 160):
        monkeypatch.setenv("COLUMNS", str(width))
        result = attnshape("diff old.json failed.json --format table")
        assert all(len(line) <= width for line in result.out.split("\n"))


def test_json_has_a_schema_and_all_steps(attnshape: Attnshape, saved: Path) -> None:
    difference = json.loads(attnshape("diff old.json shorter.json --format json").out)
    assert difference["schema"] == "attnshape/diff/1"
    assert difference["kinds"] == ["steps"]
    assert [step["old"]["index"] for step in difference["steps"] if step["new"] is None] == [len(multi_head().steps)]
    assert difference["old"]["totals"]["steps"] == difference["new"]["totals"]["steps"] + 1


def test_unsupported_format_is_refused(attnshape: Attnshape, saved: Path) -> None:
    result = attnshape("diff old.json same.json --format sarif")
    assert (result.status, result.out) == (2, "")
    choices = "auto, table, markdown, json, html"
    assert result.err == f"error: --format sarif can't show a comparison\nhint: choose another format: {choices}\n"


# the two sides


def test_saved_traces_do_not_need_torch(saved: Path) -> None:
    code = (
        "import sys; from attnshape.cli.app import run; status = run(sys.argv[1:]); "
        "sys.exit(9 if 'torch' in sys.modules else status)"
    )
    for form in ("table", "markdown", "json"):
        words = [sys.executable, "-c", code, "diff", "old.json", "shorter.json", "--format", form]
        assert subprocess.run(words, check=False, capture_output=True).returncode == 1


def test_output_does_not_depend_on_the_hash_seed(saved: Path) -> None:
    printed = set()
    for seed in ("1", "2", "3"):
        words = [sys.executable, "-m", "attnshape", "diff", "failed.json", "shorter.json", "--format", "json"]
        done = subprocess.run(words, check=False, capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed})
        printed.add(done.stdout)
    assert len(printed) == 1


def test_saved_trace_and_a_target(attnshape: Attnshape, folder: Path) -> None:
    attnshape("trace scaled-dot-product --keys 7 --format json --output old.json")
    assert attnshape("diff old.json scaled-dot-product --keys 7").status == 0
    result = attnshape("diff old.json scaled-dot-product --keys 9 --fail-on size")
    assert result.status == 1
    assert "Lk=7 → 9" in result.out


def test_options_apply_to_both_targets(attnshape: Attnshape, folder: Path) -> None:
    result = attnshape("diff multi-head multi-head --causal --heads 4")
    assert result.status == 0
    assert "H=4" in result.out
    assert "steps 21" in result.out


def test_pyproject_targets_have_their_own_options(attnshape: Attnshape, folder: Path) -> None:
    (folder / "pyproject.toml").write_text(
        '[tool.attnshape.targets.plain]\ntarget = "multi-head"\nheads = 4\nexpect = ["output: B L D"]\n'
        '[tool.attnshape.targets.causal]\ntarget = "multi-head"\nheads = 4\ncausal = true\n'
    )
    result = attnshape("diff plain causal")
    assert result.status == 1
    assert "2 steps added" in result.out


def test_two_versions_of_a_project_import_their_own_modules(attnshape: Attnshape, folder: Path) -> None:
    write_model(folder / "old", "x * 2")
    write_model(folder / "new", "x * 2 + 1")
    write_model(folder / "again", "x * 2")
    options = "--input 'q: B Lq Dk' --input 'k: B Lk Dk'"
    assert attnshape(f"diff old/model.py:attention again/model.py:attention {options}").status == 0
    # the second model imports its own helper, although both helpers have the same name
    result = attnshape(f"diff old/model.py:attention new/model.py:attention {options}")
    assert result.status == 1
    assert "1 step added" in result.out


def test_two_packages_with_the_same_name(attnshape: Attnshape, folder: Path) -> None:
    for name, more in (("old", ""), ("new", " * 3")):
        package = folder / name / "package"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "part.py").write_text(f"def scores(q, k):\n    return q @ k.mT{more}\n")
        (package / "model.py").write_text(
            "from .part import scores\n\ndef attention(q, k):\n    return scores(q, k).softmax(-1)\n"
        )
    options = "--input 'q: B Lq Dk' --input 'k: B Lk Dk'"
    result = attnshape(f"diff old/package/model.py:attention new/package/model.py:attention {options}")
    assert result.status == 1
    assert "1 step added" in result.out


def test_snapshot_can_be_compared(attnshape: Attnshape, saved: Path) -> None:
    (saved / "snap.txt").write_text(write_snapshot(snapshot_of(multi_head())))
    for sides in ("snap.txt old.json", "old.json snap.txt", "snap.txt snap.txt"):
        assert attnshape(f"diff {sides}").status == 0
    assert "1 step added" in attnshape("diff shorter.json snap.txt").out


def test_traces_without_common_steps(attnshape: Attnshape, saved: Path) -> None:
    for sides in ("old.json empty.json", "empty.json old.json"):
        result = attnshape(f"diff {sides}")
        assert result.status == 1
        assert "differs in steps" in result.out
    assert attnshape("diff empty.json empty.json").status == 0


def test_failed_trace(attnshape: Attnshape, saved: Path) -> None:
    assert attnshape("diff failed.json failed.json").status == 0
    result = attnshape("diff old.json failed.json --format table")
    assert result.status == 1
    assert "✗ the new one fails at " in result.out
    assert ", the old one doesn't" in " ".join(result.out.split())


# folders


def test_folders_are_compared_file_by_file(attnshape: Attnshape, folder: Path) -> None:
    trace = multi_head()
    shorter = replace(trace, steps=trace.steps[:-1], outputs=())
    for side, other in (("before", trace), ("after", shorter)):
        save(folder / side / "a.json", trace)
        save(folder / side / "deep" / "b.json", other)
        save(folder / side / f"only-{side}.json", trace)
        (folder / side / "readme.md").write_text("# no trace\n")
    result = attnshape("diff before after")
    assert result.status == 1
    assert "**before → after**" in result.out
    assert "- 1 of 2 files differs\n- no difference: a.json\n" in result.out
    assert "- only in before: only-before.json\n- only in after: only-after.json\n" in result.out
    assert [line for line in result.out.splitlines() if line.startswith("## ")] == ["## deep/b.json"]
    assert "1 step removed" in result.out
    table = attnshape("diff before after --format table").out
    assert "deep/b.json" in table
    assert "|" not in table
    saved = json.loads(attnshape("diff before after --format json").out)
    assert (saved["schema"], saved["only_new"]) == ("attnshape/diffs/1", ["only-after.json"])
    assert [file["name"] for file in saved["files"]] == ["a.json", "deep/b.json"]


def test_equal_folders_have_no_difference(attnshape: Attnshape, folder: Path) -> None:
    for side in ("before", "after"):
        save(folder / side / "a.json", multi_head())
    result = attnshape("diff before after")
    assert result.status == 0
    assert "- 0 of 1 file differs" in result.out


def test_damaged_file_in_a_folder_is_listed_and_the_others_are_compared(attnshape: Attnshape, folder: Path) -> None:
    trace = multi_head()
    for side, other in (("before", trace), ("after", replace(trace, steps=trace.steps[:-1], outputs=()))):
        for name in ("a", "broken", "z"):
            save(folder / side / f"{name}.json", other)
    (folder / "after" / "broken.json").write_text((folder / "before" / "broken.json").read_text()[:-20])
    (folder / "after" / "empty.json").write_text("")
    (folder / "before" / "empty.json").write_text("")
    result = attnshape("diff before after")
    assert result.status == 2
    assert [line for line in result.out.splitlines() if line.startswith("## ")] == ["## a.json", "## z.json"]
    assert "- not compared: broken.json: after/broken.json isn't JSON, or not all of it" in result.out
    assert "- not compared: empty.json: before/empty.json is empty" in result.out
    failed = json.loads(attnshape("diff before after --format json").out)["not_compared"]
    assert [entry["name"] for entry in failed] == ["broken.json", "empty.json"]
    assert "not compared: broken.json" in attnshape("diff before after --format table").out


def test_other_files_in_a_folder_are_ignored(attnshape: Attnshape, folder: Path) -> None:
    for side in ("before", "after"):
        save(folder / side / "a.json", multi_head())
        (folder / side / "package.json").write_text('{"name": "x", "schema": 3}')
        (folder / side / "list.json").write_text("[1, 2]")
        (folder / side / "report.json").write_text('{"schema": "attnshape/report/1"}')
        (folder / side / "notes.txt").write_text("notes\n")
        (folder / side / f"requirements-{side}.txt").write_text("torch\n")
        (folder / side / "snap.txt").write_text(write_snapshot(snapshot_of(multi_head())))
    result = attnshape("diff before after")
    assert (result.status, result.err) == (0, "")
    assert "- no difference: a.json, snap.txt\n" in result.out
    assert "only in" not in result.out


# errors


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("diff", "Missing argument 'OLD'", "attnshape diff --help"),
        ("diff old.json", "Missing argument 'NEW'", "attnshape diff --help"),
        ("diff old.json nothing.json", "NEW is 'nothing.json': no such file", "--format json --output FILE"),
        ("diff some/where old.json", "OLD is 'some/where': no such file", "--format json --output FILE"),
        ("diff old.json multihead", "NEW is 'multihead': neither a file nor a target", "did you mean multi-head?"),
        ("diff '' old.json", "OLD is empty", "name a saved trace"),
        ("diff old.json blank.json", "blank.json is empty", "--format json --output FILE"),
        ("diff old.json other.json", "other.json isn't JSON", "save it again"),
        ("diff old.json list.json", "list.json isn't a trace", "save it again"),
        ("diff old.json report.json", "it says it is 'attnshape/report/1'", "save it again"),
        ("diff snap.txt old.json", "snap.txt:1: this isn't a valid snapshot", "pytest --shapes-update"),
        ("diff conflict.txt old.json", "conflict.txt:8: this isn't a valid snapshot: it contains", "--shapes-update"),
        ("diff old.json .", ". is a folder and the other side isn't", "name two folders"),
        ("diff none none", "no saved trace in none nor in none", "--format json --output FILE"),
        ("diff old.json old.json --heads 4", "--heads applies to targets", "leave it out"),
        ("diff old.json old.json --causal", "--causal applies to targets", "leave it out"),
        ("diff old.json old.json --fail-on strides", "there is no kind 'strides'", "did you mean stride?"),
        ("diff old.json old.json --fail-on ','", "--fail-on names no kind", "size, signature, stride"),
        ("diff old.json model.py", "no attention was found in model.py, by its source; which", "model.py:attention"),
        ("diff old.json model.py:nothing", "nothing", "attention"),
        ("diff old.json old.json --output none", "--output none is a folder", "write to a file in it"),
        ("diff old.json multi-head --heads x", "--heads is 'x'", "for example --heads 4"),
        ("diff old.json 'a\x00b'", "neither a file nor a target", "the targets by name are"),
    ],
)
def test_bad_input_has_a_hint(attnshape: Attnshape, saved: Path, line: str, message: str, hint: str) -> None:
    (saved / "blank.json").write_text("")
    (saved / "other.json").write_text("{")
    (saved / "list.json").write_text("[1, 2]")
    (saved / "report.json").write_text('{"schema": "attnshape/report/1"}')
    (saved / "snap.txt").write_text("attnshape snapshot 7\n")
    lines = write_snapshot(snapshot_of(multi_head())).splitlines(keepends=True)
    (saved / "conflict.txt").write_text("".join([*lines[:7], "<<<<<<< HEAD\n", *lines[7:]]))
    (saved / "none").mkdir()
    (saved / "model.py").write_text("def attention(q):\n    return q * 2\n")
    result = attnshape(line)
    assert (result.status, result.out) == (2, "")
    first, second, *others = result.err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert second.startswith("hint: ")
    assert hint in second
    assert others == []


@pytest.mark.parametrize(
    "text", ["[red]x[/]", "a|b\\|`c`", "\x1b[31m", "<b>&amp;", "x\ny | z", "\u202eabc", "**b** _i_", "= |"]
)
def test_hostile_text_does_not_break_the_output(attnshape: Attnshape, folder: Path, text: str) -> None:
    save(folder / "nasty.json", with_text(every_text(), text))
    save(folder / "plain.json", multi_head())
    for form in ("table", "markdown"):
        result = attnshape("diff", "nasty.json", "plain.json", "--format", form)
        assert result.status == 1
        assert all(line.isprintable() for line in result.out.split("\n"))
    assert attnshape("diff", "nasty.json", "nasty.json").status == 0
    json.loads(attnshape("diff", "nasty.json", "plain.json", "--format", "json").out)
