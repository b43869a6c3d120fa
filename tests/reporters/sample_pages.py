"""Targets at two sets of sizes, the data of their pages, and what formulas of a page give, evaluated in Python."""

from __future__ import annotations

import importlib
import json
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

import attnshape
from attnshape.model.trace import Cost, Quantity, Reference, Source, Step, TargetOutput, TotalCost, Trace
from attnshape.reporters.registry import find_renderer
from attnshape.reporters.reporter import Screen
from attnshape.reporters.trace_view import ViewOptions
from tests.reporters.sample_traces import multi_head

_OPERATORS: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "abs": abs,
    "not": operator.not_,
    "and": lambda left, right: left and right,
    "or": lambda left, right: left or right,
}


@dataclass(frozen=True)
class PageTarget:
    """A target, and the sizes to which a reader moves the sliders of its page."""

    name: str
    moved: dict[str, int] = field(hash=False)
    arguments: dict[str, Any] = field(default_factory=dict, hash=False)

    def trace(self, **sizes: int) -> Trace:
        return attnshape.trace(self.name, cost=True, **self.arguments, **sizes)


def _example(name: str, moved: dict[str, int], init: str, **inputs: str) -> PageTarget:
    return PageTarget(f"examples/{name}", moved, {"init": init, "inputs": inputs})


TARGETS = (
    PageTarget("multi-head", {"B": 3, "H": 4, "L": 7, "D": 36}),
    PageTarget("scaled-dot-product", {"B": 5, "Lq": 9, "Lk": 4, "Dk": 6}),
    PageTarget("single-head", {"B": 4, "L": 6, "D": 20, "Dk": 14}),
    PageTarget("additive", {"B": 3, "Lq": 5, "Lk": 8, "D": 18, "Dk": 10}),
    PageTarget("multiplicative", {"B": 3, "Lq": 6, "Lk": 11}),
    _example("gqa.py:GroupedQueryAttention", {"B": 3, "H": 6, "Hkv": 2, "L": 5, "D": 48}, "D, H, Hkv", x="B L D"),
    _example(
        "kv_cache.py:CachedAttention",
        {"B": 3, "H": 2, "Lp": 4, "L": 7, "D": 24},
        "D, H",
        x="B L D",
        past_key="B H Lp Dk",
        past_value="B H Lp Dk",
    ),
    _example("rotary.py:RotaryAttention", {"B": 3, "H": 4, "L": 9, "D": 40}, "D, H", x="B L D"),
    _example("fused_qkv.py:FusedSelfAttention", {"B": 5, "H": 2, "L": 4, "D": 22}, "D, H", x="B L D"),
    _example(
        "language_model.py:LanguageModel", {"B": 3, "H": 4, "L": 6, "D": 28, "V": 31}, "V, D, H", ids="int[V] B L"
    ),
)


QUICK = [
    pytest.param(one, id=one.name, marks=() if place < 3 else pytest.mark.slow) for place, one in enumerate(TARGETS)
]
"""The same for a test, of which the default run takes some."""


@cache
def traces_of(target: PageTarget) -> tuple[Trace, Trace]:
    """Return the trace at default sizes, and the one at the moved sizes."""
    # torch imports it lazily, which takes seconds: here no run can interrupt that
    importlib.import_module("torch._dynamo")
    return target.trace(), target.trace(**target.moved)


def deep_model(layers: int) -> Trace:
    """Return a trace of layers that differ, of 18 steps each, in which hardly any two texts are the same."""
    one_layer = multi_head()
    steps: list[Step] = []
    for layer in range(layers):
        before = len(steps)

        def moved(reference: Reference, before: int = before) -> Reference:
            if reference.step is not None:
                return replace(reference, step=reference.step + before)
            return Reference(step=before) if reference.input and before else reference

        for step in one_layer.steps:
            (output,) = step.outputs
            of = output.tensor.storage.of
            storage = replace(output.tensor.storage, of=moved(of) if of is not None else None)
            tensor = replace(output.tensor, storage=storage)
            steps.append(
                replace(
                    step,
                    index=step.index + before,
                    expression=step.expression.replace("query", f"query_{layer}").replace(
                        "context", f"context_{layer}"
                    ),
                    module=f"layers.{layer}.attn",
                    operands=tuple(map(moved, step.operands)),
                    outputs=(replace(output, name=output.name and f"{output.name}_{layer}", tensor=tensor),),
                    source=Source("deep.py", len(steps) + 1, 5, f"layer_{layer}.forward"),
                    cost=Cost(flops=Quantity(2 * layer, f"{layer}*B"), moved=Quantity(8, "4*B")),
                )
            )
    cost = TotalCost(flops=Quantity(8, "4*B"), parameters=Quantity(8, "8"))
    return replace(
        one_layer, steps=tuple(steps), outputs=(TargetOutput("output", Reference(step=len(steps))),), cost=cost
    )


def source_of(trace: Trace) -> Sequence[str]:
    """Return the lines of source in which each step of `deep_model` stands."""
    return [f"    {step.expression}  # {step.index}\n" for step in trace.steps]


def page_of(trace: Trace, options: ViewOptions | None = None) -> str:
    return find_renderer("html", "trace")(trace, options or ViewOptions(), Screen(100))


def data_of(page: str) -> dict[str, Any]:
    """Return the data in the page of a trace."""
    found = re.search(r'<script type="application/json">(.*?)</script>', page)
    assert found is not None
    value: dict[str, Any] = json.loads(found[1])
    return value


def evaluated(tree: Any, sizes: Mapping[str, int]) -> Any:
    """Return the value of a formula's tree."""
    if isinstance(tree, str):
        return sizes[tree]
    if not isinstance(tree, list):
        return tree
    values = [evaluated(part, sizes) for part in tree[1:]]
    if tree[0] == "-":
        return -values[0] if len(values) == 1 else values[0] - values[1]
    return _OPERATORS[tree[0]](*values)


class PageNumbers:
    """The numbers of a page at other sizes than those of its trace."""

    def __init__(self, data: Mapping[str, Any], chosen: Mapping[str, int]) -> None:
        self._data = data
        self.sizes = {symbol: size for symbol, size, *_ in data["sizes"]} | dict(chosen)
        for symbol, _, _, tree, *_ in data["sizes"]:
            if tree is not None:
                self.sizes[symbol] = evaluated(tree, self.sizes)

    @property
    def holds(self) -> bool:
        """Whether all conditions of the page hold."""
        return all(evaluated(tree, self.sizes) for _, tree in self._data["conditions"])

    def quantity(self, place: int) -> Any:
        """Return a number, None where the page has no formula for it."""
        tree = self._data["quantities"][place][2]
        return evaluated(tree, self.sizes) if tree is not None else None

    def results(self) -> list[tuple[tuple[Any, ...], int]]:
        """Return the shape and the bytes of each result of each step."""
        tensors = self._data["tensors"]
        results = []
        for step in self._data["steps"]:
            for _, tensor, *_ in step[8]:
                shape = tuple(map(self.quantity, tensors[tensor][4]))
                results.append((shape, math.prod(shape) * tensors[tensor][6]))
        return results
