"""Explanations of five kinds of attention code, each made once."""

from __future__ import annotations

import contextlib
import re
from functools import cache
from pathlib import Path

from attnshape.explanation.sentences import explain
from attnshape.model.explanation import ArticleTable, Explanation, Paragraph, Section
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.explain import explain_request
from attnshape.targets.find import find_target
from attnshape.tracing.runner import Runnable

SOURCES = Path(__file__).parent / "sources"

SPECS: dict[str, tuple[TargetSpec, RunOptions]] = {
    "function": (
        TargetSpec(
            f"{SOURCES}/function.py:attention",
            inputs={"query": "B H Lq Dk", "key": "B H Lk Dk", "value": "B H Lk Dv"},
        ),
        RunOptions(),
    ),
    "causal_module": (
        TargetSpec(f"{SOURCES}/causal_module.py:CausalSelfAttention", init="D, H", inputs={"x": "B L D"}),
        RunOptions(),
    ),
    "comprehension": (
        TargetSpec(
            f"{SOURCES}/comprehension.py:MultiHeadedAttention",
            init="H, D",
            inputs={"query": "B L D", "key": "B L D", "value": "B L D", "mask": "int[2] B 1 L"},
        ),
        RunOptions(train=True),
    ),
    "list_of_heads": (
        TargetSpec(f"{SOURCES}/list_of_heads.py:MultiHeadAttention", init="D, H", inputs={"x": "B L D"}),
        RunOptions(),
    ),
    "parallel_heads": (
        TargetSpec(f"{SOURCES}/parallel_heads.py:ParallelHeads", init="D, H", inputs={"x": "B L D"}),
        RunOptions(),
    ),
}


@cache
def explained(name: str) -> Explanation:
    """Return the explanation of one of the five."""
    return explanation_of(*SPECS[name])


def explanation_of(spec: TargetSpec, options: RunOptions = RunOptions()) -> Explanation:  # noqa: B008 - immutable
    return explain_request(spec, options, 60.0, contextlib.nullcontext)


def built(name: str, train: bool | None = None) -> Runnable:
    """Return the same code with the same parameters and inputs, built again."""
    spec, options = SPECS[name]
    target = find_target(spec)
    return target.build(target.sizes.numbers, RunOptions(train=options.train if train is None else train))


def section_of(explanation: Explanation, topic: str) -> Section | None:
    return next((section for section in explanation.sections if section.topic == topic), None)


def text_of(section: Section | None) -> str:
    """Return all texts of a section, one paragraph a line; empty if there is none."""
    blocks = section.blocks if section is not None else ()
    return "\n".join(
        block.text if isinstance(block, Paragraph) else "\n".join(" ".join(row) for row in (block.columns, *block.rows))
        for block in blocks
        if isinstance(block, (Paragraph, ArticleTable))
    )


_STEP = re.compile(r"^\d+ (?=`)", re.MULTILINE)
"""The number of a step before its expression."""
_CODE = re.compile(r"`[^`]*`")
_LABEL = re.compile(r"[\w*+()//-]+=\d+")
_FUNCTION = re.compile(r"\b1/sqrt\(|\bw\*\(1-w\)|1/\(1-p\)")
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)?(?: [kMGT](?![a-zA-Z])| [KMG]iB| B\b|%)?")


def numbers_in(text: str) -> list[str]:
    """Return the numbers that a text states, without those in code and those of labelled sizes such as `H=8`."""
    plain = _FUNCTION.sub(" ", _LABEL.sub(" ", _CODE.sub(" ", _STEP.sub("", text))))
    return [number.rstrip(",") for number in _NUMBER.findall(plain)]


def assert_numbers_are_measured(explanation: Explanation) -> None:
    """Assert that every number in the text of a section is one of its measurements, or in the sentence of a step."""
    for section in explanation.sections:
        if section.topic in ("inputs", "symbols", "steps", "operands", "further"):
            continue
        known = {text for one in section.measurements for text in (one.text, *one.text.split())} | {"0", "1"}
        # the sentences of steps, where nothing more is known, have numbers of the trace
        for index in section.steps:
            known |= set(numbers_in(explain(explanation.trace, explanation.trace.step(index))))
        unknown = [number for number in numbers_in(text_of(section)) if number not in known]
        assert not unknown, (section.topic, unknown)
