"""Every number in an article is a measurement, and every measurement is right: it is computed again by other means."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attnshape.dims.arithmetic import SIZE, evaluate, parse
from attnshape.errors import AttnshapeError
from attnshape.model.explanation import Measurement
from attnshape.model.formatting import format_bytes, format_count
from tests.explanation.explained import SPECS, explained, numbers_in, text_of
from tests.explanation.independent import observed_numbers

CONSTANTS = {"0", "1"}
"""What weights lie between and sum to; the first token and the first head."""


@pytest.mark.parametrize("name", SPECS)
def test_every_observed_number_is_computed_again(name: str) -> None:
    explanation = explained(name)
    stated = {
        (section.topic, one.name): _number(one)
        for section in explanation.sections
        for one in section.measurements
        if one.basis == "observed"
    }
    expected = observed_numbers(name)
    assert stated.keys() == expected.keys()
    for key, value in expected.items():
        close = 0.02 if key[0] == "dropout" and key[1] == "dropped weights" else 2e-4
        assert math.isclose(stated[key], value, rel_tol=close, abs_tol=1e-7), (key, stated[key], value)


@pytest.mark.parametrize("name", SPECS)
def test_every_number_in_the_text_is_a_measurement(name: str) -> None:
    explanation = explained(name)
    for section in explanation.sections:
        if section.topic in ("inputs", "symbols"):
            continue
        known = {one.text for one in section.measurements} | CONSTANTS
        shapes = {text for one in section.measurements for text in one.text.split()}
        unknown = [number for number in numbers_in(text_of(section)) if number not in known | shapes]
        assert not unknown, (section.topic, unknown)


@pytest.mark.parametrize("name", SPECS)
def test_every_formula_gives_its_number(name: str) -> None:
    explanation = explained(name)
    sizes = {symbol: size.size for symbol, size in explanation.trace.sizes.items()}
    checked = 0
    for section in explanation.sections:
        for one in section.measurements:
            formula = one.how.strip("`") if one.basis in ("formula", "shape") else ""
            value = _value(formula, sizes)
            if value is not None:
                checked += 1
                assert value == one.value, (section.topic, one)
    assert checked > 5


@pytest.mark.parametrize("name", SPECS)
def test_texts_of_numbers_are_their_values(name: str) -> None:
    for section in explained(name).sections:
        for one in section.measurements:
            assert one.text in _texts(one), (section.topic, one)


def _number(one: Measurement) -> float:
    return one.value if one.value is not None else float(one.text)


def _texts(one: Measurement) -> set[str]:
    """Return the ways in which a number may be written."""
    if one.value is None:
        return {"-inf"}
    whole = {f"{int(one.value):,}", format_bytes(int(one.value)), format_count(round(one.value))}
    share = {f"{one.value:.0%}", "less than 1%", "more than 99%"} if 0 <= one.value <= 1 else set()
    return {f"{one.value:.3g}", *whole, *share}


def _value(formula: str, sizes: dict[str, int]) -> float | None:
    try:
        return float(evaluate(parse(formula, SIZE), sizes))
    except (AttnshapeError, KeyError):
        return None


def _places(topic: str, when: str, numbered: Tensor, axes: str) -> dict[tuple[str, str], float]:
    """Return where the first vectors lie of a tensor whose numbers count the places of its storage."""
    return {
        (topic, f"{which} place of {axes[0]}={row}, {axes[1]}={column} {when}"): int(numbered[row, column, index])
        for which, index in (("first", 0), ("last", -1))
        for row in range(3)
        for column in range(3)
    }


def test_counts_of_the_causal_module() -> None:
    """What follows from the shapes: written down by hand for B=2, H=8, L=10, D=512, Dk=64."""
    stated = {
        (section.topic, one.name): one.value
        for section in explained("causal_module").sections
        for one in section.measurements
        if one.basis in ("shape", "formula", "argument")
    }
    expected = {
        ("projections", "vectors of step 1"): 2 * 10,
        ("projections", "parameters of step 1"): 512 * 1536 + 1536,
        ("heads", "parts of step 2"): 3,
        ("heads", "axis 0 without the transpose"): 2,
        ("heads", "axis 1 without the transpose"): 10,
        ("heads", "axis 2 without the transpose"): 8,
        ("heads", "axis 3 without the transpose"): 8,
        ("heads", "first feature of the wrong row"): 64,
        ("heads", "last feature of the wrong row"): 127,
        ("scores", "scores"): 2 * 8 * 10 * 10,
        ("scale", "number in step 11"): 64**-0.5,
        ("scale", "a quarter of the features"): 16,
        ("scale", "half of the features"): 32,
        ("softmax", "rows of weights"): 2 * 8 * 10,
        ("dropout", "p"): 0.1,
        ("context", "weighted sums"): 2 * 8 * 10,
        ("merge", "last token of the wrong row"): 7,
        ("merge", "copied numbers"): 2 * 8 * 10 * 64,
        ("merge", "bytes of the copy"): 4 * 2 * 8 * 10 * 64,
        ("merge", "stride of the outer axis"): 10 * 64,
        ("merge", "stride that a view needs"): 64,
        ("output", "features before the projection"): 512,
        ("output", "features after the projection"): 512,
        ("operations", "FLOPs of projections"): 2 * 20 * 512 * 1536,
        ("operations", "FLOPs of scores"): 2 * 16 * 10 * 10 * 64,
        ("operations", "FLOPs of scale, mask and what else is added"): 1600,
        ("operations", "FLOPs of softmax and dropout"): 5 * 1600,
        ("operations", "FLOPs of context"): 2 * 16 * 10 * 10 * 64,
        ("operations", "FLOPs of output projection"): 2 * 20 * 512 * 512,
        ("parameters", "parameters"): 4 * 512 * 512 + 4 * 512,
        ("memory", "bytes of the weights"): 4 * 1600,
    }
    total = sum(value for (topic, name), value in expected.items() if name.startswith("FLOPs"))
    expected["operations", "FLOPs of the run"] = total
    for name in ("projections", "scores", "softmax and dropout", "context", "output projection"):
        expected["operations", f"share of {name}"] = expected["operations", f"FLOPs of {name}"] / total
    others = "scale, mask and what else is added"
    expected["operations", f"share of {others}"] = expected["operations", f"FLOPs of {others}"] / total
    # 8*B*L*D*D is as much as 4*B*L*L*D + 6*B*H*L*L
    expected["operations", "length at which both cost the same"] = 8 * 512 * 512 / (4 * 512 + 6 * 8)
    transposed = "k.view(B, T, n_head, C // n_head).transpose(1, 2)"
    fused = torch.arange(10 * 3 * 512).view(10, 3, 8, 64)
    expected |= _places("heads", f"after `{transposed}`", fused[:, 1].transpose(0, 1), "HL")
    expected |= _places("merge", "before the copy", torch.arange(8 * 10 * 64).view(8, 10, 64).transpose(0, 1), "LH")
    expected |= _places("merge", "after the copy", torch.arange(10 * 8 * 64).view(10, 8, 64), "LH")
    measured = {("memory", "bytes saved for the backward pass"), ("memory", "bytes moved")}
    assert stated.keys() == expected.keys() | measured
    for key, value in expected.items():
        assert math.isclose(stated[key], value, rel_tol=1e-9), (key, stated[key], value)


def test_rows_that_dropout_changes_have_another_sum() -> None:
    """The text would be wrong if the means were those of rows that dropout left alone."""
    stated = {one.name: one.value for one in _dropout_measurements("causal_module")}
    assert stated["sum of a row without the factor"] < 0.95 < stated["sum of a row after dropout"]


def _dropout_measurements(name: str) -> tuple[Measurement, ...]:
    return next(section for section in explained(name).sections if section.topic == "dropout").measurements
