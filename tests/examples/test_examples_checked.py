"""A check of each example finds the mistakes that it has on purpose, and no others."""

import contextlib

import pytest

from attnshape.options.claims import Claims
from attnshape.options.spec import RunOptions
from attnshape.pipelines.check import check_request
from tests.examples.expectations import EXPECTED, asked
from tests.sampling import sampled


@pytest.mark.parametrize("name", sampled(EXPECTED, ["examples/mistakes.py", "examples/rotary.py", "examples/gqa.py"]))
def test_only_the_mistakes_that_are_meant_are_found(name: str) -> None:
    report = check_request(asked(name), RunOptions(), Claims(), 60.0, contextlib.nullcontext)
    assert [finding.code for finding in report.findings] == EXPECTED[name].get("findings", [])
    assert report.verified
