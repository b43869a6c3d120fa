"""What the queries of every attention of a subject see, and what explains it."""

from __future__ import annotations

from collections.abc import Callable

from attnshape.attention.seen import Explained, Explainer
from attnshape.attention.subject import Subject
from attnshape.attention.visible import UnseenError, Visible, visible, visible_fused

Sights = tuple[list[Explained], list[str]]


def sights(subject: Subject) -> Sights:
    """Return what explains the keys that are seen, for each attention, and why that can't be told of others."""
    return subject.once(_sights)


def _sights(subject: Subject) -> Sights:
    explained: list[Explained] = []
    unseen: list[str] = []
    looks: list[Callable[[], Visible]] = [
        *(lambda one=one: visible(subject, one) for one in subject.measured),
        *(lambda one=one: visible_fused(subject, one) for one in subject.fused),
    ]
    for look in looks:
        try:
            explained.append(Explainer(subject, look()).explain())
        except UnseenError as error:
            unseen.append(str(error))
    return explained, list(dict.fromkeys(unseen))
