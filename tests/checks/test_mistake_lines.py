"""The line at which a finding about a mask stands."""

import torch

from attnshape.checks.attention.mistake_lines import MaskLines
from tests.checks.subjects import subject_of


def test_constants_of_the_scores_build_no_mask():
    def attend(x, hidden):
        signs = torch.ones(x.shape[-1]).cumsum(-1)
        scores = (x * signs) @ x.mT / x.shape[-1] ** 0.5
        return (scores + hidden).softmax(-1).to(x.dtype) @ x

    hidden = torch.full((11, 11), -torch.inf).triu(1)
    subject = subject_of(attend, {"x": "B L D"}, values={"hidden": hidden}, D=7)
    (core,) = subject.cores
    assert MaskLines(subject, core).triangle() == core.softmax.ref


def test_what_hides_keys_comes_before_a_bias():
    def attend(x):
        padded = torch.cat((torch.zeros(*x.shape[:-1], 4), x), -1)
        scores = x @ x.mT / x.shape[-1] ** 0.5 + padded @ padded.mT
        return scores.masked_fill(torch.ones(11, 11).triu(1).bool(), -torch.inf).softmax(-1) @ x

    subject = subject_of(attend, {"x": "B L D"}, D=7)
    (core,) = subject.cores
    assert subject.base.event(MaskLines(subject, core).triangle()).name == "triu"


def test_a_bias_alone_is_where_a_mask_is_looked_for():
    def attend(x):
        places = torch.arange(11.0)
        return (x @ x.mT / x.shape[-1] ** 0.5 + (places - places[:, None])).softmax(-1) @ x

    subject = subject_of(attend, {"x": "B L D"}, D=7)
    (core,) = subject.cores
    assert MaskLines(subject, core).triangle() != core.softmax.ref
