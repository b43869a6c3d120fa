"""Code whose shape comments are all correct, and faults to plant in them, one line each.

`sources/*.py` are files as people write them, in many notations. `planted/*.txt` list, for each of their lines at which
something can be wrong, its number and how it ends, and beneath it how it would end with a fault, by the code that finds
it and by its kind. A fault that isn't found yet has no code, and is followed by the reason.
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from attnshape.comments.verify import CommentVerification, verify_shape_comments
from attnshape.model.report import Finding
from attnshape.observation.forms import FunctionId
from attnshape.observation.watch import ObservedRun
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.comments import observe_documented, sizes_to_observe
from attnshape.pipelines.target_runs import sample_target
from attnshape.runtime.isolation import isolated
from attnshape.runtime.time_limit import TimeLimit
from attnshape.targets.find import find_target

FOLDER = Path(__file__).resolve().parent
NAMES = sorted(path.stem for path in (FOLDER / "sources").glob("*.py"))

_LINE = re.compile(r"(?P<number>\d+): (?P<text>.*)")
_FAULT = re.compile(r" {4}(?:(?P<code>AS\d{3}) )?(?P<kind>\w+): (?P<text>.*)")
_REASON = re.compile(r" {8}not found: (?P<text>.+)")

TARGETS: dict[str, tuple[str, str | None, tuple[str, ...]]] = {
    "alibi": ("AlibiAttention", "H*Dk, H", ("x: B L H*Dk", "pad: bool B L")),
    "axial": ("AxialBlock", "H*Dk, H", ("img: B Lq Lk H*Dk",)),
    "clip_pool": ("AttentionPool2d", "Lq, Lk, H*Dk, H, Dv", ("x: B H*Dk Lq Lk",)),
    "cross": ("CrossAttention", "D, Dv, H, Dk", ("x: B Lq D", "ctx: B Lk Dv", "mask: bool B Lk")),
    "decoder_layer": ("DecoderLayer", "H*Dk, H", ("y: B Lq H*Dk", "memory: B Lk H*Dk")),
    "gat": ("DenseGAT", "D, H, Dk", ("h: B L D", "adj: bool B L L")),
    "head_modules": ("MultiHeadAttention", "H*Dk, Dk, H", ("x: B L H*Dk",)),
    "lecture": ("Head", "D, Dk", ("x: B L D",)),
    "linear_attn": ("LinearAttention", "D, H, Dk", ("x: B L D",)),
    "list_heads": ("LoopAttention", "D, H, Dk", ("x: B L D",)),
    "mqa_jax": ("MultiQueryAttention", "D, H, Dk", ("x: B L D", "mask: bool B L")),
    "pma": ("PMA", "H*Dk, H, 6", ("X: B L H*Dk",)),
    "relpos": ("RelPosAttention", "H*Dk, H, 1000", ("x: B L H*Dk",)),
    "rope": ("RotaryAttention", "H*2*Dk, H", ("x: B L H*2*Dk",)),
    "sagan": ("Self_Attn", "8*D", ("x: B 8*D Lq Lk",)),
    "slot": ("SlotAttention", "D, 6, Dk", ("inputs: B L D",)),
    "torchstyle": (
        "BiasedAttention",
        "H*Dk, H, Dv",
        ("query: B Lq H*Dk", "key: B Lk H*Dk", "value: B Lk Dv", "attn_mask: bool Lq Lk"),
    ),
}
"""How each is called: its name, what it is made with, its inputs. All others have a case, `def case(B, L, …)`."""


@dataclass(frozen=True)
class Fault:
    """A fault to plant: where, what stands there now, and what is to stand there instead."""

    file: str
    line: int
    kind: str
    right: str
    wrong: str
    code: str | None
    """By which it is found; None where it isn't."""
    reason: str | None
    """Why it isn't found; None where it is."""

    def __str__(self) -> str:
        return f"{self.line}-{self.kind}"

    @property
    def notation(self) -> str:
        """How the shapes of the line are written."""
        return next(name for name, pattern in _NOTATIONS if pattern.search(self.right))


_NOTATIONS = [
    ("annotation", re.compile(r'\w+\[(?:torch\.)?\w+, "')),
    ("torch.Size", re.compile(r"Size\(\[")),
    ("formula", re.compile(r":math:|\$|\\")),
    ("times", re.compile(r"\w\s+[xX×]\s+\w|\w×\w")),
    ("round brackets", re.compile(r"\((?:[^(),\[\]]|\([^()]*\))+,")),
    ("square brackets", re.compile(r"\[[^\[\],]+,|\[[\w/]+\]")),
    ("spaced in brackets", re.compile(r"[(\[]\w+ [\w ()*]+[)\]]")),
    ("commas", re.compile(r"\w\s*,\s*\w")),
    ("spaced", re.compile(r"\w \w")),
]
NOTATIONS = [name for name, _ in _NOTATIONS]


def _faults(name: str) -> Iterator[Fault]:
    lines = (FOLDER / "planted" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    number, right = 0, ""
    for text, behind in zip(lines, [*lines[1:], ""], strict=True):
        if line := _LINE.fullmatch(text):
            number, right = int(line["number"]), line["text"]
        elif fault := _FAULT.fullmatch(text):
            reason = _REASON.fullmatch(behind)
            why = reason["text"] if reason else None
            yield Fault(name, number, fault["kind"], right, fault["text"], fault["code"], why)
        elif not _REASON.fullmatch(text):
            raise ValueError(f"planted/{name}.txt: {text!r} is no line, fault or reason")


FAULTS = [fault for name in NAMES for fault in _faults(name)]


class Copy:
    """A copy of a source in a folder of its own, run once; what is written in it may then change."""

    def __init__(self, name: str, folder: Path) -> None:
        self.path = folder / f"{name}.py"
        self.text = (FOLDER / "sources" / f"{name}.py").read_text(encoding="utf-8")
        self.path.write_text(self.text, encoding="utf-8")
        function, init, inputs = TARGETS.get(name, ("case", None, ()))
        request = TargetSpec(f"{self.path}:{function}", init=init, inputs=dict(one.split(": ", 1) for one in inputs))
        placement, limit = RunOptions(), TimeLimit()
        with isolated():
            target = find_target(request)
            sizes = target.sizes
            variation = sample_target(target, sizes, placement, limit, 30, lambda words: None)
            compared = sizes_to_observe(variation, sizes)
            self.runs: list[ObservedRun]
            self.functions: list[FunctionId]
            self.runs, self.functions = observe_documented(target, compared, placement, limit)

    @cached_property
    def unchanged(self) -> CommentVerification:
        """What is said of the file as it is."""
        return verify_shape_comments(self.runs, self.functions)

    @contextlib.contextmanager
    def planted(self, fault: Fault) -> Iterator[list[Finding]]:
        """Put a fault in, yield what is found that wasn't there before, and put the text back."""
        lines = self.text.split("\n")
        line = lines[fault.line - 1]
        assert line.endswith(fault.right), f"line {fault.line} is {line!r}"
        lines[fault.line - 1] = line.removesuffix(fault.right) + fault.wrong
        before = self.unchanged.findings
        self.path.write_text("\n".join(lines), encoding="utf-8")
        try:
            yield [one for one in verify_shape_comments(self.runs, self.functions).findings if one not in before]
        finally:
            self.path.write_text(self.text, encoding="utf-8")
