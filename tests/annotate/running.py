"""Runs `annotate` in the test's own process, which saves the second that importing torch takes."""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from attnshape.annotate.saving import Project
from attnshape.annotate.styles import AnnotatedFile
from attnshape.options.spec import AnnotateOptions, RunOptions, TargetSpec
from attnshape.pipelines.annotate import annotate_requests
from tests.specs import spec_of


def request(target: str, *arguments: str) -> TargetSpec:
    """Return the spec of a target and its flags, given as on the command line."""
    words = shlex.split(arguments[0]) if len(arguments) == 1 else list(arguments)
    return spec_of(target, *words)[0] if words else spec_of(shlex.quote(target))[0]


def annotated(
    requests: Sequence[TargetSpec],
    folder: Path,
    style: str = "jaxtyping",
    existing: str = "keep",
    include_matched: bool = False,
    enforce: bool = False,
) -> AnnotatedFile:
    """Annotate the sources as they are on disk now, and return the result."""
    forget(folder)
    options = AnnotateOptions(style, existing, include_matched, enforce)  # type: ignore[arg-type]  # one of the three
    return annotate_requests(requests, RunOptions(), options, Project(folder))


def forget(folder: Path) -> None:
    """Drop the modules of a folder, so that they are imported again."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and Path(file).is_relative_to(folder):
            del sys.modules[name]
    importlib.invalidate_caches()
