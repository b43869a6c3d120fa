"""Watching changes nothing in attention modules that others wrote: the same bits, built anew from the same seed."""

import pytest
import torch

from attnshape.sizes import resolve
from attnshape.target.find import find_target
from attnshape.target.request import Placement, Request
from attnshape.tracing.runner import Runnable, paths, record
from tests.libraries.tracing_cases import HAND_WORKED, RUNS, target_of

FAST_PATH = {"torch_cases:mha_self", "torch_cases:encoder_layer", "torch_cases:transformer"}
"""What torch runs as one native operation where nobody watches, with other roundings."""


def watched_and_not(case: str, which: int) -> tuple[list[tuple[str, torch.Tensor]], list[tuple[str, torch.Tensor]]]:
    """Return the tensors that a case's target returns when it is watched, and when it is called plainly."""
    target = find_target(Request(target_of(case), given=HAND_WORKED[case].sizes[which]))
    sizes = resolve(target.used, target.given, {})
    placement = Placement(torch.device("cpu"), torch.float32, 0, False)
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
    return list(paths("output", kept[0])), list(paths("output", result))


@pytest.mark.parametrize(
    ("case", "which"),
    [
        pytest.param(case, which, id=f"{case}-{which}", marks=pytest.mark.xdist_group(case.partition(":")[0]))
        for case, which in RUNS
    ],
)
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
