"""Errors, as the command line says them."""

from __future__ import annotations

import sys

from attnshape.errors import AttnshapeError
from attnshape.render.text import visible


def complain(error: AttnshapeError) -> None:
    """Write what is wrong on standard error, and below it the way out."""
    print(f"error: {visible(error.message)}", file=sys.stderr)  # noqa: T201 - the one place that writes errors
    if error.hint:
        print(f"hint: {visible(error.hint)}", file=sys.stderr)  # noqa: T201
