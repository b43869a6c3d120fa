"""The imports that annotations need: where they are put, and under which names."""

from __future__ import annotations

import ast

import pytest

from tests.annotate.form_strings import known, written

DEF = "\n\ndef f(x):\n    return x\n"
SAID = {"arguments": {"x": "B L"}, "result": "bool B"}


def head(before: str) -> str:
    """Return what becomes of a file's lines above the function."""
    data = (before + DEF).encode()
    made = written(data, known(data, "f", **SAID)).decode()  # type: ignore[arg-type]
    ast.parse(made)
    return made.partition("\n\ndef f")[0]


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
def test_where_they_are_put(before: str, after: str) -> None:
    made = head(before)
    if before.startswith("try"):  # `Tensor` may be anything there
        assert "import torch" in made
        assert "from jaxtyping import Bool, Float" in made
    else:
        assert made.strip("\n") == after.strip("\n")


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
def test_under_which_names(before: str, argument: str) -> None:
    data = (before + DEF).encode()
    made = written(data, known(data, "f", **SAID)).decode()  # type: ignore[arg-type]
    assert f"def f(x: {argument})" in made
    names: dict[str, object] = {}
    exec(compile(made, "m.py", "exec", dont_inherit=True), names)
    assert names["f"].__annotations__["x"].dim_str == "B L"  # type: ignore[attr-defined]


def test_lines_end_as_the_others_do() -> None:
    data = ("import torch\r\n" + DEF.replace("\n", "\r\n")).encode()
    made = written(data, known(data, "f", **SAID))  # type: ignore[arg-type]
    assert made.count(b"\n") == made.count(b"\r\n") == data.count(b"\n") + 1
