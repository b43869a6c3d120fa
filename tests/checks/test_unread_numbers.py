"""Numbers that are given, or computed by a constructor, and that nothing reads."""

import contextlib
import functools
import math

import pytest
from torch import nn

from attnshape.checks.rules import unread_numbers
from attnshape.options.claims import parse_claims
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.check import check_request
from tests.checks.subjects import subject_of

X = {"x": "B L D"}


def unread(x, scale):
    return (x @ x.mT).softmax(-1) @ x


def unread_layer(x, layer):
    return (x @ x.mT).softmax(-1) @ x


def read_by_an_inner_function(x, scale):
    def scaled(scores):
        return scores * scale

    return scaled(x @ x.mT).softmax(-1) @ x


def read_on_another_path(x, scale):
    if x.shape[0] == 0:
        return x * scale
    return (x @ x.mT).softmax(-1) @ x


def deleted(x, scale):
    del scale
    return (x @ x.mT).softmax(-1) @ x


def documented(x, scale):
    """Attend.

    scale: unused, since another kernel has it.
    """
    return (x @ x.mT).softmax(-1) @ x


def read_by_name(x, scale):
    return (x @ x.mT * locals()["scale"]).softmax(-1) @ x


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@decorated
def unread_behind_a_decorator(x, scale):
    return (x @ x.mT).softmax(-1) @ x


def levels(function, **values):
    found = unread_numbers.check(subject_of(function, X, values=values))
    return [(one.code, one.level) for one in found]


def test_unread_numbers_are_found():
    assert levels(unread, scale=0.5) == [("AS812", "error")]
    assert levels(unread_behind_a_decorator, scale=0.5) == [("AS812", "error")]


def test_numbers_that_an_interface_often_has_are_notices():
    assert levels(unread_layer, layer=3) == [("AS812", "notice")]
    assert levels(unread, scale=0.0) == [("AS812", "notice")]


@pytest.mark.parametrize(
    "function", [read_by_an_inner_function, read_on_another_path, deleted, documented, read_by_name]
)
def test_numbers_that_may_be_read_are_not_reported(function):
    assert levels(function, scale=0.5) == []


@pytest.mark.parametrize("value", [None, True, "mean"])
def test_what_is_no_number_is_not_reported(value):
    assert levels(unread, scale=value) == []


def test_claimed_scale_that_nothing_reads_is_one_finding():
    spec = TargetSpec("unread", inputs=X, arguments={"scale": "D**-0.5"}, callable=unread)
    report = check_request(spec, RunOptions(), parse_claims(["scale=1/sqrt(D)"]), 300.0, contextlib.nullcontext)
    assert [finding.code for finding in report.counting] == ["AS812"]
    assert report.claim_outcomes == {"scale=1/sqrt(D)": "contradicted"}


class WithoutSibling(nn.Module):
    """Inherits a scale that torch's own attention doesn't need."""

    def __init__(self, D):
        super().__init__()
        self.never_read_scale = D**-0.5
        self.dropout_rate = math.sqrt(0.01)
        self.given_scale = 0.5

    def forward(self, x):
        return (x @ x.mT * self.given_scale).softmax(-1) @ x * self.dropout_rate


def test_number_without_computed_sibling_is_not_reported():
    assert list(unread_numbers.check(subject_of(WithoutSibling, X, init="D"))) == []
