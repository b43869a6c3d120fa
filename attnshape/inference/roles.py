"""What each step is for, from the data flow alone; absent where it is unclear.

The softmax is the anchor: the product that it reads makes the scores, the product that reads it makes the context.
Names are never looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from attnshape.inference.softmaxes import is_softmax, operation_name
from attnshape.model import Reference, Role, Step, TensorRecord

_FUSED = {"scaled_dot_product_attention"}
_PRODUCT = {"matmul", "bmm", "einsum", "baddbmm", "mm", "mv", "addmm", "tensordot", "inner", "linear"}
_SCALE = {"mul", "mul_", "div", "div_", "true_divide", "multiply", "divide"}
_MASK = {"masked_fill", "masked_fill_", "where"}
_NORM = {"layer_norm"}
_NONLINEAR = {"tanh", "relu", "gelu", "sigmoid", "leaky_relu", "elu", "silu", "softplus"}
_DROPOUT = {"dropout", "dropout_"}
_TRANSPOSE = {"transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis", "T", "mT", "t", "H", "mH"}
_SPLIT = {"chunk", "split", "unbind", "tensor_split", "split_with_sizes"}
_RESHAPE = {"view", "reshape", "unflatten", "flatten", "view_as", "reshape_as"}
_JOIN = {"cat", "concat", "concatenate"}
_CAST = {"to", "float", "half", "bfloat16", "double", "type", "type_as", "detach", "clone"}
_PARTS = {"__getitem__", "narrow", "select", "index_select"}
_LAYOUT = {
    *_RESHAPE,
    *_TRANSPOSE,
    *_SPLIT,
    *("unsqueeze", "squeeze", "expand", "expand_as", "broadcast_to", "contiguous"),
    *("repeat", "repeat_interleave"),
    *_PARTS,
}
_SAME_MEANING = _LAYOUT | _CAST
_SELECTING = ("int", "uint", "bool")


def with_roles(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps with their roles."""
    flow = _Flow(steps)
    for step in flow.single:
        if is_softmax(step, flow.activations):
            _around_softmax(flow, step)
        elif operation_name(step) in _FUSED:
            flow.assign(step, "context")
            for operand in flow.activations(step)[:3]:
                _before_product(flow, operand)
            _after_context(flow, step)
    return tuple(msgspec.structs.replace(step, role=flow.roles.get(step.index)) for step in steps)


class _Flow:
    """Who makes what and who uses it; a composite's results are those of its inner steps."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.roles: dict[int, Role] = {}
        composites = {step.parent for step in steps}
        self.single = [step for step in steps if step.index not in composites]
        self._users: dict[int, list[Step]] = {}
        for step in self.single:
            for maker in dict.fromkeys(maker.index for maker in self.activations(step)):
                self._users.setdefault(maker, []).append(step)

    def assign(self, step: Step, role: Role) -> None:
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
        return self._users.get(step.index, [])


def _is_linear(step: Step) -> bool:
    """Whether it is a product with a parameter."""
    return operation_name(step) in _PRODUCT and any(reference.parameter for reference in step.operands)


def _rank(step: Step) -> int:
    return len(step.outputs[0].tensor.shape)


def _tensors(step: Step) -> int:
    """Return how many operands are no parameters and no constants."""
    return sum(reference.step is not None or reference.input is not None for reference in step.operands)


def _around_softmax(flow: _Flow, softmax: Step) -> None:
    scores = _scores_behind(flow, softmax, 0)
    context = _context_before(flow, softmax)
    if scores is None or context is None:
        return
    flow.assign(softmax, "softmax")
    way = list(_between(flow, scores, softmax))
    bent = any(operation_name(step) in _NONLINEAR for step in way)
    for step in way:
        if operation_name(step) in _MASK:
            flow.assign(step, "mask")
        elif operation_name(step) in _SCALE and _tensors(step) == 1 and not bent:
            flow.assign(step, "scale")
        elif operation_name(step) in _DROPOUT:
            flow.assign(step, "dropout")
    for step in _between(flow, softmax, context):
        if operation_name(step) in _DROPOUT:
            flow.assign(step, "dropout")
    flow.assign(scores, "scores")
    flow.assign(context, "context")
    for operand in flow.activations(scores):
        _before_product(flow, operand)
    for operand in flow.activations(context):
        if not _reaches(flow, softmax, operand):
            _before_product(flow, operand)
    _after_context(flow, context)


def _scores_behind(flow: _Flow, step: Step, depth: int) -> Step | None:
    """Return the nearest product that the step's values come from, elementwise steps and layout between."""
    for operand in flow.activations(step):
        if operation_name(operand) in _PRODUCT and not _mixes_heads(flow, operand):
            return operand if _compares(flow, operand) else None
        if depth < 24 and not is_softmax(operand, flow.activations):
            found = _scores_behind(flow, operand, depth + 1)
            if found is not None:
                return found
    return None


def _mixes_heads(flow: _Flow, product: Step) -> bool:
    """Whether a product with a parameter leaves queries and keys alone, as talking heads (arXiv:2003.02436) do."""
    if not _is_linear(product) and not (operation_name(product) == "conv2d" and _tensors(product) == 1):
        return False
    pair = {axis.expression for axis in product.outputs[0].tensor.axes[-2:]}
    read = [operand.outputs[0].tensor.axes for operand in flow.activations(product)]
    return _rank(product) > 3 and any(len(axes) > 3 and {a.expression for a in axes[-2:]} == pair for axes in read)


def _compares(flow: _Flow, product: Step) -> bool:
    """Whether a product makes scores: of two tensors that are no parameters, or, as additive attention does, of a
    parameter and a nonlinear function of a sum of two.
    """
    if not _is_linear(product):
        return _tensors(product) > 1
    hidden = [nonlinear for nonlinear in flow.activations(product) if operation_name(nonlinear) in _NONLINEAR]
    sums = [addition for nonlinear in hidden for addition in flow.activations(nonlinear)]
    return any(operation_name(addition) in {"add", "add_"} and _tensors(addition) > 1 for addition in sums)


def _context_before(flow: _Flow, step: Step) -> Step | None:
    """Return the product that the weights go into, with nothing but dropout, masks, layout and scaling between."""
    waiting = [step]
    seen: set[int] = set()
    while waiting:
        current = waiting.pop(0)
        for user in flow.users(current):
            if user.index in seen:
                continue
            seen.add(user.index)
            operation = operation_name(user)
            if _mixes_heads(flow, user):
                waiting.append(user)
                continue
            if _is_linear(user):  # a gate before a projection, not weights of anything
                continue
            if operation in _PRODUCT and len(user.operands) > 1:
                return user
            if operation in _DROPOUT | _MASK | _SAME_MEANING | _SCALE | _NORM:
                waiting.append(user)
    return None


def _between(flow: _Flow, first: Step, last: Step) -> Iterator[Step]:
    """Yield the steps on the way from the first to the last, both left out."""
    for index in range(first.index + 1, last.index):
        step = flow.steps[index - 1]
        if _reaches(flow, first, step) and _reaches(flow, step, last):
            yield step


def _reaches(flow: _Flow, first: Step, last: Step) -> bool:
    """Whether the last step's value comes from the first's."""
    waiting, seen = [last], {last.index}
    while waiting:
        step = waiting.pop()
        if step.index == first.index:
            return True
        for operand in flow.activations(step):
            if operand.index not in seen and operand.index >= first.index:
                seen.add(operand.index)
                waiting.append(operand)
    return False


def _before_product(flow: _Flow, product_operand: Step) -> None:
    """Give roles from a product's operand back to the projection that it comes from.

    Behind arithmetic, such as a rotation of queries, what takes tensors apart or scales them may serve that arithmetic;
    it has a role only where it was reached by layout alone, or lies behind the split into heads.
    """
    waiting = [(product_operand, True)]
    seen = {product_operand.index}
    while waiting:
        current, certain = waiting.pop()
        operation = operation_name(current)
        if _is_linear(current):
            flow.assign(current, "projection")
            continue
        if operation in _PRODUCT | _FUSED or is_softmax(current, flow.activations):
            continue
        if operation in _TRANSPOSE:
            flow.assign(current, "transpose")
        elif operation in _RESHAPE and _deepens(flow, current):
            flow.assign(current, "split")
            certain = True
        elif operation in _SPLIT and certain:
            flow.assign(current, "split")
        elif operation in _SCALE and _tensors(current) == 1 and certain:
            flow.assign(current, "scale")
        else:
            certain = certain and operation in _SAME_MEANING
        for operand in flow.activations(current):
            if operand.index not in seen:
                seen.add(operand.index)
                waiting.append((operand, certain))


def _deepens(flow: _Flow, step: Step) -> bool:
    """Whether an axis is split: the result has more axes than what it is a view of."""
    source = flow.read(step)
    return source is not None and _rank(step) > len(source.shape)


def _after_context(flow: _Flow, context: Step) -> None:
    """Give roles from the context on to the output projection, as long as only layout lies between."""
    current, copies = context, list[Step]()
    while True:
        follows = (
            u
            for u in flow.users(current)
            if _is_linear(u) or operation_name(u) in _SAME_MEANING - _PARTS | _JOIN | _DROPOUT
        )
        following = next(follows, None)
        if following is None or following.index in flow.roles:
            return
        operation = operation_name(following)
        if _is_linear(following):
            flow.assign(following, "output")
            return
        if operation in _TRANSPOSE:
            flow.assign(following, "transpose")
        elif operation == "contiguous":
            copies.append(following)
        elif operation in _JOIN or (operation in _RESHAPE and _joins_heads(current, following)):
            # a copy is part of the merge that it makes possible
            for step in (*copies, following):
                flow.assign(step, "merge")
        current = following


def _joins_heads(before: Step, after: Step) -> bool:
    """Whether a reshape has fewer axes and a longer last one."""
    old, new = before.outputs[0].tensor.shape, after.outputs[0].tensor.shape
    return len(new) < len(old) and new[-1:] > old[-1:]
