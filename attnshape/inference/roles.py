"""What each step is for, from the data flow alone; absent where it is unclear.

The softmax is the anchor: the product that it reads makes the scores, the product that reads it makes the context.
Names are never looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from attnshape.inference.flow import Flow
from attnshape.inference.kinds import (
    DROPOUT,
    FUSED,
    JOIN,
    MASK,
    NONLINEAR,
    NORM,
    PARTS,
    PRODUCT,
    RESHAPE,
    SAME_MEANING,
    SCALE,
    SPLIT,
    TRANSPOSE,
    operation_name,
)
from attnshape.inference.softmaxes import is_softmax
from attnshape.model import Step


def with_roles(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps with their roles."""
    flow = Flow(steps)
    for step in flow.single:
        if is_softmax(step, flow.activations):
            _around_softmax(flow, step)
        elif operation_name(step) in FUSED:
            flow.assign(step, "context")
            for operand in flow.activations(step)[:3]:
                _before_product(flow, operand)
            _after_context(flow, step)
    return tuple(msgspec.structs.replace(step, role=flow.roles.get(step.index)) for step in steps)


def _rank(step: Step) -> int:
    return len(step.outputs[0].tensor.shape)


def _tensors(step: Step) -> int:
    """Return how many operands are no parameters and no constants."""
    return sum(reference.step is not None or reference.input is not None for reference in step.operands)


def _is_by_number(step: Step) -> bool:
    """Whether it multiplies by a number: a parameter is the weight of a normalisation."""
    return _tensors(step) == 1 and not any(reference.parameter for reference in step.operands)


def _around_softmax(flow: Flow, softmax: Step) -> None:
    scores = _scores_behind(flow, softmax, 0)
    context = _context_before(flow, softmax)
    if scores is None or context is None:
        return
    flow.assign(softmax, "softmax")
    way = list(_between(flow, scores, softmax))
    bent = any(operation_name(step) in NONLINEAR for step in way)
    for step in way:
        if operation_name(step) in MASK:
            flow.assign(step, "mask")
        elif operation_name(step) in SCALE and _tensors(step) == 1 and not bent:
            flow.assign(step, "scale")
        elif operation_name(step) in DROPOUT:
            flow.assign(step, "dropout")
    for step in _between(flow, softmax, context):
        if operation_name(step) in DROPOUT:
            flow.assign(step, "dropout")
    flow.assign(scores, "scores")
    flow.assign(context, "context")
    for operand in flow.activations(scores):
        _before_product(flow, operand)
    for operand in flow.activations(context):
        if not _reaches(flow, softmax, operand):
            _before_product(flow, operand)
    _after_context(flow, context)


def _scores_behind(flow: Flow, step: Step, depth: int) -> Step | None:
    """Return the nearest product that the step's values come from, elementwise steps and layout between."""
    for operand in flow.activations(step):
        if operation_name(operand) in PRODUCT and not _mixes_heads(flow, operand):
            return operand if _compares(flow, operand) else None
        if depth < 24 and not is_softmax(operand, flow.activations):
            found = _scores_behind(flow, operand, depth + 1)
            if found is not None:
                return found
    return None


def _mixes_heads(flow: Flow, product: Step) -> bool:
    """Whether a product with a parameter leaves queries and keys alone, as talking heads (arXiv:2003.02436) do."""
    if not flow.is_linear(product) and not (operation_name(product) == "conv2d" and _tensors(product) == 1):
        return False
    pair = {axis.expression for axis in product.outputs[0].tensor.axes[-2:]}
    read = [operand.outputs[0].tensor.axes for operand in flow.activations(product)]
    return _rank(product) > 3 and any(len(axes) > 3 and {a.expression for a in axes[-2:]} == pair for axes in read)


def _compares(flow: Flow, product: Step) -> bool:
    """Whether a product makes scores: of two tensors that are no parameters, or, as additive attention does, of a
    parameter and a nonlinear function of a sum of two.
    """
    if not flow.is_linear(product):
        return _tensors(product) > 1
    hidden = [nonlinear for nonlinear in flow.activations(product) if operation_name(nonlinear) in NONLINEAR]
    sums = [addition for nonlinear in hidden for addition in flow.activations(nonlinear)]
    return any(operation_name(addition) in {"add", "add_"} and _tensors(addition) > 1 for addition in sums)


def _context_before(flow: Flow, step: Step) -> Step | None:
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
            if flow.is_linear(user):  # a gate before a projection, not weights of anything
                continue
            if operation in PRODUCT and len(user.operands) > 1:
                return user
            if operation in DROPOUT | MASK | SAME_MEANING | SCALE | NORM:
                waiting.append(user)
    return None


def _between(flow: Flow, first: Step, last: Step) -> Iterator[Step]:
    """Yield the steps on the way from the first to the last, both left out."""
    for index in range(first.index + 1, last.index):
        step = flow.steps[index - 1]
        if _reaches(flow, first, step) and _reaches(flow, step, last):
            yield step


def _reaches(flow: Flow, first: Step, last: Step) -> bool:
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


def _before_product(flow: Flow, product_operand: Step) -> None:
    """Give roles from a product's operand back to the projection that it comes from.

    Behind arithmetic, such as a rotation of queries, what takes tensors apart or scales them may serve that arithmetic;
    it has a role only where it was reached by layout alone, or lies behind the split into heads.
    """
    waiting = [(product_operand, True)]
    seen = {product_operand.index}
    while waiting:
        current, certain = waiting.pop()
        operation = operation_name(current)
        if flow.is_linear(current):
            flow.assign(current, "projection")
            continue
        if operation in PRODUCT | FUSED or is_softmax(current, flow.activations):
            continue
        if operation in TRANSPOSE:
            flow.assign(current, "transpose")
        elif operation in RESHAPE and _deepens(flow, current):
            flow.assign(current, "split")
            certain = True
        elif operation in SPLIT and certain:
            flow.assign(current, "split")
        elif operation in SCALE and _is_by_number(current) and certain:
            flow.assign(current, "scale")
        else:
            certain = certain and operation in SAME_MEANING
        for operand in flow.activations(current):
            if operand.index not in seen:
                seen.add(operand.index)
                waiting.append((operand, certain))


def _deepens(flow: Flow, step: Step) -> bool:
    """Whether an axis is split: the result has more axes than what it is a view of."""
    source = flow.read(step)
    return source is not None and _rank(step) > len(source.shape)


def _after_context(flow: Flow, context: Step) -> None:
    """Give roles from the context on to the output projection, as long as only layout lies between."""
    current, copies = context, list[Step]()
    while True:
        follows = (
            u
            for u in flow.users(current)
            if flow.is_linear(u) or operation_name(u) in SAME_MEANING - PARTS | JOIN | DROPOUT
        )
        following = next(follows, None)
        if following is None or following.index in flow.roles:
            return
        operation = operation_name(following)
        if flow.is_linear(following):
            flow.assign(following, "output")
            return
        if operation in TRANSPOSE:
            flow.assign(following, "transpose")
        elif operation == "contiguous":
            copies.append(following)
        elif operation in JOIN or (operation in RESHAPE and _joins_heads(current, following)):
            # a copy is part of the merge that it makes possible
            for step in (*copies, following):
                flow.assign(step, "merge")
        current = following


def _joins_heads(before: Step, after: Step) -> bool:
    """Whether a reshape has fewer axes and a longer last one."""
    old, new = before.outputs[0].tensor.shape, after.outputs[0].tensor.shape
    return len(new) < len(old) and new[-1:] > old[-1:]
