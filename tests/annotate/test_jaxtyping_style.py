"""jaxtyping annotations of arguments, results and local variables, from inferred forms to the file's text."""

from __future__ import annotations

import ast

import pytest

from attnshape.annotate.changes import AnnotateContext
from tests.annotate.form_strings import SIZES, forms_of, rewritten, rewritten_text, source

HEAD = b"from jaxtyping import Bool, Float, Int\nfrom torch import Tensor\n\n\n"


def body(data: bytes, **forms: object) -> str:
    """Return the rewritten function `f`, whose file already has all imports."""
    result = rewritten_text(HEAD + data, forms_of(HEAD + data, "f", **forms))  # type: ignore[arg-type]
    assert result.startswith(HEAD)
    return result.removeprefix(HEAD).decode()


def test_argument_result_and_variable() -> None:
    data = b"def f(x):\n    y = x + 1\n    return y\n"
    expected = (
        'def f(x: Float[Tensor, "B L"]) -> Float[Tensor, "B L"]:\n    y: Float[Tensor, "B L"] = x + 1\n    return y\n'
    )
    assert body(data, arguments={"x": "B L"}, stores={"y": "B L"}, result="B L") == expected


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x", 'x: Float[Tensor, "B L"]'),
        ("x: Tensor", 'x: Float[Tensor, "B L"]'),
        ("x :Tensor", 'x :Float[Tensor, "B L"]'),
        ("x=None", 'x: Float[Tensor, "B L"] | None = None'),
        ("x = None", 'x: Float[Tensor, "B L"] | None = None'),
        ("x: Tensor = None", 'x: Float[Tensor, "B L"] | None = None'),
        ("x: 'Tensor'", "x: 'Float[Tensor, \"B L\"]'"),
        ('x: "Tensor | None" = None', "x: \"Float[Tensor, 'B L'] | None\" = None"),
        ("*, x", '*, x: Float[Tensor, "B L"]'),
        ("x, /", 'x: Float[Tensor, "B L"], /'),
        ("x: int", "x: int"),
        ("x: Float[Tensor, 'b l']", "x: Float[Tensor, 'b l']"),
        ("*x", "*x"),
        ("**x", "**x"),
    ],
)
def test_annotation_of_a_parameter(before: str, after: str) -> None:
    result = body(f"def f({before}): pass\n".encode(), arguments={"x": "B L"})
    assert result == f"def f({after}): pass\n"


@pytest.mark.parametrize(
    ("annotation", "form", "expected"),
    [
        ("torch.Tensor", "B L", 'Float[torch.Tensor, "B L"]'),
        ("torch.FloatTensor", "B L", 'Float[torch.Tensor, "B L"]'),
        ("typing.Optional[torch.Tensor]", "B L", 'typing.Optional[Float[torch.Tensor, "B L"]]'),
        ("torch.Tensor | None", "int64 B", 'Int[torch.Tensor, "B"] | None'),
        ("typing.Union[None, torch.Tensor]", "B", 'typing.Union[None, Float[torch.Tensor, "B"]]'),
        ("tuple[torch.Tensor, int]", "(B L, None)", 'tuple[Float[torch.Tensor, "B L"], int]'),
        ("typing.Tuple[torch.Tensor, ...]", "(B, B)", "typing.Tuple[torch.Tensor, ...]"),
        ("tuple[torch.Tensor]", "(B, B)", "tuple[torch.Tensor]"),
        ("torch.nn.Module", "B", "torch.nn.Module"),
    ],
)
def test_plain_tensor_annotation_gets_the_shape(annotation: str, form: str, expected: str) -> None:
    data = f"import typing\n\nimport torch\n\n\ndef f() -> {annotation}:\n    return g()\n".encode()
    result = rewritten_text(data, forms_of(data, "f", result=form)).decode()
    assert f"def f() -> {expected}:" in result


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("", 'Float[Tensor, ""]'),
        ("3 4", 'Float[Tensor, "3 4"]'),
        ("B _ D", 'Float[Tensor, "B _ D"]'),
        ("B ... D", 'Float[Tensor, "B ... D"]'),
        ("bool B L", 'Bool[Tensor, "B L"]'),
        ("B L | None", 'Float[Tensor, "B L"] | None'),
        ("(B L, bool B)", 'tuple[Float[Tensor, "B L"], Bool[Tensor, "B"]]'),
        ("B L?", 'Float[Tensor, "B _"]'),
        ("B H*Dk", 'Float[Tensor, "B _HDk"]'),
        ("B 3*D", 'Float[Tensor, "B _"]'),
    ],
)
def test_annotation_of_a_result(form: str, expected: str) -> None:
    assert body(b"def f():\n    return g()\n", result=form).startswith(f"def f() -> {expected}:")


@pytest.mark.parametrize("form", ["_ _", "...", "L?", "(B, None)", "None"])
def test_unknown_form_is_not_written(form: str) -> None:
    assert body(b"def f():\n    return g()\n", result=form) == "def f():\n    return g()\n"


def test_include_matched_writes_matched_axes() -> None:
    data = HEAD + b"def f():\n    return g()\n"
    result = rewritten_text(
        data, forms_of(data, "f", result="B L?"), context=AnnotateContext(include_matched=True, sizes=SIZES)
    )
    assert b'Float[Tensor, "B L"]' in result


def test_expression_needs_its_symbols_bound() -> None:
    data = b"def f(x, y):\n    a = x\n    if x:\n        b = y\n        c = a\n    d = c\n    return d\n"
    forms = {"a": "H Dk", "b": "Lk", "c": "Lk+L 2*Dk", "d": "2*Dk Lk+L H*Lk 3*D"}
    result = body(data, arguments={"x": "B L*D", "y": "L D 2*B"}, stores=forms, result="B*L 2*Dk")
    assert 'x: Float[Tensor, "B _LD"], y: Float[Tensor, "L D 2*B"]' in result
    assert '-> Float[Tensor, "B*L _"]' in result
    assert '        c: Float[Tensor, "Lk+L 2*Dk"] = a' in result
    assert '    d: Float[Tensor, "2*Dk _ _HLk 3*D"] = c' in result


def test_optional_argument_binds_no_symbols() -> None:
    result = body(b"def f(x, y=None, z=0):\n    pass\n", arguments={"x": "2*B | None", "y": "L", "z": "2*L D 3*D"})
    assert 'z: Float[Tensor, "_ D _"]' in result


@pytest.mark.parametrize(
    "line",
    [
        "y, z = x",
        "(y) = x",
        "y = z = x",
        "y += x",
        "y: int = x",
        "for y in x: pass",
        "with x as y: pass",
        "(y := x)",
        "self.y = x",
        "y[0] = x",
        "del y",
        "import y",
        "[y for y in x]",
    ],
)
def test_unannotatable_statement_is_unchanged(line: str) -> None:
    data = f"def f(self, x):\n    {line}\n".encode()
    assert body(data, stores={"y": "B L", "z": "B L"}) == data.decode()


@pytest.mark.parametrize("word", ["global", "nonlocal"])
def test_global_and_nonlocal_variables_are_not_annotated(word: str) -> None:
    data = f"def g():\n    y = 1\n    def f():\n        {word} y\n        y = 2\n".encode()
    assert rewritten_text(HEAD + data, forms_of(HEAD + data, "g.f", stores={"y": "B L"})) == HEAD + data


def test_variable_already_declared_is_not_annotated() -> None:
    data = b"def f():\n    y: int\n    y = g()\n"
    assert body(data, stores={"y": "B L"}) == data.decode()


def test_each_binding_of_a_variable_is_annotated() -> None:
    result = body(b"def f(x):\n    x = x.mT\n    x = x @ x\n", arguments={"x": "B L"}, stores={"x": "B L"})
    assert result.count('x: Float[Tensor, "B L"] = ') == 2


@pytest.mark.parametrize(
    "head",
    [
        "@torch.jit.script\ndef f(x):",
        "async def f(x):",
        "@functools.wraps(g)\ndef f(x):",
        "@typing.overload\ndef f(x):",
    ],
)
def test_unannotatable_functions_are_unchanged(head: str) -> None:
    data = f"import functools, typing\nimport torch\n\n{head}\n    y = x\n".encode()
    if head.startswith("async"):
        data = data.replace(b"    y = x", b"    yield x")
        assert rewritten_text(data, forms_of(data.replace(b"async ", b""), "f", arguments={"x": "B L"})) == data
    else:
        assert rewritten_text(data, forms_of(data, "f", arguments={"x": "B L"})) == data


def test_generators_are_not_annotated() -> None:
    data = b"def f(x):\n    y = x\n    yield y\n"
    assert body(data, arguments={"x": "B L"}, stores={"y": "B L"}) == data.decode()


def test_second_run_changes_nothing() -> None:
    data = b"import torch\n\n\ndef f(x, m=None):\n    y = x + 1\n    return y, m\n"
    forms = {"arguments": {"x": "B L", "m": "L L"}, "stores": {"y": "B 3*L"}, "result": "(B L, L L)"}
    once = rewritten_text(data, forms_of(data, "f", **forms))  # type: ignore[arg-type]
    assert once != data
    assert rewritten_text(once, forms_of(once, "f", **forms)) == once  # type: ignore[arg-type]


@pytest.mark.parametrize("existing", ["keep", "replace", "check"])
def test_existing_signature(existing: str) -> None:
    data = HEAD + b"def f(x: Float[Tensor, 'B D'], y: Float[Tensor, 'b l']):\n    pass\n"
    forms = forms_of(data, "f", arguments={"x": "B L", "y": "B L"})
    rewrite = rewritten(data, forms, context=AnnotateContext(existing, sizes=SIZES))  # type: ignore[arg-type]
    if existing == "replace":
        assert b'x: Float[Tensor, "B L"], y: Float[Tensor, "B L"]' in rewrite.files[0][0].apply(rewrite.files[0][1])
    else:
        assert not rewrite.files


def test_columns_are_counted_in_utf8_bytes() -> None:
    data = "def f(x):\n    'é😀'; y = x; z = 'ü'; w = y\n".encode()
    result = body(data, stores={"y": "B L", "w": "B"})
    assert result == ("def f(x):\n    'é😀'; y: Float[Tensor, \"B L\"] = x; z = 'ü'; w: Float[Tensor, \"B\"] = y\n")


def test_rewritten_code_parses() -> None:
    data = b"def f(x, *a, k=1, **b):\n    y = yield_ = 1\n    z = *a, x\n    return z\n"
    result = body(data, arguments={"x": "B", "k": "B L"}, stores={"z": "(B, B L)"}, result="(B, B L)")
    ast.parse(result)
    assert source(result.encode()).text == result
