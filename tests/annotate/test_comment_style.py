"""Shape comments after assignments, parameters and return statements."""

from __future__ import annotations

import pytest

from attnshape.annotate.changes import AnnotateContext
from attnshape.annotate.comment_style import find_shapes_only
from tests.annotate.form_strings import SIZES, forms_of, rewritten, rewritten_text


def commented(data: str, **forms: object) -> str:
    raw = data.encode()
    return rewritten_text(raw, forms_of(raw, "f", **forms), style="comment").decode()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("y = x", "y = x  # (B, L)"),
        ("y = x   ", "y = x  # (B, L)   "),
        ("y = x;", "y = x;  # (B, L)"),
        ("y = x  # project", "y = x  # project  # (B, L)"),
        ("y = x  # type: ignore", "y = x  # type: ignore  # (B, L)"),
        ("y = x  # (B, T)", "y = x  # (B, T)"),
        ("y = x  # [B, L]", "y = x  # [B, L]"),
        ("y: int = x", "y: int = x  # (B, L)"),
        ("y = (\n        x\n    )", "y = (\n        x\n    )  # (B, L)"),
        ('y = """\n# no comment\n"""', 'y = """\n# no comment\n"""  # (B, L)'),
        ("y = x \\\n        + 1", "y = x \\\n        + 1  # (B, L)"),
        ("y, z = x", "y, z = x  # y, z: (B, L)"),
        ("y, w = x", "y, w = x  # y: (B, L), w: (B, 3*D, _)"),
        ("y = x; w = x", "y = x; w = x  # y: (B, L), w: (B, 3*D, _)"),
        ("y += x", "y += x"),
        ("y, n = x", "y, n = x  # y: (B, L)"),
    ],
)
def test_comment_of_an_assignment(before: str, after: str) -> None:
    head, tail = "def f(x):\n    ", "\n    g()\n"
    stores = {"y": "B L", "z": "B L", "w": "B 3*D _"}
    assert commented(f"{head}{before}{tail}", stores=stores) == f"{head}{after}{tail}"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("", "()"),
        ("L", "(L,)"),
        ("B H*Dk", "(B, H*Dk)"),
        ("B ... D", "(B, ..., D)"),
        ("B L | None", "(B, L) or None"),
        ("(B L, B)", "(B, L), (B,)"),
        ("(B L, B L)", "(B, L) each"),
    ],
)
def test_comment_of_a_result(form: str, text: str) -> None:
    assert commented("def f(x):\n    return x\n", result=form) == f"def f(x):\n    return x  # {text}\n"


def test_argument_comments_follow_the_colon_or_each_parameter() -> None:
    forms = {"arguments": {"x": "B L", "m": "L L"}}
    assert commented("def f(x, m): # why\n    g()\n", **forms) == (
        "def f(x, m): # why  # x: (B, L), m: (L, L)\n    g()\n"
    )
    assert commented("def f(\n    x,\n    m = None, # why\n    n=1\n) -> int :\n    g()\n", **forms) == (
        "def f(\n    x,  # (B, L)\n    m = None, # why  # (L, L)\n    n=1\n) -> int :\n    g()\n"
    )
    assert commented("def f(\n    x, m\n):\n    g()\n", **forms) == (
        "def f(\n    x, m\n):  # x: (B, L), m: (L, L)\n    g()\n"
    )


def test_second_run_changes_nothing() -> None:
    data = "def f(x, m):\n    y, z = x  # so\n    a = b = x\n    return y\n"
    forms = {"arguments": {"x": "B L", "m": "L"}, "stores": {"y": "B L", "z": "B", "a": "B", "b": "B"}, "result": "B L"}
    once = commented(data, **forms)
    assert once.count("#") == 5
    assert commented(once, **forms) == once


@pytest.mark.parametrize("existing", ["keep", "replace", "check"])
def test_existing_shape_comment(existing: str) -> None:
    data = b"def f(x):\n    y = x  # keep this  # (B, D)\n    z = x # (b, T)\n    w = x # (z, y, w)\n"
    forms = forms_of(data, "f", stores={"y": "B L", "z": "B L", "w": "B L"})
    rewrite = rewritten(data, forms, style="comment", context=AnnotateContext(existing, sizes=SIZES))  # type: ignore[arg-type]
    text = rewrite.files[0][0].apply(rewrite.files[0][1]).decode()
    assert "w = x # (z, y, w)  # (B, L)" in text
    replaced = existing == "replace"
    assert ("y = x  # keep this  # (B, L)\n" in text) is replaced
    assert ("z = x # (B, L)\n" in text) is replaced


@pytest.mark.parametrize(
    ("comment", "alone"),
    [
        ("# (B, nh, T, T) x (B, nh, T, hs) -> (B, nh, T, hs)", True),
        ("# -> (B, L, L)", True),
        ("# shape (B,S,D)", True),
        ("# B x L x Dk", True),
        ("# [batch, len]", True),
        ("# each (B, N, Dk)", True),
        ("# (B, L, S) scores", False),
        ("# causal; (B, T, T) x (B, T, hs) -> (B, T, hs)", False),
        ("# [L, D] float32", False),
    ],
)
@pytest.mark.parametrize("existing", ["keep", "replace", "check"])
def test_comment_with_a_shape_counts_as_a_signature(comment: str, alone: bool, existing: str) -> None:
    data = f"def f(x):\n    y = x  {comment}\n    return y  {comment}\n".encode()
    forms = forms_of(data, "f", stores={"y": "B L"}, result="B L")
    text = rewritten_text(data, forms, style="comment", context=AnnotateContext(existing, sizes=SIZES)).decode()  # type: ignore[arg-type]
    expected = "# (B, L)" if alone and existing == "replace" else comment
    assert text == f"def f(x):\n    y = x  {expected}\n    return y  {expected}\n"


@pytest.mark.parametrize(
    "prose",
    [
        "# (see Vaswani et al., 2017)",
        "# swap (1, 2)",
        "# [CLS] token",
        "# (q, k, v)",
        "# softmax(QK^T / sqrt(d_k))",
        "# O(T^2)",
        "# f(x, y)",
        "# x = x.view(B, L)",
        "# noqa: E501",
    ],
)
def test_prose_is_not_a_shape(prose: str) -> None:
    assert find_shapes_only(prose, {"B", "L", "D"}, {4}) is None
