"""The cache of `attnshape check`: what is unchanged isn't checked again, and no stale verdict is shown."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from attnshape.cli import report_cache
from attnshape.runtime import dependencies
from tests.cli.running import Attnshape

MODEL = """
from torch import nn
{imports}

class {name}(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT * {scale}).softmax(-1)
        return (weights @ v).transpose(1, 2).reshape(b, n, d)
"""
RIGHT = "(d // self.heads) ** -0.5"
ENTRIES = """
[tool.attnshape.targets.one]
target = "one.py:One"
init = "D, H"
inputs = ["x: B L D"]

[tool.attnshape.targets.two]
target = "two.py:Two"
init = "D, H"
inputs = ["x: B L D"]
"""


def model(name: str, imports: str = "", scale: str = RIGHT) -> str:
    return MODEL.format(name=name, imports=imports, scale=scale)


@pytest.fixture
def project(folder: Path) -> Path:
    write(folder / "one.py", model("One", "from shared import factor", f"factor({RIGHT})"))
    write(folder / "two.py", model("Two"))
    write(folder / "shared.py", "def factor(x):\n    return x\n")
    write(folder / "pyproject.toml", ENTRIES)
    return folder


def write(path: Path, text: str) -> None:
    path.write_text(text)
    past = time.time() - 10  # what changed after the command began isn't kept
    os.utime(path, (past, past))


@pytest.fixture
def check(attnshape: Attnshape, project: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[str], int]]:
    """Check the project; return the code of each target's first finding, or `fine`, and how many were unchanged."""

    def call(flags: str = "") -> tuple[list[str], int]:
        import sys

        for name in ("one", "two", "shared", "later", "optional"):
            sys.modules.pop(name, None)  # each command has a process of its own
        found: list[int] = []
        find = report_cache.ReportCache.find
        monkeypatch.setattr(
            report_cache.ReportCache, "find", lambda *args: (result := find(*args), found.append(result is not None))[0]
        )
        results = json.loads(attnshape(f"check --all --format json {flags}").out)["results"]
        monkeypatch.setattr(report_cache.ReportCache, "find", find)
        codes = [one["report"]["findings"] for one in results]
        return [code[0]["code"] if code else "fine" for code in codes], sum(found)

    return call


def test_a_second_run_checks_nothing(check, project: Path) -> None:
    assert check() == (["fine", "fine"], 0)
    assert check() == (["fine", "fine"], 2)
    assert check("--no-cache") == (["fine", "fine"], 0)
    assert (project / ".attnshape_cache" / ".gitignore").read_text().endswith("*\n")


def test_a_change_concerns_the_targets_that_import_it(check, project: Path) -> None:
    check()
    write(project / "two.py", model("Two", scale="d ** -0.5"))
    assert check() == (["fine", "AS201"], 1)
    write(project / "shared.py", "def factor(x):\n    return x * 0.3\n")
    assert check() == (["AS202", "AS201"], 1) or check()[0][0] != "fine"
    write(project / "shared.py", "def factor(x):\n    return x\n")
    assert check()[0] == ["fine", "AS201"]


def test_options_and_claims_are_part_of_the_request(check, project: Path) -> None:
    check()
    assert check("--seed 3")[1] == 0
    assert check("--select AS0")[1] == 0
    write(project / "pyproject.toml", ENTRIES + 'claims = ["causal"]\n')
    assert check() == (["fine", "AS501"], 1)
    assert check("--ignore AS5") == (["fine", "fine"], 2), "what is left out is chosen afterwards"


def test_versions_are_part_of_the_key(check, monkeypatch: pytest.MonkeyPatch) -> None:
    check()
    monkeypatch.setattr(dependencies.importlib.metadata, "version", lambda name: "9.9")
    assert check()[1] == 0


def test_installed_packages_and_variables_are_part_of_the_key(
    check, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check()
    monkeypatch.setenv("TORCH_SOMETHING", "1")
    assert check()[1] == 0
    check()
    (project / "site" / "other-1.0.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(project / "site")
    assert check()[1] == 0


def test_a_new_module_that_takes_the_place_of_another(check, project: Path) -> None:
    optional = "try:\n    from later import factor\nexcept ImportError:\n    factor = lambda x: x\n"
    write(project / "two.py", model("Two", optional, f"factor({RIGHT})"))
    assert check()[0] == ["fine", "fine"]
    write(project / "later.py", "def factor(x):\n    return x * 0.3\n")
    verdicts, _ = check()
    assert verdicts[1] != "fine"


def test_data_that_is_read(check, project: Path) -> None:
    write(project / "factor.txt", "1.0")
    write(project / "two.py", model("Two", 'factor = float(open("factor.txt").read())', f"{RIGHT} * factor"))
    assert check()[0] == ["fine", "fine"]
    assert check()[1] == 2
    write(project / "factor.txt", "0.3")
    verdicts, _ = check()
    assert verdicts[1] != "fine"


@pytest.mark.parametrize("damage", [b"", b"not a cache", b"0" * 64 + b"\n{}"])
def test_a_damaged_file_is_ignored(check, project: Path, damage: bytes) -> None:
    check()
    for file in (project / ".attnshape_cache").glob("*.json"):
        file.write_bytes(damage)
    assert check() == (["fine", "fine"], 0)
    assert check()[1] == 2


def test_a_changed_byte_is_noticed(check, project: Path) -> None:
    check()
    for file in (project / ".attnshape_cache").glob("*.json"):
        file.write_bytes(file.read_bytes().replace(b'"findings":[]', b'"findings":[ ]'))
    assert check()[1] == 0


def test_a_file_that_changes_meanwhile_is_not_kept(check, project: Path) -> None:
    future = time.time() + 100
    os.utime(project / "shared.py", (future, future))
    check()
    assert check()[1] == 1


def test_what_a_limit_on_time_cut_off_is_not_kept(check) -> None:
    for _ in range(2):
        assert check("--time-limit 0.01")[1] == 0


def test_nothing_is_kept_of_a_single_target(attnshape: Attnshape, project: Path) -> None:
    assert attnshape("check one").status == 0
    assert not (project / ".attnshape_cache").exists()


def test_a_target_that_cannot_be_carried_out_is_kept_until_its_file_changes(
    attnshape: Attnshape, project: Path
) -> None:
    write(project / "pyproject.toml", ENTRIES.replace('init = "D, H"', 'init = "D"'))
    assert attnshape("check --all").status == 2
    result = attnshape("check --all --format text")
    assert "2 that can't be carried out · 2 unchanged, from the cache" in result.out
    assert result.out.count("hint: ") >= 1


@pytest.mark.parametrize("is_settled", [True, False])
def test_an_error_that_took_long_is_kept_where_no_limit_on_time_had_a_part(
    attnshape: Attnshape, project: Path, monkeypatch: pytest.MonkeyPatch, is_settled: bool
) -> None:
    monkeypatch.setattr(report_cache, "_SURE_SECONDS", 0.0)
    monkeypatch.setattr("attnshape.proposals.search._MOST_SECONDS", 60.0 if is_settled else 0.0)
    write(
        project / "pyproject.toml",
        ENTRIES.replace('inputs = ["x: B L D"]', "").partition("[tool.attnshape.targets.two]")[0],
    )
    broken = model("One").replace("return (weights", "raise ValueError('never')\n        return (weights")
    write(project / "one.py", broken)
    for _ in range(2):
        result = attnshape("check --all --format text")
    assert ("1 unchanged, from the cache" in result.out) == is_settled
