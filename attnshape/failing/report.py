"""How the code failed, as the trace saves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnshape.failing.registry import explain
from attnshape.failing.scene import Scene, scene_of
from attnshape.failing.trying import hint
from attnshape.inference.failed import Alike
from attnshape.model import Failure, NamedTensor, Operand, Source, Step, TensorRecord
from attnshape.paths import display_path


def failure_of(alike: Alike, inputs: Sequence[NamedTensor], steps: Sequence[Step], device: str, dtype: str) -> Failure:
    """Return how the code failed: the line, the operands, which of their axes disagree, and what was tried and works.

    `device` and `dtype` are the run's own. An explanation that fails itself leaves the library's words.
    """
    raw = alike.actual
    scene = scene_of(alike, inputs, steps, device.partition(":")[0], dtype)
    explanation, disagree, way_out = _explained(scene)
    place = raw.place
    return Failure(
        expression=place.expression or None if place else None,
        source=Source(display_path(place.file), place.line, place.column, place.function) if place else None,
        operation=raw.operation,
        error=f"{type(raw.error).__name__}: {raw.error}".removesuffix(": "),
        operands=_operands(scene, disagree),
        explanation=explanation,
        hint=way_out,
    )


def _operands(scene: Scene, disagree: Mapping[int, tuple[int, ...]]) -> tuple[Operand, ...]:
    """Return each operand once, however often it was passed."""
    marks: dict[str, set[int]] = {}
    records: dict[str, TensorRecord] = {}
    for party in scene.parties:
        name = party.name
        if records.get(name, party.record) != party.record:
            name = f"{name} (operand {party.place + 1})"
        records[name] = party.record
        marks.setdefault(name, set()).update(disagree.get(party.place, ()))
    return tuple(Operand(name, record, tuple(sorted(marks[name]))) for name, record in records.items())


def _explained(scene: Scene) -> tuple[str | None, dict[int, tuple[int, ...]], str | None]:
    try:
        found = explain(scene)
        if found is not None:
            # what works inside a library says nothing of the rest of its call
            tried = [one for one in found.candidates if scene.failure.own or one.inner]
            return found.explanation, dict(found.disagree), hint(scene, tried)
    except Exception:  # noqa: BLE001 - a call of a kind that nobody thought of still has its line and its operands
        pass
    return None, {}, None
