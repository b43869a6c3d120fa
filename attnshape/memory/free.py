"""How much memory is free on a device."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import torch

UNLIMITED = 2**62
"""What is said to be free where nothing tells; limits from here up mean that there is none."""


def free_memory(device: torch.device) -> int:
    """Return the bytes that are free on a device, those that torch keeps for itself included."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    return free_on_host()


def free_on_host(root: Path = Path("/")) -> int:
    """Return the bytes that this process can still take: by the kernel, its control groups and its own limits.

    `root` is the file system that these are read from.
    """
    return max(min([UNLIMITED, *_available(root), *_in_groups(root), *_in_limits(root)]), 0)


def _available(root: Path) -> Iterator[int]:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _in_groups(root: Path) -> Iterator[int]:
    """Yield what each control group that the process is in leaves; a container's host has more than the container."""
    mount = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            names = ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        top = mount / "memory" if controllers else mount
        group = Path(path.lstrip("/"))
        # inside a container the path may be the host's, and the mount the container's own
        for folder in (top / group, *(top / parent for parent in group.parents), top):
            yield from _in_group(folder, *names)


def _in_group(folder: Path, limit: str, usage: str, cache: str) -> Iterator[int]:
    most, used = _text(folder / limit).strip(), _text(folder / usage).strip()
    if not most.isdecimal() or not used.isdecimal() or int(most) >= UNLIMITED:
        return
    # the kernel gives up files that it keeps in memory before it refuses any
    statistics = (line.split() for line in _text(folder / "memory.stat").splitlines())
    kept = next((int(words[1]) for words in statistics if len(words) == 2 and words[0] == cache), 0)
    yield int(most) - int(used) + kept


def _in_limits(root: Path) -> Iterator[int]:
    """Yield what is left of the address space where `ulimit -v` bounds it."""
    for line in _text(root / "proc/self/limits").splitlines():
        if line.startswith("Max address space"):
            most = line.removeprefix("Max address space").split()[0]
            pages = _text(root / "proc/self/statm").split()
            if most.isdecimal() and pages:
                yield int(most) - int(pages[0]) * mmap.PAGESIZE


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
