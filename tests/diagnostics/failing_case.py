"""A target that fails, its expected diagnosis, and its hint applied to the source."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

from tests.cli.running import Attnshape, Result

HEAD = "import math\n\nimport torch\nimport torch.nn.functional as F\nfrom torch import Tensor, nn\n\n\n"
MARK = "# fails"


@dataclass(frozen=True)
class Failing:
    """A target's source, in which the line that fails has the comment `# fails`, and the expected diagnosis."""

    source: str
    inputs: tuple[str, ...]
    explanation: str | None
    operands: dict[str, str]
    """Each operand's name and its signature, with the mismatched axes in brackets: `B H Lq [Dk]`."""
    hint: str | None = None
    replaces: str = ""
    """The text that the hint replaces in the failing line."""
    others: bool = False
    """Whether torch passes additional tensors besides these operands."""
    target: str = "f"
    init: str | None = None
    options: tuple[str, ...] = ()
    error: str = "RuntimeError"

    def arguments(self, file: Path) -> list[str]:
        """The command line without `--format`."""
        words = ["trace", f"{file.name}:{self.target}", *self.options]
        words += ["--init", self.init] if self.init is not None else []
        return words + [word for text in self.inputs for word in ("--input", text)]

    def text(self) -> str:
        """The whole file."""
        return HEAD + textwrap.dedent(self.source).strip() + "\n"

    def line(self) -> int:
        """The number of the line that fails."""
        (line,) = [number for number, text in enumerate(self.text().splitlines(), 1) if MARK in text]
        return line


def check(case: Failing, attnshape: Attnshape, folder: Path) -> None:
    """Trace the target, compare the diagnosis, and run the source with the hint applied."""
    file = folder / "model.py"
    file.write_text(case.text(), encoding="utf-8")
    made = attnshape(*case.arguments(file), "--format", "json")
    assert made.status == 1, made.err
    failure = made.trace["failure"]
    assert failure["source"]["line"] == case.line()
    assert failure["source"]["file"] == "model.py"
    assert failure["error"].startswith(case.error)
    assert failure["explanation"] == case.explanation
    operands = {operand["name"]: marked(operand) for operand in failure["operands"]}
    assert operands.items() >= case.operands.items()
    assert case.others or operands == case.operands
    assert failure["hint"] == case.hint
    if case.hint is not None:
        check_hint(case, case.hint, attnshape, folder)


def marked(operand: dict) -> str:
    """Return an operand's signature with the mismatched axes in brackets."""
    wrong = operand.get("disagree", [])
    axes = [axis["expression"] for axis in operand["tensor"]["axes"]]
    return " ".join(f"[{text}]" if place in wrong else text for place, text in enumerate(axes))


def check_hint(case: Failing, hint: str, attnshape: Attnshape, folder: Path) -> None:
    """Check that the source with the hint applied runs, with the result that the hint names."""
    assert hint.endswith(" (tried)")
    written, _, signature = hint.removesuffix(" (tried)").removesuffix(" works").partition(" makes it ")
    written = written.removeprefix("the equation ")
    lines = case.text().splitlines(keepends=True)
    before, rest = "".join(lines[: case.line() - 1]), "".join(lines[case.line() - 1 :])
    place = re.search(rf"(?<![\w.]){re.escape(case.replaces)}(?!\w)", rest)
    assert case.replaces and place, f"{case.replaces} isn't in the line"
    file = folder / "fixed.py"
    file.write_text(before + rest[: place.start()] + written + rest[place.end() :], encoding="utf-8")
    fixed = attnshape(*case.arguments(file), "--format", "json")
    assert fixed.status == 0, fixed.out
    if signature:
        made = [step for step in fixed.trace["steps"] if step["source"]["line"] == case.line()]
        results = [step["outputs"][0]["tensor"]["signature"] or "a scalar" for step in made]
        assert signature in results


def traced_as(case: Failing, form: str, attnshape: Attnshape, folder: Path) -> Result:
    """Return the output of `attnshape trace` in one format."""
    file = folder / "model.py"
    file.write_text(case.text(), encoding="utf-8")
    return attnshape(*case.arguments(file), "--format", form)
