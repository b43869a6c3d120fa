"""Says of facts about attentions in which layers of a model they hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attnshape.checks.attention.layers import format_layers, layers
from attnshape.checks.attention.subject import Subject
from attnshape.checks.rules.protocol import Observation
from attnshape.model.trace import Source


def with_layers(subject: Subject, observations: Iterable[Observation]) -> Iterator[tuple[Observation, str]]:
    """Yield each observation with its text; one that holds in some attentions only names their layers."""
    every = layers(subject)
    of_texts: dict[tuple[str, Source | None], list[tuple[Observation, str]]] = {}
    for seen in observations:
        path = every.get(seen.attention, "") if seen.attention is not None else ""
        of_texts.setdefault((seen.text, subject.source(seen.at)), []).append((seen, path))
    for (text, _), alike in of_texts.items():
        paths = [path for _, path in alike]
        is_general = "" in paths or set(paths) == set(every.values())
        yield alike[0][0], text if is_general else f"{text} ({format_layers(paths)})"
