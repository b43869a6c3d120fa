"""`check` finds the deliberate mistakes in each example, and no others."""

import contextlib

import pytest

from attnshape.options.claims import Claims
from attnshape.options.spec import RunOptions
from attnshape.pipelines.check import check_request
from tests.examples.expectations import EXPECTED, example_spec
from tests.sampling import sampled


@pytest.mark.parametrize("name", sampled(EXPECTED, ["examples/mistakes.py", "examples/rotary.py", "examples/gqa.py"]))
def test_only_deliberate_mistakes_are_found(name: str) -> None:
    report = check_request(example_spec(name), RunOptions(), Claims(), 300.0, contextlib.nullcontext)
    codes = [finding.code for finding in report.findings if finding.level != "notice"]
    assert codes == EXPECTED[name].get("findings", [])
    assert report.verified
