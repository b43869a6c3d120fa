"""`--expect`, and the flags that select output: `--match`, `--columns`, `--explain`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from attnshape.reporters.columns import COLUMNS
from tests.cli.running import Attnshape

CROSS = (
    'trace examples/cross_attention.py:Cross --init "D, H" --input "q: B Lq D" --input "kv: B Lk D" '
    "--batch 2 --heads 4 --queries 5 --keys 7 --d-model 12"
)

EQUAL = """
def same(x, y):
    first = x + 0
    both = first * y
    return both


def twice(x):
    y = x + 1
    y = y.sum(-1)
    return y


def several(x):
    return x + 1, {"second": x.sum(-1)}
"""


def verdicts(attnshape: Attnshape, line: str, *expected: str) -> dict[str, tuple[bool, str | None]]:
    words = [word for expectation in expected for word in ("--expect", expectation)]
    result = attnshape(*shlex.split(line), *words, "--format", "json")
    found = {f"{e['name']}: {e['signature']}": (e["holds"], e["why"]) for e in result.trace["expectations"]}
    assert result.status == (0 if all(holds for holds, _ in found.values()) else 1)
    assert result.err == ""
    return found


def test_expectations_that_hold(attnshape: Attnshape, root: Path):
    expected = ["scores: B H Lq Lk", "output: B Lq D", "query: B H Lq Dk", "q: B Lq D", "scores: B H Lq Lk+0"]
    assert verdicts(attnshape, CROSS, *expected) == dict.fromkeys(expected, (True, None))


@pytest.mark.parametrize(
    ("expected", "why"),
    [
        ("scores: B H Lk Lq", "axis 2 is Lq=5, expected Lk=7"),
        ("scores: H B Lq Lk", "axis 0 is B=2, expected H=4"),
        ("scores: B Lq Lk", "it has 4 axes [2, 4, 5, 7], expected 3"),
        ("output: B Lq Dk", "axis 2 is D=12, expected Dk=3"),
        ("output: B Lq 2*D", "axis 2 is D=12, expected 2*D=24"),
        ("output: ", "it has 3 axes [2, 5, 12], expected 0"),
    ],
)
def test_failed_expectation_names_the_axis(expected: str, why: str, attnshape: Attnshape, root: Path):
    ((holds, reason),) = verdicts(attnshape, CROSS, expected).values()
    assert (holds, reason) == (False, why)


def test_verdict_is_in_every_format(attnshape: Attnshape, root: Path):
    for format_ in ("table", "markdown"):
        result = attnshape(f"{CROSS} --expect 'scores: B H Lq Lk' --expect 'output: B Lk D' --format {format_}")
        assert result.status == 1
        assert re.search(r"output.*B Lk D", result.out)
        assert "Lk=7" in result.out
        assert "✓" in result.out
        assert "✗" in result.out


def test_equal_sizes_are_not_confused(attnshape: Attnshape, folder: Path):
    (folder / "equal.py").write_text(EQUAL)
    line = "trace equal.py:same --input 'x: Lq Lk' --input 'y: Lq Lk' --queries 5 --keys 5"
    found = verdicts(attnshape, line, "both: Lq Lk", "both: Lk Lq")
    assert found["both: Lq Lk"] == (True, None)
    holds, why = found["both: Lk Lq"]
    assert not holds
    assert "seen at Lq=" in str(why)


def test_every_tensor_of_a_name_must_have_the_signature(attnshape: Attnshape, folder: Path):
    (folder / "equal.py").write_text(EQUAL)
    found = verdicts(attnshape, "trace equal.py:twice --input 'x: B L'", "y: B", "y: B L", "output: B")
    assert [holds for holds, _ in found.values()] == [False, False, True]


def test_each_output_has_a_name(attnshape: Attnshape, folder: Path):
    (folder / "equal.py").write_text(EQUAL)
    line = "trace equal.py:several --input 'x: B L'"
    found = verdicts(attnshape, line, "output: B L", "output[0]: B L", "output[1]['second']: B")
    assert all(holds for holds, _ in found.values())


def test_expectation_after_a_failure_does_not_hold(attnshape: Attnshape, folder: Path):
    (folder / "fails.py").write_text("def f(x):\n    scores = x @ x\n    return scores\n")
    found = verdicts(attnshape, "trace fails.py:f --input 'x: B L'", "scores: B B")
    assert found["scores: B B"] == (False, "the code failed before it was made")


def test_wrong_declared_signature_is_status_1(attnshape: Attnshape, folder: Path):
    (folder / "wrong.py").write_text(
        "from jaxtyping import Float\n"
        "from torch import Tensor\n"
        "def f(query: Float[Tensor, 'B Lq Dk'], key: Float[Tensor, 'B Lk Dk']):\n"
        "    scores: Float[Tensor, 'B Lk Lq'] = query @ key.mT\n"
        "    return scores\n"
    )
    result = attnshape("trace wrong.py:f --format table")
    assert result.status == 1
    assert "wrong.py:4" in result.out


# output


def table_rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if re.match(r"\| +\d+ ", line)]


@pytest.mark.parametrize(
    ("match", "count"),
    [
        ("scores", 1),
        ("projection", 3),
        ("view", 4),
        ("concat", 1),
        ("Wq", 1),
        ("W?", 4),
        ("scores,softmax", 2),
        ("linear", 4),
        (" scores , softmax ", 2),
    ],
)
def test_match_selects_steps(match: str, count: int, attnshape: Attnshape):
    result = attnshape("trace", "--match", match)
    assert result.status == 0
    assert len(table_rows(result.out)) == count


def test_match_by_module_path(attnshape: Attnshape, root: Path):
    line = "trace examples/torch_multihead.py:Block --init 'D, H' --input 'x: B L D'"
    everything, norm = attnshape(line), attnshape(f"{line} --match norm")
    assert len(table_rows(norm.out)) == 1
    assert len(table_rows(everything.out)) > 3
    assert "norm(x)" in norm.out
    assert "1 of 32 steps shown" in norm.out


@pytest.mark.parametrize("column", COLUMNS)
def test_single_column(column: str, attnshape: Attnshape):
    result = attnshape("trace", "--columns", column)
    assert result.status == 0
    headers = [cell.strip() for line in result.out.splitlines() if line.startswith("| ") for cell in line.split("|")]
    assert column in headers


def test_columns_keep_the_given_order(attnshape: Attnshape):
    result = attnshape("trace --columns strides,known,bytes,dtype,op,role --match scores")
    header = next(line for line in result.out.splitlines() if line.startswith("|"))
    names = [cell.strip() for cell in header.split("|")]
    places = [names.index(name) for name in ("strides", "known", "bytes", "dtype", "op", "role")]
    assert places == sorted(places)
    (row,) = table_rows(result.out)
    # scores of self-attention at B=2, H=8, L=10: 2*8*10*10 elements of 4 bytes
    cells = [cell.strip(" `") for cell in row.split("|")]
    assert cells[2:-1] == ["H*L*L L*L L 1", "verified", "6,400", "float32", "matmul", "scores"]


def test_explain_adds_a_sentence_for_each_step(attnshape: Attnshape):
    plain = attnshape("trace --queries 30 --keys 50 --format table")
    explained = attnshape("trace --queries 30 --keys 50 --format table --explain")
    assert explained.status == 0
    assert len(explained.out.splitlines()) >= len(plain.out.splitlines()) + 19
    assert "64" in explained.out.partition("softmax")[0]


def test_default_sizes_are_marked(attnshape: Attnshape):
    out = attnshape("trace --batch 3 --format table").out
    assert "B=3 " in out
    assert re.search(r"H=8 \(default\)|defaults?:.*H", out)


def test_header_repeats_the_typed_command(attnshape: Attnshape, root: Path):
    out = attnshape(f"{CROSS} --format table").out
    command = out.partition("\nexamples/")[0]
    assert shlex.split(command.replace("\\\n", "")) == shlex.split(f"attnshape {CROSS} --format table")
