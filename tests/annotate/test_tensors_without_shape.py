"""Variables that hold nested tensors are left out, and the summary says so."""

from __future__ import annotations

import torch

from attnshape.annotate.changes import Omission
from attnshape.annotate.exclusions import tensors_without_shape
from attnshape.observation.forms import FunctionForms, FunctionId
from attnshape.observation.watch import Invocation, ObservedRun, summarize
from attnshape.tracing.raw import RawTrace


def test_nested_tensors_are_left_out_with_the_reason() -> None:
    function = FunctionId("model.py", "attend", 1)
    jagged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)
    arguments = {"packed": summarize(jagged), "mask": summarize(torch.ones(2)), "scale": summarize(0.5)}
    run = ObservedRun({}, RawTrace([], [], []), (Invocation(function, arguments, {}, 0),), {}, "model.py")
    forms = FunctionForms(function, {}, {}, {}, None)
    expected = Omission("packed in attend", "the tensor has no single shape")
    assert list(tensors_without_shape([forms], [run])) == [expected]
