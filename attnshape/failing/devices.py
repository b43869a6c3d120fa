"""Operands that lie on different devices."""

from __future__ import annotations

import torch
from torch import Tensor

from attnshape.failing.finding import Finding, on_operand
from attnshape.failing.scene import Scene
from attnshape.failing.words import joined, quoted


def devices(scene: Scene) -> Finding | None:
    """Explain an operation whose operands aren't all on one device."""
    kinds = list(dict.fromkeys(party.record.device for party in scene.parties))
    if len(kinds) < 2 or "device" not in scene.message.lower():
        return None
    named = [
        f"{quoted(next(party for party in scene.parties if party.record.device == kind))} is on {kind}"
        for kind in kinds
    ]
    away = [party for party in scene.parties if party.record.device.partition(":")[0] != scene.device]
    home = [party for party in scene.parties if party not in away and party.text is not None]
    candidates = []
    # from a tensor without memory nothing can be copied
    if len(away) == 1 and home and away[0].record.device != "meta":
        candidates = on_operand(
            away[0], f".to({home[0].text}.device)", lambda tensor, tensors: _beside(tensor, tensors[home[0].place])
        )
    return Finding(f"the operands of {scene.operation} differ in device: {joined(named)}", {}, tuple(candidates))


def _beside(tensor: Tensor, other: Tensor) -> Tensor:
    # a stand-in of the run's device may have no memory, and nothing can be copied from it
    return torch.zeros_like(tensor, device=other.device)
