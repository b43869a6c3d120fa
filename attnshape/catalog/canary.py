"""Whether the catalog's annotations are really checked as its lines run."""

from __future__ import annotations

from attnshape.catalog.mechanisms import wrong


def annotations_are_checked() -> bool:
    """Run a line with a wrong signature: False where nobody objects (`python -O`, `JAXTYPING_DISABLE`)."""
    try:
        wrong.signature()
    except wrong.NoticedError:
        return True
    return False
