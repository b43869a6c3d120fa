"""Watching changes nothing in attention modules that others wrote: the same bits, built anew from the same seed."""

import pytest
import torch

from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.targets.find import find_target
from attnshape.tracing.runner import Runnable, record, tensor_paths
from tests.libraries.tracing_cases import HAND_WORKED, each_run, target_of

pytestmark = pytest.mark.libraries
FAST_PATH = {"torch_cases:mha_self", "torch_cases:encoder_layer", "torch_cases:transformer"}
"""What torch runs as one native operation where nobody watches, with other roundings."""


def watched_and_not(case: str, which: int) -> tuple[list[tuple[str, torch.Tensor]], list[tuple[str, torch.Tensor]]]:
    """Return the tensors that a case's target returns when it is watched, and when it is called plainly."""
    target = find_target(TargetSpec(target_of(case), sizes=HAND_WORKED[case].sizes[which]))
    sizes = target.sizes
    placement = RunOptions()
    kept: list[object] = []

    class Keep(Runnable):
        def call(self) -> object:
            kept.append(super().call())
            return kept[-1]

    built = target.build(sizes.numbers, placement)
    raw = record(Keep(built.function, built.args, built.kwargs), 7)
    assert raw.failure is None
    assert raw.broken is None
    plain = target.build(sizes.numbers, placement)
    torch.manual_seed(7)
    with torch.no_grad():
        result = plain.call()
    return list(tensor_paths("output", kept[0])), list(tensor_paths("output", result))


@each_run
def test_library_module_computes_the_same_bits(case: str, which: int) -> None:
    watched, plain = watched_and_not(case, which)
    assert [name for name, _ in watched] == [name for name, _ in plain]
    for (_, mine), (_, its) in zip(watched, plain, strict=True):
        assert mine.dtype == its.dtype
        if case in FAST_PATH:
            torch.testing.assert_close(mine, its)
        else:
            assert mine.stride() == its.stride()
            assert torch.equal(mine.reshape(-1).view(torch.uint8), its.reshape(-1).view(torch.uint8))
