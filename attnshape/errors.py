"""The one error that a user's mistake raises, and the exit statuses."""

from __future__ import annotations

import enum


class ExitStatus(enum.IntEnum):
    """What the process ends with."""

    FINE = 0
    FOUND = 1
    """The analysis found something: the code failed at a step, an expectation doesn't hold."""
    CANNOT = 2
    """The request can't be carried out."""
    INTERRUPTED = 130


class AttnshapeError(Exception):
    """A request that can't be carried out: what is wrong in one paragraph, and the way out as a hint.

    >>> import attnshape
    >>> try:
    ...     attnshape.trace("multi-hed")
    ... except attnshape.AttnshapeError as error:
    ...     print(error.message)
    there is no mechanism 'multi-hed' in the catalog
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")
