"""Whether a device is there."""

from __future__ import annotations

import torch

from attnshape.errors import AttnshapeError


def require_device(name: str) -> None:
    """Raise AttnshapeError where this machine, or this build of torch, has no such device."""
    kind, _, index = name.partition(":")
    if kind != "cuda":
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise AttnshapeError(f"there is no device {name!r}: torch finds no CUDA here", "leave --device out: cpu")
    if index and int(index) >= count:
        raise AttnshapeError(f"there is no device {name!r}: torch finds {count}", f"the last is cuda:{count - 1}")
