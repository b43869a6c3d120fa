"""Recording doesn't change the results of libraries' attention modules, built again with the same seed."""

import pytest
import torch

from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.targets.find import find_target
from attnshape.tracing.runner import Runnable, record, tensor_paths
from tests.libraries.tracing_cases import HAND_WORKED, each_run, target_of

pytestmark = pytest.mark.libraries
FAST_PATH = {"torch_cases:mha_self", "torch_cases:encoder_layer", "torch_cases:transformer"}
"""Cases that torch runs as one native operation unless recorded, with other rounding."""


def recorded_and_plain(case: str, which: int) -> tuple[list[tuple[str, torch.Tensor]], list[tuple[str, torch.Tensor]]]:
    """Return the tensors that a case's target returns with and without recording."""
    target = find_target(TargetSpec(target_of(case), sizes=HAND_WORKED[case].sizes[which]))
    sizes = target.sizes
    options = RunOptions()
    results: list[object] = []

    class Keep(Runnable):
        def call(self) -> object:
            results.append(super().call())
            return results[-1]

    built = target.build(sizes.numbers, options)
    raw = record(Keep(built.function, built.args, built.kwargs), 7)
    assert raw.failure is None
    assert raw.broken is None
    plain = target.build(sizes.numbers, options)
    torch.manual_seed(7)
    with torch.no_grad():
        result = plain.call()
    return list(tensor_paths("output", results[0])), list(tensor_paths("output", result))


@each_run
def test_recording_does_not_change_results(case: str, which: int) -> None:
    recorded, plain = recorded_and_plain(case, which)
    assert [name for name, _ in recorded] == [name for name, _ in plain]
    for (_, mine), (_, its) in zip(recorded, plain, strict=True):
        assert mine.dtype == its.dtype
        if case in FAST_PATH:
            torch.testing.assert_close(mine, its)
        else:
            assert mine.stride() == its.stride()
            assert torch.equal(mine.reshape(-1).view(torch.uint8), its.reshape(-1).view(torch.uint8))
