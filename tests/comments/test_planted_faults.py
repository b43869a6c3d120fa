"""Correct comments have no findings; planted faults are found at their lines and nowhere else."""

import ast
from pathlib import Path

import pytest

from attnshape.comments.verify import CODES, ORDER, RANK, SIZE, TYPE
from tests.comments.planted_faults import FAULTS, FOLDER, NAMES, NOTATIONS, TARGETS, Copy
from tests.sampling import sampled

MIN_HOLDING = {
    "alibi": 11,
    "annotated": 13,
    "axial": 13,
    "bahdanau": 12,
    "chunked": 12,
    "clip_pool": 9,
    "cross": 11,
    "decoder_layer": 13,
    "einops_attn": 11,
    "encdec": 13,
    "gat": 22,
    "gqa": 10,
    "head_modules": 12,
    "hf_like": 9,
    "hier_pool": 15,
    "jax_gqa": 15,
    "kvcache": 11,
    "lecture": 11,
    "linear_attn": 6,
    "list_heads": 9,
    "mla": 12,
    "mqa_jax": 9,
    "nanogpt": 12,
    "perceiver": 23,
    "performer": 16,
    "pma": 10,
    "relpos": 13,
    "rope": 13,
    "sagan": 10,
    "sdpa_numpy": 11,
    "sliding": 18,
    "slot": 7,
    "t5_like": 12,
    "talking": 8,
    "timm_vit": 10,
    "torchstyle": 15,
    "windowed": 11,
    "xl": 13,
}
"""The minimum number of verified claims in each file."""

FITTING_CODES = {
    "rank": {RANK},
    "swapped": {ORDER, SIZE},
    "letter": {SIZE, ORDER},
    "number": {SIZE, ORDER},
    "dtype": {TYPE},
    **{kind: {RANK, ORDER, SIZE} for kind in ("docstring", "stale", "result", "operand", "annotation")},
}
"""The codes that fit each kind of fault: two swapped axes are an order; the same length twice is a size."""

QUICK = ["annotated", "einops_attn", "gqa", "kvcache", "nanogpt", "slot"]
"""Fast files in different notations."""

KNOWN_MISSES = [fault for fault in FAULTS if fault.reason is not None]


@pytest.mark.parametrize("name", sampled(NAMES, QUICK))
def test_each_fault_is_the_only_finding_at_its_line(name: str, tmp_path: Path) -> None:
    copy = Copy(name, tmp_path)
    assert [(finding.source.line, finding.message) for finding in copy.unchanged.findings if finding.source] == []
    assert copy.unchanged.holding >= MIN_HOLDING[name]
    assert copy.unchanged.runs >= 2
    wrong = []
    for fault in (fault for fault in FAULTS if fault.file == name and fault.reason is None):
        with copy.planted(fault) as found:
            lines = {finding.source.line if finding.source is not None else None for finding in found}
            codes = {finding.code for finding in found}
            if lines != {fault.line} or not codes <= FITTING_CODES[fault.kind]:
                wrong.append((fault.line, fault.wrong, [(finding.code, finding.message) for finding in found]))
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("name", dict.fromkeys(fault.file for fault in KNOWN_MISSES))
def test_known_misses_are_still_missed(name: str, tmp_path: Path) -> None:
    copy = Copy(name, tmp_path)
    for fault in (fault for fault in KNOWN_MISSES if fault.file == name):
        with copy.planted(fault) as found:
            messages = [finding.message for finding in found if finding.source and finding.source.line == fault.line]
            assert messages == [], f"it is found now: remove the reason below {fault.wrong!r} from planted/{name}.txt"


def test_faults_cover_many_lines_kinds_and_notations() -> None:
    assert {fault.file for fault in FAULTS} == set(NAMES) == set(MIN_HOLDING)
    assert set(TARGETS) <= set(NAMES)
    assert len({(fault.file, fault.line) for fault in FAULTS}) >= 60
    assert len(FAULTS) == 728
    assert {fault.notation for fault in FAULTS} == set(NOTATIONS)
    assert {fault.kind for fault in FAULTS} == set(FITTING_CODES)


def test_every_fault_changes_only_comments() -> None:
    for name in NAMES:
        text = (FOLDER / "sources" / f"{name}.py").read_text(encoding="utf-8")
        code = _code(text)
        for fault in (fault for fault in FAULTS if fault.file == name):
            lines = text.split("\n")
            assert lines[fault.line - 1].endswith(fault.right), fault
            assert fault.wrong != fault.right
            lines[fault.line - 1] = lines[fault.line - 1].removesuffix(fault.right) + fault.wrong
            assert _code("\n".join(lines)) == code, fault


def test_every_fault_has_a_fitting_code_or_a_reason() -> None:
    assert [fault for fault in FAULTS if (fault.code is None) == (fault.reason is None)] == []
    assert [fault for fault in FAULTS if fault.code is not None and fault.code not in FITTING_CODES[fault.kind]] == []


@pytest.mark.parametrize("code", CODES)
def test_each_code_has_at_least_three_faults(code: str) -> None:
    assert len([fault for fault in FAULTS if fault.code == code]) >= 3


def _code(text: str) -> str:
    """Return a file's syntax without its docstrings and annotations."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Pass()
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.dump(tree)
