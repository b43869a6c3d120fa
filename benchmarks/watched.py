"""Prints the seconds of training steps by themselves and watched, alternately: `python -m benchmarks.watched WIDTH`."""

import json
import sys
import time
from statistics import median

import torch

from attnshape.programs.watch import Watch
from examples.fused_qkv import FusedSelfAttention

STEPS = 50
BLOCKS = 5
"""In how many parts the steps are made, so that both kinds meet the same load of the machine."""
LAYERS, HEADS, BATCH, LENGTH = 4, 4, 4, 32


class Training:
    """A model, its optimizer, and its steps."""

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
        self.width = width
        self.model = torch.nn.Sequential(*(FusedSelfAttention(width, HEADS) for _ in range(LAYERS)))
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self) -> float:
        """Make a step, and return its seconds."""
        started = time.perf_counter()
        loss = self.model(torch.rand(BATCH, LENGTH, self.width)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return time.perf_counter() - started


def main() -> None:
    """Time the first step of each kind, after a warm-up of torch, and the further ones."""
    width = int(sys.argv[1])
    Training(width).step()
    plain = Training(width)
    first_plain = plain.step()
    watch = Watch()
    watch.install()
    watched = Training(width)
    first_watched = watched.step()
    seconds: dict[str, list[float]] = {"plain": [], "watched": []}
    for _ in range(BLOCKS):
        seconds["watched"] += [watched.step() for _ in range(STEPS // BLOCKS)]
        watch.uninstall()
        seconds["plain"] += [plain.step() for _ in range(STEPS // BLOCKS)]
        watch.install()
    print(
        json.dumps(
            {
                "first_plain": first_plain,
                "first_watched": first_watched,
                "later_plain": median(seconds["plain"]),
                "later_watched": median(seconds["watched"]),
            }
        )
    )


if __name__ == "__main__":
    main()
