"""Counts the FLOPs of each subject with one tool, in a separate process: `python -m benchmarks.cost_peer NAME`.

What a tool calls MACs is doubled. A subject on which it fails counts as null.
"""

import contextlib
import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

B, L, LK, D, H, HKV = 2, 256, 512, 512, 8, 4
_PRODUCTS = 4 * B * L * L * D
"""Those for scores and context of self-attention."""


@dataclass(frozen=True)
class Subject:
    """A module of this project: where it is, what it takes, and the FLOPs of its products, worked out by hand."""

    module: str
    name: str
    init: tuple[int, ...]
    lengths: tuple[int, ...]
    truth: int

    def build(self) -> tuple[Any, tuple[Any, ...]]:
        """Return the module in eval mode, and inputs for it."""
        import importlib

        import torch

        module = getattr(importlib.import_module(self.module), self.name)(*self.init).eval()
        inputs = tuple(torch.randn(B, length, D) for length in self.lengths)
        if self.module == "benchmarks.subject":
            inputs += (torch.ones(B, LK, dtype=torch.bool),)
        return module, inputs


SUBJECTS = {
    "cross": Subject(
        "benchmarks.subject", "CrossAttention", (D, H), (L, LK), 4 * B * (L + LK) * D * D + 4 * B * L * LK * D
    ),
    "grouped": Subject("examples.gqa", "GroupedQueryAttention", (D, H, HKV), (L,), 6 * B * L * D * D + _PRODUCTS),
    "einsum": Subject("examples.einsum_style", "EinsumAttention", (D, H), (L,), 8 * B * L * D * D + _PRODUCTS),
    "fused": Subject("examples.sdpa", "FlashSelfAttention", (D, H), (L,), 8 * B * L * D * D + _PRODUCTS),
    "nn.Multihead": Subject("examples.torch_multihead", "Block", (D, H), (L,), 8 * B * L * D * D + _PRODUCTS),
}
Count = Callable[[Any, tuple[Any, ...]], int]


def _attnshape(module: Any, inputs: tuple[Any, ...]) -> int:
    import inspect

    import attnshape

    names = list(inspect.signature(module.forward).parameters)
    cost = attnshape.trace(module, inputs=dict(zip(names, inputs, strict=True)), cost=True).cost
    return int(cost.products.value)  # type: ignore[union-attr]


def _flop_counter_mode(module: Any, inputs: tuple[Any, ...]) -> int:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(*inputs)
    return int(counter.get_total_flops())


def _fvcore(module: Any, inputs: tuple[Any, ...]) -> int:
    from fvcore.nn import FlopCountAnalysis

    return 2 * int(FlopCountAnalysis(module, inputs).total())


def _thop(module: Any, inputs: tuple[Any, ...]) -> int:
    from thop import profile

    return 2 * int(profile(module, inputs=inputs, verbose=False)[0])


def _ptflops(module: Any, inputs: tuple[Any, ...]) -> int:
    import inspect

    from ptflops import get_model_complexity_info

    given = dict(zip(inspect.signature(module.forward).parameters, inputs, strict=True))
    macs, _ = get_model_complexity_info(
        module, (1,), input_constructor=lambda _: given, as_strings=False, print_per_layer_stat=False, verbose=False
    )
    return 2 * int(macs)


def _torchinfo(module: Any, inputs: tuple[Any, ...]) -> int:
    import torchinfo

    return 2 * int(torchinfo.summary(module, input_data=list(inputs), verbose=0).total_mult_adds)


def _torchlens(module: Any, inputs: tuple[Any, ...]) -> int:
    import torchlens

    return int(torchlens.trace(module, inputs).total_flops_forward)


@dataclass(frozen=True)
class Peer:
    """A tool: the package to import, and what counts with it."""

    package: str
    count: Count


PEERS = {
    "attnshape": Peer("attnshape", _attnshape),
    "FlopCounterMode": Peer("torch", _flop_counter_mode),
    "fvcore": Peer("fvcore", _fvcore),
    "thop": Peer("thop", _thop),
    "ptflops": Peer("ptflops", _ptflops),
    "torchinfo": Peer("torchinfo", _torchinfo),
    "torchlens": Peer("torchlens", _torchlens),
}


def _counted(subject: Subject, count: Count) -> int | None:
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            return count(*subject.build())
        except Exception as error:  # noqa: BLE001 - whatever the tool raises
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return None


if __name__ == "__main__":
    peer = PEERS[sys.argv[1]]
    print(json.dumps([_counted(subject, peer.count) for subject in SUBJECTS.values()]))
