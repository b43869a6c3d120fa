"""Gives the steps' outputs the names that the source has for them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from attnshape.model import Reference
from attnshape.tracing.raw import Place, RawOutput, RawStep
from attnshape.tracing.storage import Ledger


class Names:
    """Names the outputs of one run's steps; a name that is there stays."""

    def __init__(self, steps: list[RawStep], ledger: Ledger) -> None:
        self._steps = steps
        self._ledger = ledger
        self._turns: dict[Place, int] = {}

    def bound(self, place: Place) -> Sequence[str | None]:
        """Return the names that the place binds this turn's value to, one for each element where it is unpacked."""
        if not place.in_turn:
            return place.targets
        turn = self._turns[place] = self._turns.get(place, -1) + 1
        return (place.in_turn[turn % len(place.in_turn)],)

    def assign(self, place: Place, result: object) -> None:
        """Give the tensors in a result the names that the place binds them to."""
        names = self.bound(place)
        values: Sequence[object] = [result]
        if place.unpacked:
            values = result if isinstance(result, (tuple, list)) else []
        if len(names) != len(values):
            return
        for name, value in zip(names, values, strict=True):
            if name is not None and isinstance(value, Tensor):
                self.give(value, name)

    def give(self, tensor: Tensor, name: str) -> None:
        """Name the output that the tensor is."""
        output = self._output(self._ledger.reference(tensor))
        if output is not None and output.name is None:
            output.name = name

    def give_by_use(self, tensor: Tensor, name: str, since: int) -> None:
        """Name the output by a consumer's variable; what only passed it on leaves the name to where it is from.

        Only outputs of steps behind the position `since` are named: a library's variable is no name for what came
        from outside.
        """
        reference: Reference | None = self._ledger.reference(tensor)
        while reference is not None and reference.step is not None and reference.step - 1 > since:
            step = self._steps[reference.step - 1]
            if reference.output >= len(step.outputs):  # a composite that is still running
                return
            output = step.outputs[reference.output]
            if output.tensor.kind not in ("same", "inplace"):
                if step.library and since < 0:
                    output.outside = output.outside or name
                elif output.name is None:
                    output.name, output.by_use = name, True
                return
            reference = output.tensor.of

    def known(self, tensor: Tensor) -> str | None:
        """Return the input, the parameter, or the named result that a tensor is."""
        reference = self._ledger.reference(tensor)
        output = self._output(reference)
        return output.name if output is not None else reference.input or reference.parameter

    def _output(self, reference: Reference) -> RawOutput | None:
        if reference.step is None:
            return None
        outputs = self._steps[reference.step - 1].outputs
        # a composite that is still running has none yet
        return outputs[reference.output] if reference.output < len(outputs) else None
