"""A check of each example finds the mistakes that it has on purpose, and no others."""

import contextlib
import json
from pathlib import Path

import pytest

from attnshape.claims import Claims
from attnshape.examine import check_request
from attnshape.settings import Settings
from attnshape.sizes import own_letters
from attnshape.target.request import Request

EXPECTED = json.loads((Path(__file__).parent / "expected.json").read_text())


@pytest.mark.parametrize("name", EXPECTED)
def test_only_the_mistakes_that_are_meant_are_found(name: str) -> None:
    argv = EXPECTED[name]["argv"]
    given: dict[str, list[str]] = {}
    for flag, value in zip(argv[1::2], argv[2::2], strict=True):
        given.setdefault(flag, []).append(value)
    request = Request(
        argv[0],
        given.get("--init", [None])[0],
        inputs=tuple(given.get("--input", ())),
        arguments=dict(text.split("=", 1) for text in given.get("--with", ())),
        own=own_letters(given.get("--dim", [])),
    )
    report = check_request(request, Settings(), Claims(), 60.0, contextlib.nullcontext)
    assert [finding.code for finding in report.findings] == EXPECTED[name].get("findings", [])
    assert report.proved
