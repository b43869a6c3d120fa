"""`attnshape explain`: formats and files, one target at a time, and targets that fail."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.running import Attnshape
from tests.explanation.explained import SOURCES


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(SOURCES / "causal_module.py", tmp_path / "model.py"))


def test_article_is_markdown_by_default(model: Path, attnshape: Attnshape) -> None:
    result = attnshape("explain model.py:CausalSelfAttention")
    assert result.status == 0
    assert result.out.startswith("# model.py:CausalSelfAttention, explained step by step\n\n`attnshape explain ")
    assert "`model.py:24`" in result.out
    assert "at B=2, H=8, L=10, D=512, Dk=64" in result.out


def test_sizes_and_mode_are_those_of_the_command(model: Path, attnshape: Attnshape) -> None:
    result = attnshape("explain model.py:CausalSelfAttention --train --heads 4 --length 6 --d-model 32 --seed 3")
    assert "in training mode, at B=2, H=4, L=6, D=32, Dk=8" in result.out
    assert "from the seed `3`" in result.out
    assert "dropout is off" not in result.out
    assert "1/sqrt(Dk) ≈ 0.354" in result.out


@pytest.mark.parametrize(("form", "begins"), [("html", "<!DOCTYPE html>"), ("notebook", "{"), ("json", "{")])
def test_formats_go_to_a_file(model: Path, form: str, begins: str, attnshape: Attnshape) -> None:
    result = attnshape(f"explain model.py:CausalSelfAttention --format {form} --output article")
    assert (result.status, result.out) == (0, "")
    text = Path("article").read_text()
    assert text.startswith(begins)
    if form == "notebook":
        assert json.loads(text)["nbformat"] == 4


def test_a_file_with_one_attention_stands_for_it(model: Path, attnshape: Attnshape) -> None:
    result = attnshape("explain model.py")
    assert result.status == 0
    assert result.out.startswith("# model.py:CausalSelfAttention, ")


def test_several_targets_are_refused_by_name(model: Path, attnshape: Attnshape) -> None:
    model.write_text(f"{model.read_text()}\n\nclass Other(CausalSelfAttention):\n    pass\n")
    model.write_text(model.read_text().replace("class Other(CausalSelfAttention):\n    pass\n", _OTHER))
    result = attnshape("explain model.py")
    assert (result.status, result.out) == (2, "")
    assert "model.py stands for 2: model.py:CausalSelfAttention, model.py:attend" in result.err
    assert "hint: name one: attnshape explain model.py:CausalSelfAttention" in result.err


_OTHER = "def attend(query, key, value):\n    return (query @ key.mT).softmax(-1) @ value\n"


def test_code_that_fails_is_refused_with_its_error(model: Path, attnshape: Attnshape) -> None:
    model.write_text(model.read_text().replace(".contiguous().view(B, T, C)", ".view(B, T, C)"))
    result = attnshape("explain model.py:CausalSelfAttention --init 'D, H' --input 'x: B L D'")
    assert (result.status, result.out) == (2, "")
    assert "the target fails, so that it can't be explained: RuntimeError: view size" in result.err
    assert "attnshape trace, with the same arguments, shows where and why" in result.err
