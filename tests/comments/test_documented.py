"""The shapes that docstrings and annotations document, and their variables."""

import ast
import textwrap

import pytest

from attnshape.comments.annotations import allows_dtype, find_annotations, kind_of_dtype
from attnshape.comments.documented import docstring_entries
from attnshape.comments.notation import find_bare_shapes, find_shapes


def documented_in(docstring: str, parameters: str = "query, key, mask=None") -> list[tuple[str, str | None, str]]:
    """Return the role, the parameter and the text of each shape in a docstring."""
    source = f"def f({parameters}):\n" + textwrap.indent(f'r"""{docstring}"""\npass', "    ")
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef)
    return [
        (entry.of, entry.parameter, documented.text)
        for entry in docstring_entries(node, None)
        for documented in (*find_shapes(entry.text), *find_bare_shapes(entry.text))
        if len(documented.axes) > 1
    ]


GOOGLE = """Attend.

Args:
    query: of shape (B, Lq, D).
    key (Tensor): the keys,
        on two lines (B, Lk, D)
    mask (Tensor, optional): [B, Lq, Lk]

Returns:
    The context, (B, Lq, D)
"""
NUMPY = """Attend.

Parameters
----------
query : Tensor, shape [B, Lq, D]
key : Tensor
    of shape [B, Lk, D]
mask : Tensor, bsz x qlen x klen

Returns
-------
out : Tensor, shape [B, Lq, D]
    more: [B, Lq]
"""
SPHINX = """Attend.

:param query: (B, Lq, D)
:param torch.Tensor key: (B, Lk, D)
:type mask: [B, Lq, Lk]
:returns: (B, Lq, D)
:rtype: Tensor (B, Lq)
"""
TORCH = """Attend.

Shape:
    - query: :math:`(N, L, E)` where L is the target length.
    - key: :math:`(N, S, E)`
    - Output: :math:`(N, L, E)`
"""
HEADINGS = """Attend.

Inputs:

- query: (N, L, E)
- key: (N, S, E)

Outputs:

- out: (N, L, E)
- weights: (N, L, S)
"""


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        (
            GOOGLE,
            [
                ("parameter", "query", "(B, Lq, D)"),
                ("parameter", "key", "(B, Lk, D)"),
                ("parameter", "mask", "[B, Lq, Lk]"),
                ("result", None, "(B, Lq, D)"),
            ],
        ),
        (
            NUMPY,
            [
                ("parameter", "query", "[B, Lq, D]"),
                ("parameter", "key", "[B, Lk, D]"),
                ("parameter", "mask", "bsz x qlen x klen"),
                ("result", None, "[B, Lq, D]"),
                ("result", None, "[B, Lq]"),
            ],
        ),
        (
            SPHINX,
            [
                ("parameter", "query", "(B, Lq, D)"),
                ("parameter", "key", "(B, Lk, D)"),
                ("parameter", "mask", "[B, Lq, Lk]"),
                ("result", None, "(B, Lq, D)"),
                ("result", None, "(B, Lq)"),
            ],
        ),
        (
            TORCH,
            [
                ("parameter", "query", "(N, L, E)"),
                ("parameter", "key", "(N, S, E)"),
                ("result", None, "(N, L, E)"),
            ],
        ),
        (
            HEADINGS,
            [
                ("parameter", "query", "(N, L, E)"),
                ("parameter", "key", "(N, S, E)"),
                ("result", None, "(N, L, E)"),
                ("result", None, "(N, L, S)"),
            ],
        ),
        ("Attend to (B, L, D) with care.", [("anything", None, "(B, L, D)")]),
        ("Returns a tensor (B, L, D).", [("result", None, "(B, L, D)")]),
        ("Input: (B, L, D)", [("argument", None, "(B, L, D)")]),
    ],
    ids=["google", "numpy", "sphinx", "torch", "headings", "prose", "sentence", "input"],
)
def test_roles_of_shapes_in_a_docstring(docstring: str, expected: list[tuple[str, str | None, str]]) -> None:
    assert documented_in(docstring) == expected


def test_listed_results_are_separate_items() -> None:
    node = ast.parse(f'def f(query, key):\n    """{HEADINGS}"""').body[0]
    assert isinstance(node, ast.FunctionDef)
    listed = [entry for entry in docstring_entries(node, None) if entry.of == "result" and entry.listed]
    assert len({entry.item for entry in listed}) == 2


@pytest.mark.parametrize("name", ["forward", "__call__"])
def test_class_docstring_documents_forward(name: str) -> None:
    tree = ast.parse(f'class A:\n    """A.\n\n    Shape:\n        - x: (B, T)\n    """\n    def {name}(self, x): pass')
    owner = tree.body[0]
    assert isinstance(owner, ast.ClassDef)
    node = owner.body[1]
    assert isinstance(node, ast.FunctionDef)
    assert [(entry.of, entry.parameter) for entry in docstring_entries(node, owner) if "(B" in entry.text] == [
        ("parameter", "x")
    ]
    node.name = "other"
    assert not [entry for entry in docstring_entries(node, owner) if "(B" in entry.text]


def test_function_without_a_docstring() -> None:
    for source in ("def f(): pass", "def f():\n    1", 'def f():\n    f""', "def f():\n    b''"):
        node = ast.parse(source).body[0]
        assert isinstance(node, ast.FunctionDef)
        assert list(docstring_entries(node, None)) == []


def test_escaped_newlines_do_not_shift_the_line() -> None:
    node = ast.parse('def f(x):\n    """A.\\n\\n\\n\n    x: (B, T)"""').body[0]
    assert isinstance(node, ast.FunctionDef)
    assert [entry.line for entry in docstring_entries(node, None) if entry.parameter == "x"] == [3]


def annotated(source: str) -> list[tuple[str, str, str | None, int | None]]:
    node = ast.parse(textwrap.dedent(source)).body[0]
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    return [
        (annotation.kind, annotation.dims, annotation.parameter, annotation.item)
        for annotation in find_annotations(node)
    ]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('def f(x: Float[Tensor, "B T"]): ...', [("Float", "B T", "x", None)]),
        ('def f(x: jaxtyping.Float[torch.Tensor, "B T"]): ...', [("Float", "B T", "x", None)]),
        ("def f(x: \"Float[Tensor, 'B T']\"): ...", [("Float", "B T", "x", None)]),
        ('def f(x: Optional[Bool[Tensor, "B T"]] = None): ...', [("Bool", "B T", "x", None)]),
        ('def f(x: Bool[Tensor, "B T"] | None = None): ...', [("Bool", "B T", "x", None)]),
        (
            'def f(x: Bool[Tensor, "B T"] | Float[Tensor, "T"]): ...',
            [("Bool", "B T", "x", None), ("Float", "T", "x", None)],
        ),
        ('def f(x: Annotated[Int[Tensor, "B"], "ids"]): ...', [("Int", "B", "x", None)]),
        (
            'def f(*xs: Float32[Tensor, "B"], k: Int64[Tensor, ""]): ...',
            [("Int64", "", "k", None), ("Float32", "B", "xs", None)],
        ),
        ('def f() -> Float[Tensor, "B"]: ...', [("Float", "B", None, None)]),
        (
            'def f() -> tuple[Float[Tensor, "B"], int, Int[Tensor, "T"]]: ...',
            [("Float", "B", None, 0), ("Int", "T", None, 2)],
        ),
        ('def f():\n    x: Float[Tensor, "B"] = g()', [("Float", "B", None, None)]),
        ('async def f() -> Float[Tensor, "B"]: ...', [("Float", "B", None, None)]),
        ('def f():\n    x: Float[Tensor, "B"]', []),
        ('def f():\n    def g(x: Float[Tensor, "B"]): ...', []),
        ("def f(x: Float[Tensor, dims]): ...", []),
        ('def f(x: Other[Tensor, "B"]): ...', []),
        ('def f(x: "not valid ["): ...', []),
        ('def f(x: Literal["a", "b"]): ...', []),
        ("def f(x): ...", []),
    ],
)
def test_forms_of_annotations(source: str, expected: list[tuple[str, str, str | None, int | None]]) -> None:
    assert annotated(source) == expected


KINDS = {
    "Float": {"float32", "float64", "float16", "bfloat16"},
    "Int": {"int8", "int64"},
    "UInt": {"uint8"},
    "Integer": {"int8", "int64", "uint8"},
    "Bool": {"bool"},
    "Complex": {"complex64"},
    "Inexact": {"float32", "float64", "float16", "bfloat16", "complex64"},
    "Real": {"float32", "float64", "float16", "bfloat16", "int8", "int64", "uint8"},
    "Num": {"float32", "float64", "float16", "bfloat16", "int8", "int64", "uint8", "complex64"},
}
DTYPES = set.union(*KINDS.values())


@pytest.mark.parametrize("kind", KINDS)
def test_dtypes_of_each_kind(kind: str) -> None:
    assert {dtype for dtype in DTYPES if allows_dtype(kind, dtype)} == KINDS[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_match_jaxtyping(kind: str) -> None:
    jaxtyping = pytest.importorskip("jaxtyping")
    torch = pytest.importorskip("torch")
    form = getattr(jaxtyping, kind)[torch.Tensor, "..."]
    for dtype in DTYPES:
        assert isinstance(torch.zeros(2, dtype=getattr(torch, dtype)), form) is allows_dtype(kind, dtype), dtype


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_kind_of_a_dtype_allows_it(dtype: str) -> None:
    assert allows_dtype(kind_of_dtype(dtype), dtype)
