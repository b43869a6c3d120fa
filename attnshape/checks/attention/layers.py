"""Names the layers of a model that contain an attention, by the paths of their modules."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from attnshape.checks.attention.subject import Subject, once
from attnshape.checks.interventions.experiment import UnreadableError
from attnshape.checks.interventions.replay import OutputRef
from attnshape.model.trace import Source

_INDEX = re.compile(r"\.(\d+)(?=\.|$)")
_FEWEST_ABRIDGED = 3


@once
def layers(subject: Subject) -> Mapping[OutputRef, str]:
    """Return the path of the module that makes each attention, by the context; only of those within modules."""
    paths: dict[OutputRef, str] = {}
    with contextlib.suppress(UnreadableError):  # each rule that needs the attentions then reports it
        paths = {core.context: layer_of(subject, core.context) for core in subject.attentions}
    return {context: path for context, path in paths.items() if path}


def layer_of(subject: Subject, ref: OutputRef | None) -> str:
    """Return the path of the module that makes a call, empty if that isn't known."""
    step = subject.step(ref)
    return (step.module if step is not None else None) or ""


def same_code(subject: Subject) -> Iterator[tuple[Source, list[str]]]:
    """Yield each line that makes the attention of several modules, with their paths."""
    lines: dict[Source, dict[str, None]] = {}
    for context, path in layers(subject).items():
        if (source := subject.source(context)) is not None:
            lines.setdefault(source, {})[path] = None
    yield from ((source, list(paths)) for source, paths in lines.items() if len(paths) > 1)


def format_layers(paths: Iterable[str]) -> str:
    """Return the paths of modules in words; of those that differ only by consecutive indices the first and the last.

    >>> format_layers(["h.0.attn", "h.1.attn", "h.2.attn", "h.5.attn", "head"])
    'h.0.attn … h.2.attn, h.5.attn, head'
    >>> format_layers(["a.9.b.1", "a.9.b.2", "a.10.b.2", "a.10.b.3"])
    'a.9.b.1, a.9.b.2, a.10.b.2, a.10.b.3'
    """
    runs: list[list[str]] = []
    for path in dict.fromkeys(paths):
        if runs and path in _next(runs[-1]):
            runs[-1].append(path)
        else:
            runs.append([path])
    return ", ".join(itertools.chain.from_iterable(map(_abridged, runs)))


def _next(run: Sequence[str]) -> set[str]:
    """Return the paths that may follow: one index is larger by one, always the same index."""
    last = run[-1]
    indices = list(_INDEX.finditer(last))
    if len(run) > 1:
        place = next(place for place, (a, b) in enumerate(zip(run[0], run[1], strict=False)) if a != b)
        indices = [index for index in indices if index.start(1) <= place][-1:]
    return {f"{last[: index.start(1)]}{int(index[1]) + 1}{last[index.end(1) :]}" for index in indices}


def _abridged(run: Sequence[str]) -> list[str]:
    return [f"{run[0]} … {run[-1]}"] if len(run) >= _FEWEST_ABRIDGED else list(run)
