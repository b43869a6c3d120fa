"""Do parameters start at zero that only get a gradient where another one of them isn't zero?

Of two matrices whose product is added, as by LoRA (Hu et al. 2021, https://arxiv.org/abs/2106.09685, section 4.1), one
starts at zero, so that the model starts unchanged. If both do, neither ever changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from attnshape.checks.attention.definitions import attribute_definition
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.uses import gradients
from attnshape.checks.rules.parameters.listing import listed
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing.operations import ADDITIONS, CONVOLUTIONS, NORMS
from attnshape.tracing.raw import SourceLocation

_NONE = 1e-12
"""A gradient up to this is a rounding error."""
_PLACE_OF_BIAS = 2
_FEWEST = 2
"""One parameter at zero gets a gradient, or no gradient for another reason."""


def check_zero_starts(subject: Subject, trained: Sequence[str]) -> Iterator[Violation]:
    """Yield a violation where parameters at zero keep each other from getting a gradient.

    Those that get one may change, and so no longer count as zero; what is left then is looked at again. `trained` are
    the parameters that get a gradient where none of them is zero.
    """
    values = {name: value for name, value in subject.parameters.items() if name in trained}
    stuck = [name for name in values if name in subject.experiment.zero_parameters]
    # others that start at zero never get a gradient, such as the bias of keys: they stay at zero
    others = subject.experiment.zero_parameters - set(stuck)
    if sum(not _is_only_added(subject, name) for name in stuck) < _FEWEST:
        return  # biases at zero keep nothing from its gradient
    while len(stuck) >= _FEWEST:
        found = gradients(subject.experiment, (), replaced=dict.fromkeys((*stuck, *others), torch.zeros_like))
        slopes = {name: found.by_name.get(name) for name in stuck}
        left = [name for name, slope in slopes.items() if slope is not None and float(slope.abs().max()) <= _NONE]
        if len(left) == len(stuck):
            break
        stuck = left
    if len(stuck) < _FEWEST:
        return
    reader, _ = subject.graph.consumers[stuck[0]][0]
    message = f"{listed(stuck, values)} no gradient: all start at zero, and each gets one only if another isn't zero"
    hint = "initialise one of those that are multiplied with random numbers, and leave the other at zero"
    evidence = "ran it with autograd while these parameters were zero, and while they weren't"
    yield Violation("AS808", message, reader.refs[0], hint, evidence, made=_definition(subject, stuck[0]))


def _is_only_added(subject: Subject, name: str) -> bool:
    """Return whether every call that reads a parameter adds it, as a linear layer does its bias."""
    return all(
        event.name in ADDITIONS or (place == _PLACE_OF_BIAS and event.name in CONVOLUTIONS | NORMS | {"linear"})
        for event, place in subject.graph.consumers.get(name, ())
    )


def _definition(subject: Subject, name: str) -> SourceLocation | None:
    """Return where a parameter is assigned, or the layer of torch that has it."""
    path, _, attribute = name.removeprefix("self.").rpartition(".")
    owner = subject.experiment.structure.classes.get(path)
    while owner is not None and owner.__module__.startswith("torch.") and path:
        path, _, attribute = path.rpartition(".")
        owner = subject.experiment.structure.classes.get(path)
    return attribute_definition(owner, attribute) if owner is not None else None
