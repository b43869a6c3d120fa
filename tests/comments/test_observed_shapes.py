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


ABOVE = (
    "B, T, C = x.shape\n# (B, C, T)\na = x.mT\n# (B, T, C)\nb = a.mT\n# (B, C, T)\nc = b.mT\n# (B, T, C)\nd = c.mT\n"
)
"""Comments that all describe what the statement below them makes."""
RIGHT = [
    # what a helper returns isn't the argument that it gets
    "B, T, C = x.shape  # (B, T, C)\nswap = lambda a: a.mT\n"
    "y = torch.cat([\n    swap(x),  # (B, C, T)\n    x.mT,\n])\nreturn y",
    # a step in a generator expression reads what a helper returns
    "B, T, C = x.shape\nadd = lambda a: a[..., None]\n# (B, T, C) -> (B, T, C, 1) -> (B, C, T, 1)\n"
    "y, z = x * 1, x + 1\ny, z = (add(a).transpose(1, 2) for a in [y, z])\nreturn y + z",
    # the history of something that isn't a variable here
    "B, T, C = x.shape  # (B, T, C)\nx = x * 1  # my_x: (B, C, T) -> (B, T, C)\nreturn x",
    "B, T, C = x.shape  # (B, T, C)\nx = x * 1  # my_x: B,C,T -> B,T,C\nreturn x",
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
    # operands as they are before the product's own expression transposes or expands them
    "B, T, C = x.shape\n# (B, T, C) x (B, T, C) -> (B, T, T)\ny = x @ x.transpose(-2, -1)\nreturn y",
    "B, T, C = x.shape\nreturn x @ x.mT  # (B, T, C) @ (B, T, C) -> (B, T, T)",
    "B, T, C = x.shape\nreturn x * x.sum(-1, keepdim=True).expand_as(x)  # (B, T, C) * (B, T, 1) -> (B, T, C)",
    # a product within a shape
    "B, T, C = x.shape  # (B, T, C)\ny = x[0].flatten()  # [T * C]\nreturn y",
    "B, T, C = x.shape\ny = x.flatten(0, 1)  # [B * T, C]\nz = y.mT  # [C B * T]\nreturn z",
    # comments about a later statement
    f"{ABOVE}# (B, T, C, 1)\ny = x * 1\ny = y[..., None]\nreturn y",
    f"{ABOVE}# (B, 1, T, C)\nn = x.sum((0, 1))\nif C > 0:\n    m = n + 1\n    y = x[:, None] + m\nreturn y",
    "B, T, C = x.shape  # (B, T, C)\ny = x * 1\n\n# y: (B, C, T)\nn = y.size(1)\nm = n + 1\n\ny = y.mT\nreturn y",
    "B, T, C = x.shape  # (B, T, C)\n\n# the same by einsum\n# (B, C, C)\n\n# exchanges the axes\ny = x.mT\nreturn y",
    # a product on several lines
    "B, T, C = x.shape\n# (B, T, C)\n# x (B, C, T)\n# -> (B, T, T)\ny = x @ x.mT\nreturn y",
    "B, T, C = x.shape\n# (B, T, C)\n# -> (B, C, T)\n# -> (B, C*T)\ny = x.mT.flatten(1)\nreturn y",
    # what fused attention and other functions compute inside
    "B, T, C = x.shape\nF = torch.nn.functional\ny = F.scaled_dot_product_attention(x, x, x)"
    "  # (B, T, C) @ (B, C, T) -> (B, T, T) @ (B, T, C) -> (B, T, C)\nreturn y",
    "def g(x):\n    return x @ x.mT @ x\nB, T, C = x.shape\n"
    "# (B, T, C) @ (B, C, T) --> (B, T, T) @ (B, T, C) --> (B, T, C)\ny = g(x)\nreturn y",
    # results that aren't always returned
    '"""f.\n\nReturns:\n    out: (B, T, C)\n    weights: (B, T, T)\n"""\nB, T, C = x.shape\nreturn x',
    '"""f.\n\nReturns:\n    The output (B, T, C).\n    weights: (B, T, T)\n"""\nB, T, C = x.shape\nreturn x',
    '"""f.\n\nReturns:\n    The output, and the weights (B, T, T) if needed.\n"""\n'
    "B, T, C = x.shape\nreturn x  # (B, T, C)",
    # an arrow from the argument to the result
    "B, T, C = x.shape\ndef g(y):  # (B, T, C) -> (B, C, T)\n    y = y * 1  # (B, T, C)\n    return y.mT\nreturn g(x)",
    # a result for an input of the author's choice
    '"""f.\n\nReturns:\n    (..., d[-1]). For instance, for an input (B, C), the result is (B, d[-1]).\n"""\n'
    "B, T, C = x.shape  # (B, T, C)\nreturn x",
    # any number of axes
    "B, T, C = x.shape  # (B, T, C)\ny = x[..., None] if x.ndim == 3 else x\n\n"
    "# (B, T, C) -> (B, T, C)\nz = y + 1\nreturn z",
    # another branch
    "def g(x):  # x: (B, C, H, W)\n    if x.size(0) < 0:\n        B, C, H, W = x.shape\n"
    "    else:\n        B, N, C = x.shape\n    return x  # (B, N, C)\nreturn g(x)",
    "B, T, C = x.shape  # (B, T, C)\nif T < 0:\n    # the mean: [B, T, T]\n    x = x @ x.mT\n"
    "    return x, None\nreturn x.mT, None",
    # what the caller may broadcast
    'def g(x, m):\n    """g.\n\n    Args:\n        m: (B, T, C)\n    """\n    B, T, C = x.shape\n'
    "    return x + m  # (B, T, C)\nreturn g(x, x[:1])",
    "def g(x, m):\n    B, T, C = x.shape\n    # (B, T, C) scores\n    # (B, 1, C)\n    y = x + m\n"
    "    return y  # (B, T, C)\nreturn g(x, x)",
    # letters of the statement's own equation
    "b, c, n = x.shape  # (b, c, n)\n"
    "y = torch.einsum('bcn,nz->bcz', x, x[0, :1].mT)  # (b,c,n) x (n,z) -> (b,c,z)\n"
    "w = torch.einsum('bnc,bkc->bnk', x, x)  # (b,n,c) x (b,k,c) -> (b,n,k)\nreturn w",
    # names that stand for the own length of each argument, or for another width
    'def g(x, y):\n    """g.\n\n    Args:\n        x: (B, seq_len, C)\n        y: (B, seq_len, C)\n    """\n'
    "    B, T, C = x.shape\n    return x  # (B, T, C)\nreturn g(x, x[:, 1:])",
    'def g(x, m):\n    """g.\n\n    Args:\n        x: (B, T, C)\n        m: (B, len_seq, len_seq)\n    """\n'
    "    B, T, C = x.shape\n    return m\nreturn g(x, x[:, 1:])",
    "B, height, _ = x.shape\nwidth = height + 1\nC = x.size(2)\ny = x.mT  # (B, width, height)\n"
    "return x  # (B, height, C)",
    # a letter for heads and for a height
    "b, n, h = x.shape  # (b, n, h)\ny = x[:, :, None, 1:]  # (b, n, w, h)\nreturn y.mT  # (b, n, h, w)",
    # a legend of the letters
    "B, T, C = x.shape  # (B, T, C)\n# n: batch size\n# s: seq length\n# x: x dim\nx = x * 1\nreturn x",
    # a branch between
    "B, T, C = x.shape\n# (B, T, C) -> (B, C, T)\nif T < 0:\n    y = x + 1\nelse:\n    y = x * 1\ny = y.mT\nreturn y",
    "B, T, C = x.shape\n# B, T, C\n# -> B, C, T\n# -> B, C*T\ny = x.mT.flatten(1)\nreturn y",
    # subscripts of LaTeX
    '"""f.\n\nArgs:\n    x: (N, Length_{query}, C), with another (w, h) for boxes\n"""\n'
    "N, Length_query, C = x.shape\nreturn x  # (N, Length_query, C)",
    # one of several results
    "B, T, C = x.shape\ny, z = x.mT, x.sum(2)  # (B, C, T)\nreturn y",
    "B, T, C = x.shape\n# B, T\ny, z = x.mT, x.sum(2)\nreturn y",
    # a letter for several widths
    "B, T, C = x.shape\ny = x[..., :3]  # (B, T, F)\nz = y + 1  # (B, T, F)\n\n# (B, T, C) -> (B, T, F)\n"
    "w = torch.cat((x, x), -1)\nreturn w",
]
WRONG = [
    ("B, T, C = x.shape\ny, z = x.mT, x.sum(2)  # y, z: (B, C, T), (B, C)\nreturn y", [(2, "AS003")]),
    (
        "B, T, C = x.shape\nif T > 0:\n    # (B, T, C) -> (B, C, T)\n    y = x * 1\n"
        "else:\n    y = x + 1\ny = y.mT\nreturn y",
        [(3, "AS002")],
    ),
    ("B, T, C = x.shape  # (B, T, C)\n# x: (B, C, T)\n# q: q dim\nx = x * 1\nreturn x", [(2, "AS002")]),
    ("B, T, C = x.shape\ny, z = x.mT, x.sum(2)  # (B, T, C)\nreturn y", [(2, "AS002")]),
    ("B, T, C = x.shape\ny, z = x, x.mT  # (B, T, C)\nreturn y", [(2, "AS002")]),
    ("B, T, C = x.shape\n# normalizer: (B, T, T)\ny = x.mT\nreturn y", [(2, "AS003")]),
    ("B, T, C = x.shape\nself = torch.nn.Module()\nself.C = C\ny = x.mT  # (B, self.C, C)\nreturn y", [(4, "AS003")]),
    ("B, T, C = x.shape  # (B, C, T)\nreturn x", [(1, "AS002")]),
    (f"{ABOVE}# (B, T, C, 1)\ny = x * 1\ny = y[:, None]\nreturn y", [(10, "AS001")]),
    ("B, T, C = x.shape\n\n# x: (B, C, T)\nn = x.size(1)\n\n# twice\nx = x.mT\nreturn x", [(3, "AS002")]),
    ("B, T, C = x.shape\n# (B, T, C)\n# x (B, C, T)\n# -> (B, C, C)\ny = x @ x.mT\nreturn y", [(4, "AS003")]),
    ("B, T, C = x.shape\n# (B, T, C)\n# x (B, C, C)\n# -> (B, T, T)\ny = x @ x.mT\nreturn y", [(3, "AS003")]),
    ("B, T, C = x.shape\nreturn x[:, None] @ x.mT[:, None]  # (B, T, C) @ (B, 1, C, T)", [(2, "AS001")]),
    ('"""f.\n\nReturns:\n    out: (B, C, T)\n    w: (B, T, T)\n"""\nB, T, C = x.shape\nreturn x', [(4, "AS002")]),
    ("B, T = x.size(0), x.size(1)  # (T, B)\nreturn x", [(1, "AS002")]),
    ("def g(y):  # (B, T, C) -> (B, T, C)\n    B, T, C = y.shape\n    return y.mT\nreturn g(x)", [(1, "AS002")]),
    # the docstring alone has another order than the comments above statements
    (
        '"""f.\n\nReturns:\n    (batch, longest, less)\n"""\nB, T, C = x.shape  # (batch, T, depth)\ny = x * 1\n\n'
        "# (longest, batch, depth)\nx = y.transpose(0, 1)\n\n# (longest, batch, less)\nx = x[..., 1:]\nreturn x",
        [(4, "AS002")],
    ),
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


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('"""f.\n\nArgs:\n    x: (batch, n, C)\n"""\nB, T, C = x.shape  # (B, T, C)\nreturn x', []),
        ("B, T, C = x.shape\ny = x.new_zeros(config.n, C)  # (n, C)\nreturn x  # (B, n, C)", [(3, "AS003")]),
    ],
)
def test_constant_counts_only_where_a_shape_confirms_it(
    tmp_path: Path, body: str, expected: list[tuple[int, str]]
) -> None:
    assert found(tmp_path, body, "x, config=__import__('types').SimpleNamespace(n=300)") == expected


def test_finding_with_several_tensors_names_the_closest(tmp_path: Path) -> None:
    body = "B, T, C = x.shape\ny = x * 1\n# (B, C, T)\nz = y[:, :, None]\nreturn z"
    (finding,) = checked(tmp_path, body).findings
    assert finding.message == (
        "a tensor on the surrounding lines is documented as (B, C, T), "
        "but no tensor there has this shape; the closest is (B, T, C)"
    )
    assert finding.hint == "write (B, T, C), if that tensor is meant"
