"""attnshape shows, proves and documents the shapes inside attention code.

`trace` runs attention code and returns what it does with shapes as a `Trace`; `record` watches code that already runs;
`check` looks for mistakes that no shape tells of, and returns a `Report`; `diff` compares two traces step by step.
Nothing slow is imported before the first use of one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnshape.errors import AttnshapeError

if TYPE_CHECKING:
    from attnshape.api import check, diff, record, trace
    from attnshape.asserting import assert_shapes
    from attnshape.comparing.difference import Difference
    from attnshape.model import Trace
    from attnshape.recording import Recording
    from attnshape.report import Report

__version__ = "0.1.0"
__all__ = [
    "AttnshapeError",
    "Difference",
    "Recording",
    "Report",
    "Trace",
    "__version__",
    "assert_shapes",
    "check",
    "diff",
    "record",
    "trace",
]

_HOMES = {
    "Difference": "comparing.difference",
    "Recording": "recording",
    "Report": "report",
    "Trace": "model",
    "assert_shapes": "asserting",
    "check": "api",
    "diff": "api",
    "record": "api",
    "trace": "api",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
