"""attnshape shows, verifies and documents the shapes inside attention code.

`trace` runs attention code and returns every intermediate tensor as a `Trace`; `record` does the same for code that
already runs; `explain` returns an article about the code, an `Explanation`; `watch` reports the attention that a
program calls; `check` looks for mistakes that no shape reveals, and returns a `Report`; `diff` compares two traces step
by step; `assert_shapes` is for tests. The package imports nothing slow before the first use of one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnshape.errors import AttnshapeError

if TYPE_CHECKING:
    from attnshape.api import check, diff, explain, record, trace, watch
    from attnshape.model.difference import Difference
    from attnshape.model.explanation import Explanation
    from attnshape.model.report import Report
    from attnshape.model.trace import Trace
    from attnshape.pipelines.record import Recording
    from attnshape.testing.assertions import assert_shapes

__version__ = "0.1.0"
__all__ = [
    "AttnshapeError",
    "Difference",
    "Explanation",
    "Recording",
    "Report",
    "Trace",
    "__version__",
    "assert_shapes",
    "check",
    "diff",
    "explain",
    "record",
    "trace",
    "watch",
]

_MODULES = {
    "Difference": "model.difference",
    "Explanation": "model.explanation",
    "Recording": "pipelines.record",
    "Report": "model.report",
    "Trace": "model.trace",
    "assert_shapes": "testing.assertions",
    "check": "api",
    "diff": "api",
    "explain": "api",
    "load_ipython_extension": "notebook",
    "record": "api",
    "trace": "api",
    "watch": "api",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
