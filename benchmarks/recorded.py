"""One measurement of the recorder, in a separate process: `python -m benchmarks.recorded SUBJECT SIZE [TOOL]`.

It prints as JSON the seconds of a plain and of a recorded call, the number of recorded steps, and the increase of the
process's peak memory. TOOL is `attnshape` (the default) or a peer.
"""

import gc
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnshape.tracing.runner import Runnable, record
from benchmarks.peer import PEERS

CALLS = 7
Subject = tuple[nn.Module, tuple[Any, ...]]


class Attention(nn.Module):
    """Self-attention in plain Python, repeated."""

    def __init__(self, repeats: int) -> None:
        super().__init__()
        self.repeats = repeats
        self.Wq, self.Wk, self.Wv = (nn.Linear(8, 8) for _ in range(3))
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        for _ in range(self.repeats):
            query = self.Wq(x).view(2, 4, 2, 4).transpose(1, 2)
            key = self.Wk(x).view(2, 4, 2, 4).transpose(1, 2)
            value = self.Wv(x).view(2, 4, 2, 4).transpose(1, 2)
            scores = query @ key.transpose(-2, -1)
            weights = scores.softmax(dim=-1)
            context = (weights @ value).transpose(1, 2).reshape(2, 4, 8)
            x = self.norm(x + context)
        return x


STEPS_A_TURN = 17


def _attention(steps: int) -> Subject:
    return Attention(max(1, steps // STEPS_A_TURN)), (torch.randn(2, 4, 8),)


def _encoder(width: int) -> Subject:
    layers = 24 if width >= 1024 else 6
    layer = nn.TransformerEncoderLayer(width, 8, batch_first=True)
    # the fast path would be a single call
    encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).train()
    for module in encoder.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return encoder, (torch.randn(*((4, 128) if width >= 1024 else (1, 10)), width),)


SUBJECTS: dict[str, Callable[[int], Subject]] = {"attention": _attention, "encoder": _encoder}


def least(call: Callable[[], object], calls: int) -> float:
    """Return the seconds of the fastest of several calls, after one that isn't timed."""
    call()
    taken = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(subject: str, size: int, tool: str) -> dict[str, float]:
    """Measure one subject at one size under one tool."""
    torch.set_num_threads(1)
    model, inputs = SUBJECTS[subject](size)
    steps = 0

    def plain() -> object:
        with torch.no_grad():
            return model(*inputs)

    def watched() -> object:
        nonlocal steps
        raw = record(Runnable(model, inputs), seed=0)
        steps = len(raw.steps)
        return raw

    gc.freeze()  # as the command line does
    calls = 3 if size == 10000 or (subject, size) == ("encoder", 1024) else CALLS
    record(Runnable(Attention(1), (torch.randn(2, 4, 8),)), seed=0)  # parses the source, which happens only once
    plain_seconds = least(plain, calls)
    before = _peak()
    if tool == "attnshape":
        watched()
        memory = _peak() - before
        seconds = least(watched, calls)
    else:
        trace = PEERS[tool]()
        before = _peak()
        trace(model, inputs)
        memory = _peak() - before
        seconds = least(lambda: trace(model, inputs), 1)
    return {"plain": plain_seconds, "watched": seconds, "steps": steps, "memory": memory}


if __name__ == "__main__":
    name, number, *rest = sys.argv[1:]
    print(json.dumps(main(name, int(number), rest[0] if rest else "attnshape")))
