"""The imports that annotations need: their position and their names."""

from __future__ import annotations

import ast

import pytest

from tests.annotate.form_strings import forms_of, rewritten_text

DEF = "\n\ndef f(x):\n    return x\n"
FORMS = {"arguments": {"x": "B L"}, "result": "bool B"}


def head(before: str) -> str:
    """Return the lines above the function after the rewrite."""
    data = (before + DEF).encode()
    text = rewritten_text(data, forms_of(data, "f", **FORMS)).decode()  # type: ignore[arg-type]
    ast.parse(text)
    return text.partition("\n\ndef f")[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import torch\n", "import torch\nfrom jaxtyping import Bool, Float\n"),
        (
            "import math\n\nimport torch\nfrom torch import Tensor\n",
            "import math\n\nimport torch\nfrom torch import Tensor\nfrom jaxtyping import Bool, Float\n",
        ),
        (
            "import torch  # the library\nimport os\n\nX = 1\n",
            "import torch  # the library\nimport os\nfrom jaxtyping import Bool, Float\n\nX = 1\n",
        ),
        (
            "from jaxtyping import Float\nfrom torch import Tensor\n",
            "from jaxtyping import Bool, Float\nfrom torch import Tensor\n",
        ),
        (
            "from jaxtyping import (\n    Bool,\n)\nfrom torch import Tensor\n",
            "from jaxtyping import (\n    Float, Bool,\n)\nfrom torch import Tensor\n",
        ),
        ("", "from jaxtyping import Bool, Float\nfrom torch import Tensor\n"),
        (
            '"""Doc."""\nfrom __future__ import annotations\n',
            '"""Doc."""\nfrom __future__ import annotations\n'
            "from jaxtyping import Bool, Float\nfrom torch import Tensor\n",
        ),
        ("# a comment\n", "# a comment\n\n\nfrom jaxtyping import Bool, Float\nfrom torch import Tensor\n"),
        (
            "try:\n    from torch import Tensor\nexcept ImportError:\n    pass\nfrom .a import b\n",
            "try:\n    from torch import Tensor\nexcept ImportError:\n    pass\nfrom .a import b\n"
            "from jaxtyping import Bool, Float\nimport torch\n",
        ),
    ],
)
def test_position_of_added_imports(before: str, after: str) -> None:
    text = head(before)
    if before.startswith("try"):  # `Tensor` may be anything there
        assert "import torch" in text
        assert "from jaxtyping import Bool, Float" in text
    else:
        assert text.strip("\n") == after.strip("\n")


@pytest.mark.parametrize(
    ("before", "argument"),
    [
        ("import torch as th\n", 'Float[th.Tensor, "B L"]'),
        ("from torch import Tensor as T\n", 'Float[T, "B L"]'),
        ("import torch.nn as nn\nfrom torch import Tensor\n", 'Float[Tensor, "B L"]'),
        ("import torch\nimport jaxtyping as jt\n", 'jt.Float[torch.Tensor, "B L"]'),
        ("import torch\nfrom jaxtyping import Float as F\n", 'F[torch.Tensor, "B L"]'),
        ("import torch\nclass Float: pass\n", 'jaxtyping.Float[torch.Tensor, "B L"]'),
        ("import torch\nFloat = float\n", 'jaxtyping.Float[torch.Tensor, "B L"]'),
        ("import torch\nFloat = jaxtyping = 1\n", '_jaxtyping.Float[torch.Tensor, "B L"]'),
        ("class Tensor: pass\n", 'Float[torch.Tensor, "B L"]'),
    ],
)
def test_imported_names_are_reused(before: str, argument: str) -> None:
    data = (before + DEF).encode()
    text = rewritten_text(data, forms_of(data, "f", **FORMS)).decode()  # type: ignore[arg-type]
    assert f"def f(x: {argument})" in text
    names: dict[str, object] = {}
    exec(compile(text, "m.py", "exec", dont_inherit=True), names)
    assert names["f"].__annotations__["x"].dim_str == "B L"  # type: ignore[attr-defined]


def test_line_endings_are_kept() -> None:
    data = ("import torch\r\n" + DEF.replace("\n", "\r\n")).encode()
    new = rewritten_text(data, forms_of(data, "f", **FORMS))  # type: ignore[arg-type]
    assert new.count(b"\n") == new.count(b"\r\n") == data.count(b"\n") + 1
