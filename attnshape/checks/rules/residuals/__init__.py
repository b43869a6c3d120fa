"""Do residual connections start from the stream that their branch reads, and is the stream kept whole?"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from attnshape.checks.attention.cores import drops
from attnshape.checks.attention.layers import layer_of
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.checks.rules.protocol import Outcome, Verification, Violation
from attnshape.checks.rules.residuals.connections import Connection, connections, norms, read_through_norms, readers
from attnshape.checks.rules.residuals.scaled import check_scaled
from attnshape.model.report import Level
from attnshape.tracing import operations as ops
from attnshape.tracing.raw import SourceLocation

CODES: tuple[str, ...] = ("AS815", "AS816", "AS818")
TOPIC = "residual connections"
_FEWEST_OTHERS = 2
"""With fewer other connections in the function, either of two kinds may be the mistake."""
_KEEP_EACH_NUMBER = ops.CASTS | ops.COPIES


@dataclass(frozen=True)
class _Function:
    """The connections that one call of a function makes, by where they start."""

    proper: list[Connection]
    """Those that start from the stream of which the branch reads a norm, or from a norm that the branch reads."""
    normed: list[tuple[Connection, OutputRef]]
    """Those that start from a norm although others start from the stream itself, with the norm."""
    earlier: list[tuple[Connection, Connection]]
    """Those that start where a connection on their own branch started, with that connection."""


def check(subject: Subject) -> Iterator[Outcome]:
    """Compare the residual connections of each function with one another, then look for dropout of their sums."""
    functions = _functions(subject)
    for function in functions:
        for connection, norm in function.normed:
            yield _starts_from_norm(subject, function, connection, norm)
        for connection, before in function.earlier:
            yield _starts_earlier(subject, function, connection, before)
    wrong = any(function.normed or function.earlier for function in functions)
    if not wrong and any(len(function.proper) >= _FEWEST_OTHERS for function in functions):
        yield Verification("residual connections start from the stream that their branch reads")
    yield from _dropped(subject)
    yield from check_scaled(subject)


def _functions(subject: Subject) -> list[_Function]:
    """Return the connections by the module and the function of the target's own code that make them."""
    groups: dict[tuple[str, str, str], list[Connection]] = {}
    for connection in connections(subject):
        step = subject.experiment.steps.get(connection.event.order)
        if step is not None and step.location is not None and not step.library:
            key = (layer_of(subject, connection.ref), step.location.file, step.location.function)
            groups.setdefault(key, []).append(connection)
    return [_compared(subject, group) for group in groups.values()]


def _compared(subject: Subject, group: list[Connection]) -> _Function:
    earlier = [
        (connection, before)
        for connection in group
        if (before := next((one for one in group if _skips(subject, connection, one)), None)) is not None
    ]
    rest = [connection for connection in group if connection not in [one for one, _ in earlier]]
    before_norm = [one for one in rest if any(read_through_norms(subject, one, one.skip))]
    after_norm = [one for one in rest if one not in before_norm and one.skip in norms(subject)]
    normed = [
        (one, one.skip)
        for one in after_norm
        if isinstance(one.skip, OutputRef)
        and _ends_the_stream(subject, one.skip)
        and any(norms(subject)[one.skip] == other.ref or one.ref == other.skip for other in before_norm)
    ]
    proper = before_norm + [one for one in after_norm if one not in [wrong for wrong, _ in normed]]
    return _Function(proper, normed, earlier)


def _ends_the_stream(subject: Subject, norm: OutputRef) -> bool:
    """Return whether nothing but a norm reads what it normalises."""
    within = {event.order for event in subject.graph.upstream((norm,))}
    return all(event.order in within for event in readers(subject, norms(subject)[norm]))


def _skips(subject: Subject, connection: Connection, before: Connection) -> bool:
    """Return whether a connection starts where one on its branch started, and nothing else goes on from that one.

    The branch reads its sum through a norm, and the skip has no other reader than both.
    """
    if before is connection or before.skip != connection.skip or before.event.order not in connection.branch:
        return False
    read = list(read_through_norms(subject, connection, before.ref))
    if len(read) != 1 or not isinstance(read[0], OutputRef) or not _ends_the_stream(subject, read[0]):
        return False
    starts: set[Producer] = {other.skip for other in connections(subject)}
    known = before.branch | {before.event.order, connection.event.order}
    apart = [event for event in readers(subject, connection.skip) if event.order not in known]
    return starts.isdisjoint((before.ref, read[0])) and not apart


def _starts_from_norm(subject: Subject, function: _Function, connection: Connection, norm: OutputRef) -> Violation:
    # what is normalised first of all, or last, may be no stream of other connections
    sums, starts = {one.ref for one in function.proper}, {one.skip for one in function.proper}
    goes_on = norms(subject)[norm] in sums and connection.ref in starts
    message = "the residual connection starts from what a norm returns, not from the stream that the norm reads"
    hint = "normalise into another variable, and add the branch to the stream: y = norm(x); x = x + attend(y)"
    place = subject.place(norm)
    at = norm if place is not None and _is_rebound(place) else connection.ref
    return _violation(message, at, hint, _level(function, goes_on))


def _starts_earlier(subject: Subject, function: _Function, connection: Connection, before: Connection) -> Violation:
    line = place.line if (place := subject.place(before.ref)) is not None else None
    where = f"the sum on line {line}" if line is not None else "an earlier sum"
    message = f"the residual connection starts where {where} starts, but its branch reads that sum"
    goes_on = any(one.skip == connection.ref for one in function.proper)
    hint = "add the branch to the stream that it reads: x = x + attend(norm(x)); x = x + feed_forward(norm(x))"
    return _violation(message, connection.ref, hint, _level(function, goes_on))


def _level(function: _Function, goes_on: bool) -> Level:
    return "error" if goes_on and len(function.proper) >= _FEWEST_OTHERS else "notice"


def _is_rebound(place: SourceLocation) -> bool:
    """Return whether an expression is assigned to a variable that it reads."""
    names = {node.id for node in ast.walk(ast.parse(place.expression)) if isinstance(node, ast.Name)}
    return not names.isdisjoint(name for name in place.targets if name is not None)


def _violation(message: str, at: OutputRef, hint: str, level: Level) -> Violation:
    if level == "notice":
        hint += ", or if it is meant, put # attnshape: ignore[AS815] on the line"
    evidence = "followed the sums of the function and their branches back to where they start"
    return Violation("AS815", message, at, hint, evidence, "measured", level=level)


def _dropped(subject: Subject) -> Iterator[Violation]:
    """Yield a notice for each line that drops features of a stream with what a branch adds to it."""
    starts = {connection.skip for connection in connections(subject)}
    places: list[SourceLocation | None] = []
    for connection in connections(subject):
        for dropout in _dropouts_of(subject, connection.ref):
            place = subject.place(dropout.refs[0])
            is_kept = connection.ref in starts or not subject.graph.consumers.get(dropout.refs[0])
            if is_kept and place not in places:
                places.append(place)
                message = "dropout is applied to the sum of the stream and the branch: features of the stream are lost"
                hint = "apply it to the branch alone: x + dropout(attend(x)), or if it is meant, "
                hint += "put # attnshape: ignore[AS816] on the line"
                evidence = "found the dropout after the sum"
                yield Violation("AS816", message, dropout.refs[0], hint, evidence, "measured", level="notice")


def _dropouts_of(subject: Subject, producer: Producer) -> Iterator[ReplayedCall]:
    """Yield the dropouts that read a result as it is."""
    for event, _ in subject.graph.consumers.get(producer, []):
        if event.name in _KEEP_EACH_NUMBER:
            yield from _dropouts_of(subject, event.refs[0])
        elif drops(event):
            yield event
