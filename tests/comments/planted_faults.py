"""Source files whose shape comments are all correct, and faults to plant in them, one line each.

`sources/*.py` are realistic files in many notations. For each line that can be made wrong, `planted/*.txt` has its
number and its ending; below, for each fault, the code of the finding, the kind of fault, and the wrong ending. A known
miss has no code, and the reason follows it.
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
"""The target, `--init` and `--input` of some files. All others have a case, `def case(B, L, …)`."""


@dataclass(frozen=True)
class Fault:
    """A fault to plant: its line, the right ending, and the wrong ending."""

    file: str
    line: int
    kind: str
    right: str
    wrong: str
    code: str | None
    """The code of the finding; None for a known miss."""
    reason: str | None
    """Why the fault isn't found; None if it is found."""

    def __str__(self) -> str:
        return f"{self.line}-{self.kind}"

    @property
    def notation(self) -> str:
        """The notation of the line's shapes."""
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
    for text, next_line in zip(lines, [*lines[1:], ""], strict=True):
        if line := _LINE.fullmatch(text):
            number, right = int(line["number"]), line["text"]
        elif fault := _FAULT.fullmatch(text):
            reason = _REASON.fullmatch(next_line)
            why = reason["text"] if reason else None
            yield Fault(name, number, fault["kind"], right, fault["text"], fault["code"], why)
        elif not _REASON.fullmatch(text):
            raise ValueError(f"planted/{name}.txt: {text!r} is no line, fault or reason")


FAULTS = [fault for name in NAMES for fault in _faults(name)]


class Copy:
    """A copy of a source in a separate folder, run once; its comments may change afterwards."""

    def __init__(self, name: str, folder: Path) -> None:
        self.path = folder / f"{name}.py"
        self.text = (FOLDER / "sources" / f"{name}.py").read_text(encoding="utf-8")
        self.path.write_text(self.text, encoding="utf-8")
        function, init, inputs = TARGETS.get(name, ("case", None, ()))
        request = TargetSpec(f"{self.path}:{function}", init=init, inputs=dict(text.split(": ", 1) for text in inputs))
        options, limit = RunOptions(), TimeLimit()
        with isolated():
            target = find_target(request)
            sizes = target.sizes
            variation = sample_target(target, sizes, options, limit, 30, lambda words: None)
            compared = sizes_to_observe(variation, sizes)
            self.runs: list[ObservedRun]
            self.functions: list[FunctionId]
            self.runs, self.functions = observe_documented(target, compared, options, limit)

    @cached_property
    def unchanged(self) -> CommentVerification:
        """The verification of the file without faults."""
        return verify_shape_comments(self.runs, self.functions)

    @contextlib.contextmanager
    def planted(self, fault: Fault) -> Iterator[list[Finding]]:
        """Plant a fault, yield the additional findings, and restore the text."""
        lines = self.text.split("\n")
        line = lines[fault.line - 1]
        assert line.endswith(fault.right), f"line {fault.line} is {line!r}"
        lines[fault.line - 1] = line.removesuffix(fault.right) + fault.wrong
        before = self.unchanged.findings
        self.path.write_text("\n".join(lines), encoding="utf-8")
        try:
            found = verify_shape_comments(self.runs, self.functions).findings
            yield [finding for finding in found if finding not in before]
        finally:
            self.path.write_text(self.text, encoding="utf-8")
