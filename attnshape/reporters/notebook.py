"""A Jupyter notebook of an explanation: the article in Markdown, and code that repeats the run and its measurements.

The format is nbformat 4.5 (https://nbformat.readthedocs.io), which is plain JSON.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from attnshape.model.explanation import Explanation
from attnshape.model.trace import json_text
from attnshape.reporters.reporter import Reporter, Screen
from attnshape.runtime.files import source_lines

_TRACED = """\
for step in trace.steps:
    for output in step.outputs:
        print(step.index, output.name or step.expression, "|", output.tensor.signature, "|", output.tensor.shape)"""
_OBSERVED = """\
for section in explanation.sections:
    for one in section.measurements:
        if one.basis == "observed":
            number = one.text if one.value is None else f"{one.value:.4g}"
            print(f"{section.topic:12} {number:>10}  {one.name}")"""
_SIMULATED = """\
import torch

generator = torch.Generator().manual_seed(0)
for width in (16, 64, 256):
    query, key = torch.randn(2, 1000, width, generator=generator)
    scores = query @ key.T
    for name, read in (("without the scale", scores), ("with the scale", scores / width**0.5)):
        largest = read.softmax(-1).amax(-1).mean()
        print(f"width {width:3} {name:17} spread {read.std():6.3f}, largest weight of a row {largest:.3f}")"""
_HERE = "Run the notebook in the folder in which the command above ran: its cells run the same code again."
_NO_CALL = "The explanation was made from Python objects, so that this notebook has no code that makes them again."
_REPEATED = "The numbers that were observed, once more:"
_RANDOM = "The same with random numbers, at other widths:"


def notebook(explanation: Explanation, screen: Screen) -> str:
    """Return an explanation as a notebook."""
    cells: list[dict[str, Any]] = [
        {
            "cell_type": kind,
            "id": f"cell-{place}",
            "metadata": {},
            "source": text,
            **({"execution_count": None, "outputs": []} if kind == "code" else {}),
        }
        for place, (kind, text) in enumerate(_cells(explanation))
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata: dict[str, Any] = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return json_text({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}) + "\n"


def _cells(explanation: Explanation) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each cell."""
    from attnshape.reporters.article import article  # other commands do without
    from attnshape.reporters.article_markdown import article_heading, part_heading, section_markdown

    shown = article(explanation, source_lines)
    call = explanation.call if _is_plain_call(explanation.call) else ""
    yield "markdown", "\n\n".join([article_heading(shown), _HERE if call else _NO_CALL])
    if call:
        yield "code", f"import attnshape\n\ntrace = {call}\n{_TRACED}"
    for part, described in zip(shown.parts, _parts(explanation), strict=True):
        yield "markdown", part_heading(part)
        for section, topic in zip(part.sections, described, strict=True):
            yield "markdown", section_markdown(section)
            if topic == "scale":
                yield "markdown", _RANDOM
                yield "code", _SIMULATED
    if call and any(one.basis == "observed" for section in explanation.sections for one in section.measurements):
        yield "markdown", _REPEATED
        yield "code", f"explanation = {call.replace('attnshape.trace(', 'attnshape.explain(', 1)}\n{_OBSERVED}"


def _is_plain_call(text: str) -> bool:
    """Return whether a text is a call of `attnshape.trace` with literal arguments, and nothing else."""
    try:
        call = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    if not isinstance(call, ast.Call) or ast.unparse(call.func) != "attnshape.trace":
        return False
    values = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg is not None)]
    return len(values) == len(call.args) + len(call.keywords) and all(map(_is_literal, values))


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return False
    return True


def _parts(explanation: Explanation) -> list[list[str]]:
    """Return the topics of the sections of each part."""
    parts = (explanation.introduction, *explanation.parts, explanation.summary)
    return [[section.topic for section in part.sections] for part in parts]


REPORTER = Reporter("notebook", explanation=notebook)
