"""What each step is for, from the data flow alone; absent where it is unclear.

The softmax is the anchor: the product from which its scores come makes the scores, the product that reads its weights
makes the context. Names play no part.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence

import msgspec

from attnshape.inference.dataflow import DataFlow, OutputRef, StepNode, innermost, match_softmax, step_graph
from attnshape.model.trace import Reference, Role, Step
from attnshape.tracing import operations as ops

_FARTHEST = 24
"""How many steps may lie between a softmax and the product that makes its scores."""
_REARRANGES_WEIGHTS = (
    ops.SPLITS | ops.TRANSPOSES | ops.CONCATENATIONS | ops.CASTS | ops.COPIES | ops.SELECTIONS | ops.RESHAPES
)
_KEEPS_WEIGHTS = ops.DROPOUTS | ops.MASKS | ops.SAME_VALUES | ops.SCALINGS | ops.NORMS
"""What may lie between the softmax and the product with the values."""
_AFTER_CONTEXT = ops.SAME_VALUES - ops.SELECTIONS | ops.CONCATENATIONS | ops.DROPOUTS


def with_roles(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps with their roles."""
    assigned = _Roles(steps).assigned
    return tuple(msgspec.structs.replace(step, role=assigned.get(step.index)) for step in steps)


class _Roles:
    """The roles of one trace's steps; a step that has a role keeps it."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.assigned: dict[int, Role] = {}
        self.graph: DataFlow[StepNode] = step_graph(steps)
        self._steps = steps
        self._weights: set[int] = set()
        """The steps that only cut, join or rearrange parameters."""
        for node in self.graph.nodes:
            operands = node.step.operands
            if node.name in _REARRANGES_WEIGHTS and operands and all(map(self._is_weight, operands)):
                self._weights.add(node.order)
        self._softmaxes = {
            node.order
            for node in self.graph.nodes
            if (match := match_softmax(node, self.graph)) and not match.deferred and node.name not in ops.LOG_SOFTMAXES
        }
        """The steps that return the weights of a softmax."""
        for node in self.graph.nodes:
            if node.order in self._softmaxes:
                self._assign_around_softmax(node)
            elif node.name in ops.FUSED_ATTENTION:
                self._assign(node, "context")
                for input_node in self.graph.input_nodes(node)[:3]:
                    self._assign_before_product(input_node)
                self._assign_after_context(node)

    def _assign_around_softmax(self, softmax: StepNode) -> None:
        """Give roles to a softmax, to what leads to its scores, and to what reads its weights."""
        scores = self._scores(softmax, 0, {})
        context = self._context(softmax)
        if scores is None or context is None:
            return
        self._assign(softmax, "softmax")
        between = list(self._between(scores, softmax))
        nonlinear = any(node.name in ops.NONLINEARITIES for node in between)
        for node in between:
            if node.name in ops.MASKS:
                self._assign(node, "mask")
            elif node.name in ops.SCALINGS and _tensors(node) == 1 and not nonlinear:
                self._assign(node, "scale")
        for node in (*between, *self._between(softmax, context)):
            if node.name in ops.DROPOUTS:
                self._assign(node, "dropout")
        products = [scores, *self._added_products(scores, between)]
        for product in products:
            self._assign(product, "scores")
        self._assign(context, "context")
        values = [node for node in self.graph.input_nodes(context) if not self._reaches(softmax, node)]
        for input_node in (*(node for product in products for node in self.graph.input_nodes(product)), *values):
            self._assign_before_product(input_node)
        self._assign_after_context(context)

    def _assign(self, node: StepNode, role: Role) -> None:
        self.assigned.setdefault(node.order, role)

    def _scores(self, node: StepNode, depth: int, searched: dict[int, int]) -> StepNode | None:
        """Return the nearest product that a step's values come from, with pointwise steps and layout between.

        `searched` has the least depth at which each step was searched in vain: `x + x` leads to the same steps twice.
        """
        for input_node in self.graph.input_nodes(node):
            if input_node.name in ops.PRODUCTS and not self._mixes_heads(input_node):
                return input_node if self._compares(input_node) else None
            nearer = depth < searched.get(input_node.order, _FARTHEST)
            if not nearer or input_node.order in self._softmaxes:
                continue
            if (scores := self._scores(input_node, depth + 1, searched)) is not None:
                return scores
            searched[input_node.order] = depth
        return None

    def _added_products(self, scores: StepNode, between: Sequence[StepNode]) -> Iterator[StepNode]:
        """Yield further products of the same axes that are added to the scores, as where heads have two parts."""
        axes = scores.step.outputs[0].tensor.axes
        for addition in between:
            for node in self.graph.input_nodes(addition) if addition.name in ops.ADDITIONS else ():
                is_product = node.name in ops.PRODUCTS and not self._is_linear(node) and self._compares(node)
                if is_product and node is not scores and node.step.outputs[0].tensor.axes == axes:
                    yield node

    def _context(self, softmax: StepNode) -> StepNode | None:
        """Return the product with the values, with nothing but dropout, masks, layout and scaling before it."""
        waiting = [softmax]
        visited: set[int] = set()
        while waiting:
            for reader in self.graph.readers(waiting.pop(0)):
                is_sum = reader.name in ops.ADDITIONS | ops.SUBTRACTIONS
                # weights are combined where all that is summed was visited
                if reader.order in visited or (is_sum and not self._sums_only(reader, visited | {softmax.order})):
                    continue
                visited.add(reader.order)
                mixes = self._mixes_heads(reader)
                if not mixes and self._is_linear(reader):  # a gate before a projection, not weights of anything
                    continue
                if not mixes and reader.name in ops.PRODUCTS and len(reader.step.operands) > 1:
                    return reader
                if mixes or is_sum or reader.name in _KEEPS_WEIGHTS:
                    waiting.append(reader)
        return None

    def _sums_only(self, node: StepNode, of_weights: set[int]) -> bool:
        """Return whether a step adds or subtracts two of these steps' results, as differential attention does."""
        read = [innermost(self._steps, operand).step for operand in node.step.operands]
        return len(read) > 1 and all(step in of_weights for step in read)

    def _between(self, first: StepNode, last: StepNode) -> Iterator[StepNode]:
        """Yield the steps on the way from the first to the last, both left out."""
        nodes = self.graph.nodes
        start = bisect.bisect_right(nodes, first.order, key=lambda node: node.order)
        for node in nodes[start : bisect.bisect_left(nodes, last.order, key=lambda node: node.order)]:
            if self._reaches(first, node) and self._reaches(node, last):
                yield node

    def _reaches(self, first: StepNode, last: StepNode) -> bool:
        """Return whether the last step's values come from the first's, or both are one step."""
        upstream = (node.order for node in self.graph.upstream((OutputRef(last.order),), shapes=True))
        return next((order for order in upstream if order <= first.order), None) == first.order

    def _assign_before_product(self, operand: StepNode) -> None:
        """Give roles from a product's operand back to the projection from which it comes.

        Behind arithmetic, such as a rotation of queries, what takes tensors apart or scales them may serve that
        arithmetic. It gets a role only if nothing but layout lies between, or if it lies behind the split into
        heads.
        """
        waiting = [(operand, True)]
        visited = {operand.order}
        while waiting:
            node, certain = waiting.pop()
            if self._is_linear(node):
                self._assign(node, "projection")
                continue
            if node.name in ops.PRODUCTS | ops.FUSED_ATTENTION or node.order in self._softmaxes:
                continue
            if node.name in ops.TRANSPOSES:
                self._assign(node, "transpose")
            elif node.name in ops.RESHAPES and self._adds_an_axis(node):
                self._assign(node, "split")
                certain = True
            elif node.name in ops.SPLITS and certain:
                self._assign(node, "split")
            elif node.name in ops.SCALINGS and _tensors(node) == 1 and not _has_parameter(node) and certain:
                self._assign(node, "scale")
            else:
                certain = certain and node.name in ops.SAME_VALUES
            for input_node in self.graph.input_nodes(node):
                if input_node.order not in visited:
                    visited.add(input_node.order)
                    waiting.append((input_node, certain))

    def _assign_after_context(self, context: StepNode) -> None:
        """Give roles from the context on to the output projection, as long as only layout lies between."""
        node, copies = context, list[StepNode]()
        while True:
            readers = self.graph.readers(node)
            reader = next((r for r in readers if self._is_linear(r) or r.name in _AFTER_CONTEXT), None)
            if reader is None or reader.order in self.assigned:
                return
            if self._is_linear(reader):
                self._assign(reader, "projection" if _keeps_heads(node, reader) else "output")
                if not _keeps_heads(node, reader):
                    return
            if reader.name in ops.TRANSPOSES:
                self._assign(reader, "transpose")
            elif reader.name == "contiguous":
                copies.append(reader)
            elif reader.name in ops.JOINS or (reader.name in ops.RESHAPES and _joins_heads(node, reader)):
                # a copy is part of the merge that it makes possible
                for part in (*copies, reader):
                    self._assign(part, "merge")
            node = reader

    def _mixes_heads(self, product: StepNode) -> bool:
        """Return whether a product with a parameter leaves queries and keys alone: talking heads (arXiv:2003.02436)."""
        convolution = product.name in ops.CONVOLUTIONS and _tensors(product) == 1
        if not self._is_linear(product) and not convolution:
            return False
        pair = {axis.expression for axis in product.step.outputs[0].tensor.axes[-2:]}
        read = [input_node.step.outputs[0].tensor.axes for input_node in self.graph.input_nodes(product)]
        return _rank(product) > 3 and any(len(axes) > 3 and {a.expression for a in axes[-2:]} == pair for axes in read)

    def _compares(self, product: StepNode) -> bool:
        """Return whether a product makes scores.

        It multiplies two tensors that aren't parameters, or, in additive attention, a parameter and a nonlinear
        function of a sum of two.
        """
        if not self._is_linear(product):
            return _tensors(product) > 1
        nonlinear = [node for node in self.graph.input_nodes(product) if node.name in ops.NONLINEARITIES]
        sums = [addition for node in nonlinear for addition in self.graph.input_nodes(node)]
        return any(addition.name in ops.ADDITIONS and _tensors(addition) > 1 for addition in sums)

    def _is_linear(self, node: StepNode) -> bool:
        """Return whether a step is a product with a parameter, or with a part of one, such as a fused weight."""
        if node.name not in ops.PRODUCTS:
            return False
        second = node.step.operands[1:2] if node.name in ops.WEIGHT_IS_SECOND else ()
        return _has_parameter(node) or any(map(self._is_weight, second))

    def _is_weight(self, reference: Reference) -> bool:
        return reference.parameter is not None or innermost(self._steps, reference).step in self._weights

    def _adds_an_axis(self, node: StepNode) -> bool:
        """Return whether a reshape splits an axis: its result has more axes than what it is a view of."""
        read = innermost(self._steps, node.step.operands[0]) if node.step.operands else None
        if read is None or not read.step:
            return False
        return _rank(node) > len(self._steps[read.step - 1].outputs[read.output].tensor.shape)


def _rank(node: StepNode) -> int:
    return len(node.step.outputs[0].tensor.shape)


def _tensors(node: StepNode) -> int:
    """Return how many operands are neither parameters nor constants."""
    return sum(reference.step is not None or reference.input is not None for reference in node.step.operands)


def _has_parameter(node: StepNode) -> bool:
    return any(reference.parameter for reference in node.step.operands)


def _keeps_heads(before: StepNode, product: StepNode) -> bool:
    """Return whether a product with a parameter leaves all axes but the last of vectors of several heads alone."""
    old, new = before.step.outputs[0].tensor.axes, product.step.outputs[0].tensor.axes
    return product.name != "linear" and len(new) > 3 and old[:-1] == new[:-1]


def _joins_heads(before: StepNode, after: StepNode) -> bool:
    """Return whether a reshape has fewer axes and a longer last one."""
    old, new = before.step.outputs[0].tensor.shape, after.step.outputs[0].tensor.shape
    return len(new) < len(old) and new[-1:] > old[-1:]
