"""The variable that each shape in a comment describes."""

import ast

import pytest

from attnshape.comments.functions import CommentedSource, comments_in, read_commented_source
from attnshape.comments.grammar import CommentClaim, parse_comment, parse_comment_lines


def roles(text: str) -> list[tuple[str, str]]:
    return [(claim.role, claim.shapes[0].text) for claim in parse_comment(text)]


def only(text: str) -> CommentClaim:
    (claim,) = parse_comment(text)
    return claim


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(B, T, C)", [("result", "(B, T, C)")]),
        ("-> (B, T, C)", [("result", "(B, T, C)")]),
        ("(B, T) -> (T, B)", [("operand", "(B, T)"), ("result", "(T, B)")]),
        ("(B, T) → (T, B)", [("operand", "(B, T)"), ("result", "(T, B)")]),
        ("(B, T) => (T, B)", [("operand", "(B, T)"), ("result", "(T, B)")]),
        ("(B, T) to (T, B)", [("operand", "(B, T)"), ("result", "(T, B)")]),
        ("(B, T) --> view --> (T, B)", [("operand", "(B, T)"), ("result", "(T, B)")]),
        ("(B, T) -> (B, 1, T) -> (T, B)", [("operand", "(B, T)"), ("state", "(B, 1, T)"), ("result", "(T, B)")]),
        ("(B, T) @ (T, C) -> (B, C)", [("operand", "(B, T)"), ("operand", "(T, C)"), ("result", "(B, C)")]),
        ("(B, T) x (T, C) = (B, C)", [("operand", "(B, T)"), ("operand", "(T, C)"), ("result", "(B, C)")]),
        ("b n (h d) -> b h n d", [("operand", "b n (h d)"), ("result", "b h n d")]),
        ("b h n d, b h m d -> b h n m", [("operand", "b h n d"), ("operand", "b h m d"), ("result", "b h n m")]),
    ],
)
def test_arrows_and_products(text: str, expected: list[tuple[str, str]]) -> None:
    assert roles(text) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["(B, T)", "-> (T, B)"], [(0, "operand"), (1, "result")]),
        (["[B, T]", "x [T, C]", "-> [B, C]"], [(0, "operand"), (1, "operand"), (2, "result")]),
        (["text", "(B, T) @ (T, C)", "-> (B, C)", "text"], [(1, "operand"), (1, "operand"), (2, "result")]),
        (["(B, T)", "-> (T, B)", "(B, C)"], [(0, "operand"), (1, "result"), (2, "result")]),
        (["(B, T)", "(B, C)"], [(0, "result"), (1, "result")]),
        (["q: (B, T)", "x: (B, C)"], [(0, "result"), (1, "result")]),
        (["some text", "-> (T, B)"], [(1, "result")]),
    ],
)
def test_arrows_and_products_on_several_lines(lines: list[str], expected: list[tuple[int, str]]) -> None:
    assert [(place, claim.role) for place, claim in parse_comment_lines(lines)] == expected


def test_operands_of_a_product_have_both_shapes() -> None:
    first, second, result = parse_comment("(B, T) @ (T, C) -> (B, C)")
    assert [documented.text for documented in first.product] == ["(B, T)", "(T, C)"]
    assert second.product == first.product
    assert (result.product, result.chained) == ((), True)


@pytest.mark.parametrize(
    ("text", "names", "firm"),
    [
        ("q: (B, T, D)", ("q",), True),
        ("q, k, v: (B, T, D)", ("q", "k", "v"), True),
        ("q/k: (B, T, D)", ("q", "k"), True),
        ("`q` and `k` have shape (B, T, D)", ("q", "k"), False),
        ("q.shape = (B, T, D)", ("q",), True),
        ("q = [B, T, D]", ("q",), True),
        ("q is now (B, T, D)", ("q",), False),
        ("k, v each [B, T]", ("k", "v"), False),
        ("self.mask: (T, T)", ("self.mask",), True),
        ("k: b h j e", ("k",), True),
        ("x: bsz x qlen", ("x",), True),
        ("(B, T, D)", (), False),
    ],
)
def test_labels(text: str, names: tuple[str, ...], firm: bool) -> None:
    claim = only(text)
    assert (claim.label.names, claim.label.firm) == (names, firm)


def test_several_labels() -> None:
    claims = parse_comment("q: (B, T), k: (B, S)")
    assert [(claim.label.names, claim.shapes[0].text) for claim in claims] == [(("q",), "(B, T)"), (("k",), "(B, S)")]


def test_several_results() -> None:
    claims = parse_comment("(B, T), (B, S)")
    assert [(claim.shapes[0].text, claim.place, claim.of) for claim in claims] == [("(B, T)", 0, 2), ("(B, S)", 1, 2)]


def test_names_and_shapes_are_paired() -> None:
    claims = parse_comment("q, k: (B, T), (B, S)")
    assert [(claim.label.names, claim.shapes[0].text) for claim in claims] == [(("q",), "(B, T)"), (("k",), "(B, S)")]


@pytest.mark.parametrize("between", [" or ", " / ", " | ", ", or "])
def test_alternatives(between: str) -> None:
    claim = only(f"(B, T){between}(T, B)")
    assert [documented.text for documented in claim.shapes] == ["(B, T)", "(T, B)"]


@pytest.mark.parametrize(
    ("text", "strict"),
    [
        ("(B, T)", True),
        ("shape (B, T)", True),
        ("now (B, T)", True),
        ("(B, T) each", True),
        ("transpose to (B, T)", False),
        ("(B, T) is what is added", False),
        ("the heads go to the batch axis: (B*H, T)", True),
    ],
)
def test_comment_of_shapes_alone_is_strict(text: str, strict: bool) -> None:
    assert only(text).strict is strict


def test_second_hash_starts_a_separate_comment() -> None:
    assert roles("type: ignore  # (B, T)") == [("result", "(B, T)")]
    assert roles("(B, T)  # noqa: E501") == [("result", "(B, T)")]
    assert roles("(B, T)  # attnshape: ignore[AS002]") == [("result", "(B, T)")]


SOURCE = '''
def forward(
    self,
    x,  # of x
    *rest,
):  # behind
    """A docstring."""
    # above one
    q = x
    # beneath q

    k = f(
        x,  # within k
        # alone within k
    )  # trailing k
    for _ in range(2):  # of the loop
        v = k  # trailing v

        # last in loop
    # above two
    # in two lines
    a = 1
    b = 2

    def inner(t):
        return t  # of another function

    return a  # trailing return
    # at the end
'''


@pytest.fixture
def file(tmp_path_factory: pytest.TempPathFactory) -> CommentedSource:
    path = tmp_path_factory.mktemp("source") / "code.py"
    path.write_text(SOURCE)
    parsed = read_commented_source(str(path))
    assert parsed is not None
    return parsed


def test_position_of_each_comment(file: CommentedSource) -> None:
    node = file.tree.body[0]
    assert isinstance(node, ast.FunctionDef)
    lines = SOURCE.split("\n")

    def at(statement: ast.stmt | None) -> str:
        return lines[statement.lineno - 1].strip().partition("  #")[0] if statement is not None else ""

    placed = {
        comment.text.strip(): (comment.where, at(comment.statement), at(comment.before), [at(b) for b in comment.block])
        for comment in comments_in(file, node)
    }
    assert placed == {
        "of x": ("signature", "", "", []),
        "behind": ("signature", "", "", []),
        "above one": ("above", "q = x", '"""A docstring."""', ["q = x"]),
        "beneath q": ("above", "", "q = x", []),
        "within k": ("within", "k = f(", "", []),
        "alone within k": ("within", "k = f(", "", []),
        "trailing k": ("trailing", "k = f(", "", []),
        "of the loop": ("within", "for _ in range(2):", "", []),
        "trailing v": ("trailing", "v = k", "", []),
        "last in loop": ("above", "a = 1", "", ["a = 1", "b = 2"]),
        "above two": ("above", "a = 1", "", ["a = 1", "b = 2"]),
        "in two lines": ("above", "a = 1", "", ["a = 1", "b = 2"]),
        "trailing return": ("trailing", "return a", "", []),
    }
    assert [comment.parameter for comment in comments_in(file, node) if comment.text.strip() == "of x"] == ["x"]


def test_invalid_or_missing_file_is_none(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("none")
    for name, content in {"a.py": b"def f(:", "b.py": b"", "c.py": bytes(range(256)), "d.py": b"x = '\0'"}.items():
        (folder / name).write_bytes(content)
        assert read_commented_source(str(folder / name)) is None
    assert read_commented_source(str(folder / "none.py")) is None
    assert read_commented_source("<string>") is None
    assert read_commented_source("\0") is None


def test_changed_file_is_read_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("changed") / "a.py"
    path.write_text("def f():\n    x = 1  # (B, T)\n")
    before = read_commented_source(str(path))
    path.write_text("def f():\n    x = 1  # (B, T, C)\n")
    after = read_commented_source(str(path))
    assert before is not None
    assert after is not None
    found = [file.comments_of(file.functions["f", 1][0]).every for file in (before, after)]
    assert found == [[(2, 11, " (B, T)")], [(2, 11, " (B, T, C)")]]


def test_comments_of_a_method_between_others(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("method") / "a.py"
    path.write_text(
        '''class A:
    # outside
    @f  # outside too
    def g(self, x):  # (B, T)
        if x:
            def h(y):
                return y  # (B, T, C)
        text = """
  # a string
"""
# at the margin
        return x
    # after it
'''
    )
    file = read_commented_source(str(path))
    assert file is not None
    assert file.functions.keys() == {("g", 3), ("h", 6)}
    node, owner = file.functions["g", 3]
    assert owner is file.tree.body[0]
    assert [line for line, _, _ in file.comments_of(node).every] == [4, 7, 11]
    assert [(comment.line, comment.until) for comment in comments_in(file, node)] == [(4, 0), (11, 13)]
