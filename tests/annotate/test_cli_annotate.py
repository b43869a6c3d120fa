"""The `annotate` command: its output, the errors it reports, and the project's files afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import Attnshape, attnshape, folder, root

__all__ = ["attnshape", "folder", "root"]

MODEL = '''"""A model."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)

    def split(self, x):
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x, mask=None):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = self.split(q) @ self.split(k).mT
        if mask is not None:
            scores = scores.masked_fill(mask, float("-inf"))
        weights = scores.softmax(dim=-1)
        return (weights @ self.split(v)).transpose(1, 2).flatten(2)


def attend(query, key):
    scores = query @ key.mT
    return scores


def one(B, L, Dk):
    return attend, (torch.randn(B, L, Dk), torch.randn(B, L, Dk))


def other(B, H, Lq, Lk, Dk):
    return attend, (torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk))
'''
SELF = ("model.py:Attention", "--init", "D, H", "--input", "x: B L D")


@pytest.fixture
def model(folder: Path) -> Path:
    path = folder / "model.py"
    path.write_text(MODEL)
    return path


def test_stdout_has_only_the_diff(attnshape: Attnshape, model: Path) -> None:
    done = attnshape("annotate", *SELF)
    assert done.status == 0
    assert done.out.startswith("--- a/model.py\n+++ b/model.py\n@@ ")
    assert '+        weights: Float[torch.Tensor, "B H L L"] = scores.softmax(dim=-1)\n' in done.out
    assert "model.py: 2 arguments, 2 results and 2 local variables to annotate" in done.err
    assert "verified: " in done.err
    assert "left out, since unpacked names can't be annotated: q, k, v in Attention.forward" in done.err
    assert model.read_text() == MODEL
    subprocess.run(["git", "apply", "-"], input=done.out.encode(), cwd=model.parent, check=True)
    assert model.read_text() != MODEL


def test_second_write_changes_nothing(attnshape: Attnshape, model: Path) -> None:
    done = attnshape("annotate", *SELF, "--write")
    assert (done.status, done.out) == (0, "")
    assert "2 local variables annotated" in done.err
    assert "there is no git repository" in done.err
    once = model.read_text()
    assert once != MODEL
    for name in ("model", "attnshape_target_model"):
        sys.modules.pop(name, None)
    again = attnshape("annotate", *SELF, "--write")
    assert (again.status, again.out) == (0, "")
    assert "model.py: nothing to change" in again.err
    assert model.read_text() == once


def test_comment_style_diff(attnshape: Attnshape, model: Path) -> None:
    done = attnshape("annotate", *SELF, "--style", "comment")
    assert "+        q, k, v = self.qkv(x).chunk(3, dim=-1)  # q, k, v: (B, L, D)\n" in done.out
    assert "+        return (weights @ self.split(v)).transpose(1, 2).flatten(2)  # (B, L, D)\n" in done.out


@pytest.mark.slow
def test_annotations_of_several_cases_hold_for_all_of_them(attnshape: Attnshape, model: Path) -> None:
    first = attnshape("annotate", "model.py:one")
    assert '+def attend(query: Float[torch.Tensor, "B L Dk"], key: Float[torch.Tensor, "B L Dk"])' in first.out
    both = attnshape("annotate", "model.py:one", "--case", "model.py:other")
    tensor = 'Float[torch.Tensor, "B ... Dk"]'
    signature = f'query: {tensor}, key: {tensor}) -> Float[torch.Tensor, "B ..."]:'
    assert f"+def attend({signature}\n" in both.out
    assert '+    scores: Float[torch.Tensor, "B ..."] = query' in both.out
    reversed_order = attnshape("annotate", "model.py:other", "--case", "model.py:one")
    changed = [line for line in both.out.splitlines() if line.startswith("+ ")]
    assert changed == [line for line in reversed_order.out.splitlines() if line.startswith("+ ")]


def test_case_of_a_class_uses_the_typed_flags(attnshape: Attnshape, model: Path) -> None:
    model.write_text(
        MODEL
        + "\n\ndef masked(B, L, D, H):\n    return Attention(D, H), (torch.randn(B, L, D), torch.ones(L, L) > 2)\n"
    )
    done = attnshape("annotate", *SELF, "--case", "model.py:masked")
    assert 'mask: Bool[torch.Tensor, "L L"] | None = None' in done.out


def test_existing_check_reports_a_wrong_signature(attnshape: Attnshape, model: Path) -> None:
    text = MODEL.replace("def split(self, x):", 'def split(self, x: Float[torch.Tensor, "B D L"]):')
    text = text.replace(
        "def forward(self, x, mask=None)", 'def forward(self, x: Float[torch.Tensor, "B L"], mask=None)'
    )
    model.write_text("from jaxtyping import Float\n" + text)
    done = attnshape("annotate", *SELF, "--existing", "check")
    assert done.status == 1
    assert 'model.py:17: `x` is documented as Float[…, "B L"], but has shape (B, L, D)' in done.err
    assert "at B=" in done.err


@pytest.mark.parametrize("style", ["jaxtyping", "comment"])
def test_existing_check_reports_what_check_as0_reports(attnshape: Attnshape, folder: Path, style: str) -> None:
    lines = [
        "def f(q, k):",
        "    B, L, D = q.shape",
        "    a = q @ k.mT  # (B, L, D)",
        "    b = a.softmax(-1)  # -> (B, L, L)",
        "    c = b @ k  # (B, L, L) x (B, L, D) -> (B, D, L)",
        "    return c  # (B, L, D)",
    ]
    (folder / "documented.py").write_text("\n".join(lines))
    arguments = ("documented.py:f", "--input", "q: B L D", "--input", "k: B L D")
    done = attnshape("annotate", *arguments, "--style", style, "--existing", "check")
    found = [line for line in done.err.splitlines() if line.startswith("documented.py:") and "documented as" in line]
    assert [line.split(":")[1] for line in found] == ["3", "5"]
    assert done.status == 1
    checked = attnshape("check", *arguments, "--select", "AS0")
    assert [line for line in (3, 5) if f"documented.py:{line}" in checked.out] == [3, 5]
    default = attnshape("annotate", *arguments, "--style", style)
    assert (default.status, "documented as" in default.err) == (0, False)


@pytest.mark.slow
@pytest.mark.parametrize(("existing", "status"), [("check", 1), ("replace", 0)])
def test_wrong_signature_under_enforce(attnshape: Attnshape, model: Path, existing: str, status: int) -> None:
    attnshape("annotate", "model.py:one", "--enforce", "--write")
    right = model.read_text()
    wrong = right.replace('key: Float[torch.Tensor, "B L Dk"]', 'key: Float[torch.Tensor, "L B Dk"]')
    assert wrong != right
    model.write_text(wrong)
    for name in ("model", "attnshape_target_model"):
        sys.modules.pop(name, None)
    done = attnshape("annotate", "model.py:one", "--existing", existing, "--write")
    assert done.status == status, done.err
    assert model.read_text() == (wrong if existing == "check" else right)


@pytest.mark.parametrize(
    ("head", "body", "expected"),
    [
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch import Tensor\n", "return x", "x in f"),
        ("import torch\nTensor = torch.Tensor\n", "return x", "x in f"),
        ("try:\n    from torch import Tensor\nexcept ImportError:\n    raise\n", "return x", "x in f"),
        (
            "from torch import Tensor\n",
            "return [*g(x)][0]\ndef g(x):\n    yield x",
            "g: it is a generator or a coroutine",
        ),
    ],
)
def test_left_out_annotations_are_reported(
    attnshape: Attnshape, folder: Path, head: str, body: str, expected: str
) -> None:
    text = f"from __future__ import annotations\n{head}\ndef f(x: Tensor):\n    {body}\n"
    (folder / "passed.py").write_text(text)
    done = attnshape("annotate", "passed.py:f", "--input", "x: B L")
    assert done.status == 0, done.err
    assert f"left out: {expected}" in done.err


@pytest.mark.parametrize("style", ["jaxtyping", "comment"])
def test_constant_axis_is_noted(attnshape: Attnshape, folder: Path, style: str) -> None:
    text = "def f(x):\n    mem = x.new_ones(x.shape[0], 16)\n    two = x.new_ones(x.shape[0], 2)\n    return x\n"
    (folder / "numbered.py").write_text(text)
    done = attnshape("annotate", "numbered.py:f", "--input", "x: B L", "--style", style)
    notes = [line for line in done.err.splitlines() if line.startswith("note: ")]
    assert notes == ["note: no size determines the 16 in mem: other arguments may need another number"]


def test_output_flag_writes_the_diff_to_a_file(attnshape: Attnshape, model: Path) -> None:
    done = attnshape("annotate", *SELF, "--output", "new.diff")
    assert done.out == ""
    assert (model.parent / "new.diff").read_text().startswith("--- a/model.py\n")


@pytest.mark.parametrize("output", ["model.py", "link.py", "./model.py", "cases.py", "holder/attention.py"])
def test_output_refuses_to_overwrite_the_annotated_code(attnshape: Attnshape, model: Path, output: str) -> None:
    package = model.parent / "holder"
    package.mkdir()
    (package / "attention.py").write_text(MODEL)
    (model.parent / "cases.py").write_text("from model import one\n")
    (model.parent / "link.py").symlink_to(model)
    target = "holder.attention:one" if output.startswith("holder") else "cases.py:one"
    before = (model.parent / output).read_text()
    done = attnshape("annotate", target, "--output", output)
    assert (done.status, done.out) == (2, "")
    assert f"--output {Path(output)} is Python source, and would be overwritten" in done.err
    assert (model.parent / output).read_text() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no target is given"),
        (("model.py:Attention", "--style", "pretty"), "--style is 'pretty'"),
        (("model.py:Attention", "--existing", "kep"), "did you mean keep?"),
        (("model.py:Attention", "--include", "all"), "expected matched"),
        (("model.py:Attention", "--style", "comment", "--enforce"), "comments can't be checked"),
        (("model.py:Attention", "--force"), "add --write"),
        (("multi-head",), "outside of the current project"),
        (("torch.nn:MultiheadAttention", "--init", "D, H", "--input", "query: B L D", "--input", "key: B L D",
          "--input", "value: B L D"), "outside of the current project"),
        (("builtins:abs", "--input", "x: B L"), "nothing to annotate"),
        (("model.py:made", "--input", "x: B L"), "nothing to annotate"),
        ((*SELF, "--case", "model.py:nothing"), "has no nothing"),
        ((*SELF, "--case", "gone.py:one"), "there is no file gone.py"),
        ((*SELF, "--output", "no/where"), "there is no folder no"),
        ((*SELF, "--output", "new.diff", "--write"), "with --write there is none"),
    ],
)  # fmt: skip
def test_bad_input_is_an_error_with_a_hint(
    attnshape: Attnshape, model: Path, arguments: tuple[str, ...], message: str
) -> None:
    model.write_text(MODEL + "\n\nexec('def made(x):\\n    return x + 1')\n")
    done = attnshape("annotate", *arguments)
    assert done.status == 2, done.err
    assert done.out == ""
    assert message in done.err
    assert "Traceback" not in done.err
    assert "hint: " in done.err


def test_file_changed_since_import_is_an_error(attnshape: Attnshape, model: Path) -> None:
    model.write_text(MODEL + f"\n\nfrom pathlib import Path\nPath({str(model)!r}).write_text('# nothing\\n')\n")
    done = attnshape("annotate", *SELF)
    assert done.status == 2
    assert "none of the functions that ran is in model.py" in done.err


def test_hostile_names_are_escaped(attnshape: Attnshape, folder: Path) -> None:
    package = folder / "we [red]ird\x1b[31m"
    package.mkdir()
    (package / "m`|.py").write_text("def f(x):\n    y, ﬁ = x, x  # \u202e\n    return y\n")
    done = attnshape("annotate", f"{package.name}/m`|.py:f", "--input", "x: B L")
    assert done.status == 0, done.err
    assert "\x1b" not in done.err
    assert "\x1b" not in done.out
    assert "[red]" in done.err
    subprocess.run(["git", "apply", "-"], input=done.out.encode(), cwd=folder, check=True)


def test_printed_output_is_not_in_the_diff(attnshape: Attnshape, model: Path) -> None:
    loud = "import os, threading, time; print('loud'); os.write(1, b'loud\\n'); "
    late = "threading.Thread(target=lambda: (time.sleep(0.2), os.write(1, b'loud\\n'))).start()"
    model.write_text(MODEL.replace("    scores = query", f"    {loud}{late}\n    scores = query"))
    done = attnshape("annotate", "model.py:one")
    assert done.status == 0, done.err
    assert not [line for line in done.out.splitlines() if line.strip() == "loud"]


PACKAGE_TEST = """
import torch
from package.model import attend
attend(torch.ones(2, 3), torch.ones(4, 3))
"""


@pytest.mark.slow
def test_enforced_wrong_local_annotation_raises(attnshape: Attnshape, folder: Path) -> None:
    package = folder / "package"
    package.mkdir()
    (package / "__init__.py").write_text('"""The package."""\nfrom package.model import attend\n')
    (package / "model.py").write_text("def attend(query, key):\n    scores = query @ key.mT\n    return scores\n")
    arguments = (
        "annotate",
        "package.model:attend",
        "--input",
        "query: Lq D",
        "--input",
        "key: Lk D",
        "--enforce",
        "--write",
    )
    done = attnshape(*arguments)
    assert done.status == 0, done.err
    assert 'beartype_package("package.model")' in (package / "__init__.py").read_text()
    run = [sys.executable, "-c", PACKAGE_TEST]
    assert subprocess.run(run, cwd=folder, capture_output=True, check=False).returncode == 0
    text = (package / "model.py").read_text()
    (package / "model.py").write_text(text.replace('scores: Float[Tensor, "Lq Lk"]', 'scores: Float[Tensor, "Lk Lq"]'))
    wrong = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=False)
    assert wrong.returncode == 1
    assert 'local variable "scores"' in wrong.stderr


def test_enforce_on_a_single_file_prints_the_hook(attnshape: Attnshape, model: Path) -> None:
    done = attnshape("annotate", "model.py:one", "--enforce", "--write")
    assert done.status == 0
    lines = [line.strip() for line in done.err.splitlines() if line.startswith("  ")]
    assert lines == ["from beartype.claw import beartype_package", 'beartype_package("model")']
    wrong = model.read_text().replace('scores: Float[torch.Tensor, "B L L"]', 'scores: Float[torch.Tensor, "L B L"]')
    assert wrong != model.read_text()
    model.write_text(wrong)
    run = "\n".join([*lines, "import model", "f, a = model.one(2, 3, 4)", "f(*a)"])
    failed = subprocess.run([sys.executable, "-c", run], cwd=model.parent, capture_output=True, text=True, check=False)
    assert 'local variable "scores"' in failed.stderr
    unhooked = "\n".join(["import model", "f, a = model.one(2, 3, 4)", "f(*a)"])
    assert subprocess.run([sys.executable, "-c", unhooked], cwd=model.parent, check=False).returncode == 0


IMAGE = """from torch import nn


class Pixels(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(dim, 3 * dim)

    def forward(self, x, H, W):
        B, N, C = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.mT).softmax(-1)
        y = (weights @ v).transpose(1, 2).reshape(B, N, C)
        return y.transpose(1, 2).reshape(B, C, H, W)


def case(B, H, D, Lq, Lk):
    return Pixels(H * D, H), (torch.randn(B, Lq * Lk, H * D), Lq, Lk)
"""


@pytest.mark.slow
@pytest.mark.parametrize("style", ["comment", "jaxtyping"])
def test_symbol_with_another_value_in_the_code_is_not_written(attnshape: Attnshape, folder: Path, style: str) -> None:
    (folder / "pixels.py").write_text("import torch\n" + IMAGE)
    done = attnshape("annotate", "pixels.py:case", "--style", style, "--write")
    assert done.status == 0, done.err
    assert "left out: axes of H in Pixels.forward: H is another number in its code" in done.err
    annotated = (folder / "pixels.py").read_text()
    assert " H " not in "".join(line for line in annotated.splitlines() if "weights" in line)
    checked = attnshape("check", "pixels.py:case", "--select", "AS0", "--format", "text")
    assert checked.status == 0, checked.out
