"""Is a residual stream left as it is where its branch has a factor of its own, or a gate?

LayerScale (Touvron et al. 2021, https://arxiv.org/abs/2103.17239, section 2) multiplies a branch by a small learned
factor, and adaLN-Zero (Peebles and Xie 2022, https://arxiv.org/abs/2212.09748, section 3.2) by a gate that starts at
zero. A factor of the sum multiplies the stream at every layer.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import Producer, ReplayedCall
from attnshape.checks.rules.protocol import Violation
from attnshape.checks.rules.residuals.connections import Connection, connections
from attnshape.model.report import Level
from attnshape.tracing import operations as ops

_NEAR_ONE = 0.5
"""Up to which difference from 1 a factor leaves a stream nearly as it is."""


def check_scaled(subject: Subject) -> Iterator[Violation]:
    """Yield the products of a stream, its branch added, with a learned factor, or with a gate that isn't made of it."""
    contexts = subject.graph.downstream({core.context for core in subject.attentions})
    for connection in connections(subject):
        attends = any(ref in contexts for sources in connection.event.sources for ref in sources)
        for event in _products(subject, connection) if attends else ():
            place = next(at for at, sources in enumerate(event.sources) if connection.ref in sources)
            factor, sources = event.operand_values[1 - place], event.sources[1 - place]
            if not _is_factor(subject, connection, factor, sources):
                continue
            is_gate = subject.graph.carries_data(sources)
            level: Level = "error" if is_gate or float((factor - 1).abs().min()) > _NEAR_ONE else "notice"
            what = "a gate" if is_gate else "a learned factor"
            message = f"{what} multiplies the residual stream with its branch: the stream itself isn't kept"
            hint = "multiply the branch alone: x + gamma * attend(x)"
            if level == "notice":
                hint += ", or if it is meant, put # attnshape: ignore[AS818] on the line"
            evidence = "followed the sum of the stream and its branch to the product that reads it"
            yield Violation("AS818", message, event.refs[0], hint, evidence, "measured", level=level)
            return


def _products(subject: Subject, connection: Connection) -> Iterator[ReplayedCall]:
    """Yield the products that alone read the sum of a connection."""
    readers = [event for event, _ in subject.graph.consumers.get(connection.ref, ())]
    if len(readers) == 1 and readers[0].name in ops.MULTIPLICATIONS and len(readers[0].sources) == 2:
        yield readers[0]


def _is_factor(subject: Subject, connection: Connection, factor: Tensor, sources: tuple[Producer, ...]) -> bool:
    """Return whether what multiplies a sum is learned, or data that has one number for several tokens at least."""
    if connection.ref in sources or not factor.is_floating_point():
        return False
    origins = subject.graph.origins(sources)
    is_learned = not origins.isdisjoint(subject.experiment.parameters)
    is_smaller = factor.numel() < connection.event.values[0].numel()
    of_stream = subject.graph.downstream({connection.skip})
    return is_learned and is_smaller and not any(source in of_stream for source in sources)
