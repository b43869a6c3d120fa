"""What the queries of every attention of a subject see, and what explains it."""

from __future__ import annotations

from attnshape.attention.seen import Explained, Explainer
from attnshape.attention.subject import Subject
from attnshape.attention.visible import UnseenError, visible, visible_fused


def sights(subject: Subject) -> tuple[list[Explained], list[str]]:
    """Return what explains the keys that are seen, for each attention, and why that can't be told of others."""
    if subject.sights is None:
        explained: list[Explained] = []
        unseen: list[str] = []
        for one in [*subject.measured, *subject.fused]:
            try:
                seen = visible_fused(subject, one) if not hasattr(one, "core") else visible(subject, one)
            except UnseenError as error:
                unseen.append(str(error))
                continue
            explained.append(Explainer(subject, seen).explain())
        subject.sights = (explained, list(dict.fromkeys(unseen)))
    return subject.sights
