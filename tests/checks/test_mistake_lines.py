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
