"""Annotates inside the test's own process, which saves the second that importing torch takes."""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from attnshape.annotate.asked import Asked
from attnshape.annotate.outcome import Annotated
from attnshape.annotate.project import Project
from attnshape.annotating import annotate_requests
from attnshape.cli.request import Flags, combine
from attnshape.cli.target_options import takes_target
from attnshape.proving.prover import Prover
from attnshape.target.request import Request


def request(target: str, *arguments: str) -> Request:
    """Return what is asked for by a target and its flags as they are typed."""
    values: dict[str, list[str]] = {name: [] for name in _all_flags()}
    words = shlex.split(arguments[0]) if len(arguments) == 1 else list(arguments)
    for flag, value in zip(words[::2], words[1::2], strict=True):
        values[flag.removeprefix("--")].append(value)
    return combine(target, Flags(values), "")[0]


def annotated(
    requests: Sequence[Request],
    folder: Path,
    prover: Prover,
    style: str = "jaxtyping",
    existing: str = "keep",
    matched: bool = False,
    enforce: bool = False,
) -> Annotated:
    """Return what annotating comes to, of sources as they are on the disk now."""
    forget(folder)
    settings = combine("x:y", Flags({name: [] for name in _all_flags()}), "")[1]
    how = Asked(style, existing, matched, enforce)  # type: ignore[arg-type]  # one of the three
    return annotate_requests(requests, settings, how, Project(folder), prover)


def _all_flags() -> list[str]:
    @takes_target
    def verb(target: str | None, flags: Flags) -> None:
        """Only for its flags."""

    return [name.removesuffix("_").replace("_", "-") for name in verb.__annotations__][1:]


def forget(folder: Path) -> None:
    """Forget the modules of a folder, so that they are imported anew."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and Path(file).is_relative_to(folder):
            del sys.modules[name]
    importlib.invalidate_caches()
