"""The shapes observed at each line of small functions, and the findings."""

import textwrap
from pathlib import Path

import pytest

from attnshape.comments.verify import CommentVerification, verify_shape_comments
from attnshape.model.report import Finding
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.comments import observe_documented
from attnshape.runtime.isolation import isolated
from attnshape.runtime.time_limit import TimeLimit
from attnshape.targets.find import find_target

SIZES = [{"B": 3, "L": 5, "D": 7}, {"B": 4, "L": 9, "D": 11}]


def checked(folder: Path, body: str, parameters: str = "x") -> CommentVerification:
    """Verify the comments of a function `f` of a tensor B L D."""
    path = folder / "code.py"
    text = f"import torch\ndef f({parameters}):\n" + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    path.write_text(text + "\ndef case(B, L, D):\n    return f, (torch.randn(B, L, D),)\n")
    with isolated():
        target = find_target(TargetSpec(f"{path}:case"))
        options = RunOptions()
        runs, functions = observe_documented(target, SIZES, options, TimeLimit())
    assert len(runs) == 2
    return verify_shape_comments(runs, functions)


def found(folder: Path, body: str, parameters: str = "x") -> list[tuple[int, str]]:
    """Return the line within the body, from 1, and the code of each finding."""
    findings: tuple[Finding, ...] = checked(folder, body, parameters).findings
    return [(finding.source.line - 2 if finding.source is not None else 0, finding.code) for finding in findings]


RIGHT = [
    "B, T, C = x.shape  # (B, T, C)\nreturn x",
    "B, T = x.size(0), x.size(1)  # (B, T)\nC = x.size(2)\nreturn x  # (B, T, C)",
    "B, T, C = x.shape\nreturn x.mT  # (B, C, T)",
    "B, T, C = x.shape\n# (B, C, T)\nreturn x.mT",
    "B, T, C = x.shape\ny, z = x.mT, x  # (B, C, T), (B, T, C)\nreturn y",
    "B, T, C = x.shape\ny, z = x, x + 1  # (B, T, C) each\nreturn y",
    "B, T, C = x.shape\ny = (\n    x.mT  # (B, C, T)\n    .flatten(1)  # (B, C*T)\n)\nreturn y",
    "B, T, C = x.shape\nreturn x @ x.mT  # (B, T, C) @ (B, C, T) -> (B, T, T)",
    "B, T, C = x.shape\nx = x.mT\n# x: (B, C, T)\nreturn x",
    "B, T, C = x.shape\nfor i in range(2):\n    x = x.mT  # (B, ?, ?)\nreturn x",
    "B, T, C = x.shape\nif T < 0:\n    return x.mT  # (T, T, T, T)\nreturn x",
    "B, T, C = x.shape\ny = [x, x]  # (B, T, C) each\nreturn y",
    "B, T, C = x.shape\nx += 1  # (B, T, C)\nreturn x",
    # comments about something that the line doesn't compute
    "B, T, C = x.shape\n# attn_mask: (B, 1, T, T)\nx = x.mT\nreturn x  # (B, C, T)",
    "B, T, C = x.shape\n# key: (B, T, 1)\nkey_states = x.mT\nreturn key_states  # (B, C, T)",
    "B, T, C = x.shape\nx = x.mT  # mask: (B, 1, 1, T) broadcasts\nreturn x  # (B, C, T)",
    "B, T, C = x.shape\nx = x.mT  # x[b]: (C, T)\nreturn x  # (B, C, T)",
    "B, T, C = x.shape\nx = x.mT  # x[b] is (C, T)\nreturn x  # (B, C, T)",
    "B, T, C = x.shape\nx = x.mT  # instead of (B*T, C)\nreturn x  # (B, C, T)",
    "B, T, C = x.shape\nx = x.mT  # ready for bmm: (B, T, C) @ (B, C, T)\nreturn x  # (B, C, T)",
    "B, T, C = x.shape\nx = x.mT  # per sample (C, T)\nreturn x  # (B, C, T)",
    # a product is one axis, not a shape
    "B, T, nh, hs = *x.shape[:2], 1, x.shape[2]\nx = x.mT  # C = nh * hs\nreturn x  # (B, hs, T)",
    "B, T, nh, hs = *x.shape[:2], 1, x.shape[2]\nx = x.mT  # nh * hs\nreturn x  # (B, hs, T)",
    # one name for each shape
    "B, T, C = x.shape\ny, z = x.mT, x.sum(2)  # y, z: (B, C, T), (B, T)\nreturn y",
    "B, T, C = x.shape\n# shapes: (B, C, T) & (B, T)\ny, z = x.mT, x.sum(2)\nreturn y",
    # a statement without tensors between
    "B, T, C = x.shape\ny = x * 1\n# (B, C, T)\nn = 3\ny = x.mT\nreturn y",
    "B, T, C = x.shape\n# [*, T/S, C]\ny = torch.cat((x, x), 1)\nreturn y",
    "B, T, C = x.shape\nx[:, 0] = 0  # (B, C)\nreturn x",
    "B, T, C = x.shape\nx[:, 0] = x[:, 1]  # (B, C)\nx[:, 0] += 1  # (B, C)\nreturn x",
    '"""f.\n\nArgs:\n    x: (B, T, C)\n\nReturns:\n    (B, C, T)\n"""\nreturn x.mT',
]
WRONG = [
    ("B, T, C = x.shape\ny, z = x.mT, x.sum(2)  # y, z: (B, C, T), (B, C)\nreturn y", [(2, "AS003")]),
    ("B, T, C = x.shape\n# normalizer: (B, T, T)\ny = x.mT\nreturn y", [(2, "AS003")]),
    ("B, T, C = x.shape\nself = torch.nn.Module()\nself.C = C\ny = x.mT  # (B, self.C, C)\nreturn y", [(4, "AS003")]),
    ("B, T, C = x.shape  # (B, C, T)\nreturn x", [(1, "AS002")]),
    ("B, T = x.size(0), x.size(1)  # (T, B)\nreturn x", [(1, "AS002")]),
    ("B, T, C = x.shape\nreturn x.mT  # (B, T, C)", [(2, "AS002")]),
    ("B, T, C = x.shape\nreturn x.mT  # (B, C)", [(2, "AS001")]),
    ("B, T, C = x.shape\nreturn x.mT  # (B, C, 2*T)", [(2, "AS003")]),
    ("B, T, C = x.shape\ny, z = x.mT, x  # (B, T, C), (B, T, C)\nreturn y", [(2, "AS002")]),
    ("B, T, C = x.shape\ny = (\n    x.mT  # (B, T, C)\n    .flatten(1)  # (B, C*T)\n)\nreturn y", [(3, "AS002")]),
    ("B, T, C = x.shape\ny = (\n    x.mT  # (B, C, T)\n    .flatten(1)  # (B*C, T)\n)\nreturn y", [(4, "AS003")]),
    ("B, T, C = x.shape\nreturn x @ x.mT  # (B, C, T) @ (B, C, T) -> (B, T, T)", [(2, "AS002")]),
    ("B, T, C = x.shape\nreturn x @ x.mT  # (B, T, C) @ (B, C, T) -> (B, T, C)", [(2, "AS003")]),
    ("B, T, C = x.shape\nx = x.mT\n# x: (B, T, T)\nreturn x", [(3, "AS003")]),
    ("B, T, C = x.shape\nfor i in range(2):\n    x = x.mT  # (B, C, T)\nreturn x", [(3, "AS002")]),
    (
        '"""f.\n\nArgs:\n    x: (B, C, T)\n\nReturns:\n    (B, C, T)\n"""\nB, T, C = x.shape\nreturn x.mT',
        [(4, "AS002")],
    ),
    ('"""f.\n\nArgs:\n    x: (B, T, C)\n\nReturns:\n    (B, C)\n"""\nB, T, C = x.shape\nreturn x.mT', [(7, "AS001")]),
]


@pytest.mark.parametrize("body", RIGHT)
def test_correct_comment_has_no_finding(tmp_path: Path, body: str) -> None:
    verification = checked(tmp_path, body)
    assert verification.holding or "T < 0" in body or "x[:, 0]" in body
    assert verification.findings == ()


@pytest.mark.parametrize(("body", "expected"), WRONG)
def test_wrong_comment_is_found_at_its_line(tmp_path: Path, body: str, expected: list[tuple[int, str]]) -> None:
    assert found(tmp_path, body) == expected


def test_name_may_have_another_size_in_each_call(tmp_path: Path) -> None:
    body = "def g(t):\n    n, w = t.shape[1:]\n    return t + 1  # (B, n, w)\nreturn g(x) + g(x.mT).mT"
    assert found(tmp_path, body) == []
    assert found(tmp_path, body.replace("(B, n, w)", "(B, w, n)")) == [(3, "AS002")]


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ('Float[torch.Tensor, "B T C"]', []),
        ('Float[torch.Tensor, "B ..."]', []),
        ('Float[torch.Tensor, "*batch C"]', []),
        ('Float[torch.Tensor, "_ _ _"]', []),
        ('Float[torch.Tensor, "B #T C"]', []),
        ('Float[torch.Tensor, "B T=5 C"]', []),
        ('Float[torch.Tensor, "B T"]', ["AS001"]),
        ('Bool[torch.Tensor, "B T C"]', ["AS004"]),
        ('Bool[torch.Tensor, "B T"]', ["AS001", "AS004"]),
        ('Float[torch.Tensor, "T B C"]', ["AS002"]),
    ],
)
def test_findings_of_annotations(tmp_path: Path, annotation: str, expected: list[str]) -> None:
    parameters = f"x: {annotation!r}"
    assert sorted(code for _, code in found(tmp_path, "B, T, C = x.shape\nreturn x", parameters)) == expected


def test_message_evidence_and_hint_of_a_finding(tmp_path: Path) -> None:
    (finding,) = checked(tmp_path, "B, T, C = x.shape\ny = x.mT  # [B, T, C]\nreturn y").findings
    assert finding.message == "`y` is documented as [B, T, C], but has shape (B, C, T)"
    assert finding.hint == "write [B, C, T]"
    assert finding.evidence == "at B=3, L=5, D=7 it is 3 7 5"
    assert finding.expression == "[B, T, C]"
    assert finding.source is not None
    assert (finding.source.line, finding.source.column, finding.source.function) == (4, 17, "f")


@pytest.mark.parametrize(
    ("comment", "hint"),
    [("B x T x C", "B x C x T"), ("B, T, C", "B, C, T"), ("b t c", "b c t"), ("(B, T, C)", "(B, C, T)")],
)
def test_hint_keeps_the_authors_notation(tmp_path: Path, comment: str, hint: str) -> None:
    names = "b, t, c" if "b" in comment else "B, T, C"
    (finding,) = checked(tmp_path, f"{names} = x.shape\ny = x.mT  # {comment}\nreturn y").findings
    assert finding.hint == f"write {hint}"
