"""The amount of free memory on a device."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import torch

UNLIMITED = 2**62
"""The result on platforms that don't report free memory; limits from this number on mean no limit."""


def free_memory(device: torch.device) -> int:
    """Return the number of free bytes on a device, including those that torch has reserved but doesn't use."""
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + reserved
    return free_on_host()


def free_on_host(root: Path = Path("/")) -> int:
    """Return the number of bytes that this process can still allocate.

    This is the minimum over the kernel, the process's control groups and its resource limits, read from the files
    below `root`. Platforms other than Linux have no such files: there the result is `UNLIMITED`.
    """
    return max(min([UNLIMITED, *_free_in_kernel(root), *_free_in_groups(root), *_free_in_address_space(root)]), 0)


def _free_in_kernel(root: Path) -> Iterator[int]:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _free_in_groups(root: Path) -> Iterator[int]:
    """Yield the free bytes of each control group of the process: a container has less memory than its host."""
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        second = ("memory.max", "memory.current", "inactive_file")
        first = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        names, top = (first, mount / "memory") if controllers else (second, mount)
        group = Path(path.lstrip("/"))
        # in a container the path may be relative to the host's root, and the mount to the container's
        for folder in (top / group, *(top / parent for parent in group.parents), top):
            yield from _free_in_group(folder, *names)


def _free_in_group(folder: Path, limit: str, usage: str, cache: str) -> Iterator[int]:
    maximum, used = _read(folder / limit).strip(), _read(folder / usage).strip()
    if not maximum.isdecimal() or not used.isdecimal() or int(maximum) >= UNLIMITED:
        return
    # the kernel drops cached files before an allocation fails
    statistics = (line.split() for line in _read(folder / "memory.stat").splitlines())
    cached = next((int(words[1]) for words in statistics if len(words) == 2 and words[0] == cache), 0)
    yield int(maximum) - int(used) + cached


def _free_in_address_space(root: Path) -> Iterator[int]:
    """Yield the free bytes of the address space if `ulimit -v` limits it."""
    for line in _read(root / "proc/self/limits").splitlines():
        if line.startswith("Max address space"):
            most = line.removeprefix("Max address space").split()[0]
            pages = _read(root / "proc/self/statm").split()
            if most.isdecimal() and pages:
                yield int(most) - int(pages[0]) * mmap.PAGESIZE


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
