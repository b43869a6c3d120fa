"""Which step makes what another reads: composites left out, their results those of their inner steps."""

from __future__ import annotations

from collections.abc import Sequence

from attnshape.inference.kinds import CAST, JOIN, PARTS, PRODUCT, SPLIT, TRANSPOSE, operation_name
from attnshape.model import Reference, Role, Step, TensorRecord

_BY_MATRIX = {"linear", "matmul", "mm"}
"""Products whose second operand is the weight."""
_OF_WEIGHTS = {*SPLIT, *TRANSPOSE, *JOIN, *CAST, *PARTS, *("view", "reshape", "contiguous")}
_SELECTING = ("int", "uint", "bool")


class Flow:
    """Who makes what and who uses it; a composite's results are those of its inner steps."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.roles: dict[int, Role] = {}
        composites = {step.parent for step in steps}
        self.single = [step for step in steps if step.index not in composites]
        self._weights: set[int] = set()
        """The steps that only cut, join or turn parameters."""
        self._users: dict[int, list[Step]] = {}
        for step in self.single:
            if operation_name(step) in _OF_WEIGHTS and step.operands and all(map(self._is_weight, step.operands)):
                self._weights.add(step.index)
        for step in self.single:
            for maker in dict.fromkeys(maker.index for maker in self.activations(step)):
                self._users.setdefault(maker, []).append(step)

    def assign(self, step: Step, role: Role) -> None:
        """Give a step its role, unless it has one."""
        self.roles.setdefault(step.index, role)

    def activations(self, step: Step) -> list[Step]:
        """Return the steps that make its operands; numbers that select or mask others carry nothing themselves."""
        made = [
            (self.steps[index - 1], output) for index, output in map(self._made, step.operands) if index is not None
        ]
        return [maker for maker, output in made if not maker.outputs[output].tensor.dtype.startswith(_SELECTING)]

    def read(self, step: Step) -> TensorRecord | None:
        """Return its first operand, where a step made it."""
        index, output = self._made(step.operands[0]) if step.operands else (None, 0)
        return self.steps[index - 1].outputs[output].tensor if index is not None else None

    def _made(self, reference: Reference) -> tuple[int | None, int]:
        """Return which step made a tensor, and which of its outputs it is."""
        while reference.step is not None:
            inner = self.steps[reference.step - 1].outputs[reference.output].inner
            if inner is None:
                break
            reference = inner
        return reference.step, reference.output

    def users(self, step: Step) -> list[Step]:
        """Return the steps that read its results."""
        return self._users.get(step.index, [])

    def is_linear(self, step: Step) -> bool:
        """Say whether it is a product with a parameter, or with a part of one, as of a fused weight."""
        if operation_name(step) not in PRODUCT:
            return False
        second = step.operands[1:2] if operation_name(step) in _BY_MATRIX else ()
        return any(reference.parameter for reference in step.operands) or any(map(self._is_weight, second))

    def _is_weight(self, reference: Reference) -> bool:
        return reference.parameter is not None or self._made(reference)[0] in self._weights
