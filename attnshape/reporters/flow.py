"""The data flow of a trace as a picture needs it: few nodes, and edges with the signatures of what flows along them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET

from attnshape.model.references import resolve
from attnshape.model.trace import Reference, Role, Step, TargetOutput, Trace, loops_by_step
from attnshape.reporters.labels import operation_name, short
from attnshape.tracing.operations import LAYOUT, base_name

_SEPARATE: frozenset[Role] = frozenset({"projection", "scores", "softmax", "context", "output"})
"""What begins a node of its own."""
_ATTENTION: frozenset[Role] = frozenset({"scores", "softmax", "context"})
_PHRASES: dict[Role, str] = {
    "split": "split heads",
    "scores": "query · key products",
    "context": "weighted sum of values",
    "merge": "merge heads",
    "output": "output projection",
}
"""What roles do, where a reader sees them without the steps."""
_MOST_OUTPUTS = 3
"""How many outputs of one kind have nodes of their own."""
_LONGEST = 32
"""How much of an expression is shown where a node has no name."""


@dataclass(frozen=True)
class FlowNode:
    """An input, an output, or steps that a picture shows as one."""

    title: str
    """The variables that hold its result, or the expression."""
    does: str
    """What its steps do, such as `projection, split heads`."""
    kind: str
    """`input`, `output`, `softmax`, `product` or `step`."""
    steps: tuple[int, ...] = ()
    """The indices of its steps."""
    times: str = ""
    """How often all of it is repeated, such as `×H`."""
    module: str = ""
    """The path of the innermost module that all its steps are in."""


@dataclass(frozen=True)
class FlowEdge:
    """A tensor that flows from one node to another, by their positions."""

    source: int
    target: int
    signature: str


@dataclass(frozen=True)
class Flow:
    """The nodes in the order in which they are computed, and the edges between them."""

    nodes: tuple[FlowNode, ...]
    edges: tuple[FlowEdge, ...]


def whole_flow(trace: Trace) -> Flow:
    """Return the data flow of a trace with all its nodes; layout, scale, mask and dropout are part of others."""
    return _Builder(trace, None).flow()


def flow_of(trace: Trace, most_nodes: int) -> Flow:
    """Return the data flow of a trace, with as much detail as so many nodes allow.

    Layout, scale, mask and dropout are part of the node whose result they change. Composites without attention are one
    node, and if there are too many nodes, so are modules, the innermost first.
    """
    deepest = max((step.module.count(".") + 1 for step in trace.steps if step.module), default=0)
    flow = _Builder(trace, None).flow()
    for depth in range(deepest, -1, -1):
        if len(flow.nodes) <= most_nodes:
            break
        flow = _Builder(trace, depth).flow()
    return flow


@dataclass
class _Group:
    """The steps of one node."""

    steps: list[Step] = field(default_factory=list)

    @property
    def roles(self) -> list[Role]:
        return list(dict.fromkeys(step.role for step in self.steps if step.role))

    @property
    def phrases(self) -> str:
        return ", ".join(_PHRASES.get(role, role) for role in self.roles)


class _Builder:
    """Groups the steps of a trace into nodes."""

    def __init__(self, trace: Trace, module_depth: int | None) -> None:
        self._trace = trace
        self._module_depth = module_depth
        self._loops = loops_by_step(trace.loops)
        self._composites = trace.composites
        self._stands_for = self._folded()
        self._inside: dict[int, list[Step]] = {}
        for step in trace.steps:
            self._inside.setdefault(self._stands_for[step.index], []).append(step)
        self._shown = [step for step in trace.steps if self._stands_for[step.index] == step.index]
        self._group_of: dict[int, _Group] = {}
        self._groups: list[_Group] = []
        self._readers = Counter(
            self._stands_for[one.step] for step in self._shown for one in self._operands(step) if one.step is not None
        )

    def flow(self) -> Flow:
        """Return the nodes and edges."""
        modules: dict[str, _Group] = {}
        for step in self._shown:
            group = self._earlier(step, modules)
            if group is None:
                group = _Group()
                self._groups.append(group)
            group.steps.append(step)
            self._group_of[step.index] = group
        return self._connected()

    def _earlier(self, step: Step, modules: dict[str, _Group]) -> _Group | None:
        """Return the group that a step belongs to; None if it begins one."""
        if self._module_depth is not None:
            path = ".".join((step.module or "").split(".")[: self._module_depth])
            if path or self._module_depth == 0:
                known = modules.get(path)
                if known is None:
                    known = modules[path] = _Group()
                    self._groups.append(known)
                return known
        if step.role in _SEPARATE or step.avoided is not UNSET:
            return None
        made = [one for one in self._operands(step) if one.step is not None or one.input is not None]
        before = {self._stands_for[one.step] for one in made if one.step is not None}
        main = max(before, default=None)
        if main is None or (len(before) > 1 and step.role is None) or self._readers[main] > 1:
            return None
        group = self._group_of[main]
        is_last = group.steps[-1].index == main and self._times(step) == self._times(group.steps[0])
        joins = step.role is not None or base_name(step.operation) in LAYOUT or len(made) == 1
        return group if is_last and joins and not _is_merge_after_context(step, group) else None

    def _folded(self) -> dict[int, int]:
        """Return the step that stands for each step: a composite without attention for all inside of it."""
        has_attention: set[int] = set()
        for step in self._trace.steps:
            parent = step.parent if step.role in _ATTENTION or step.avoided is not UNSET else None
            while parent is not None:
                has_attention.add(parent)
                parent = self._trace.step(parent).parent
        stands_for: dict[int, int] = {}
        for step in self._trace.steps:
            outer = stands_for.get(step.parent) if step.parent is not None else None
            if outer is not None and outer not in has_attention:
                stands_for[step.index] = outer
            else:
                stands_for[step.index] = step.index
        # a composite that is opened has no node of its own: its results are those of its inner steps
        for index in self._composites & has_attention:
            inner = self._trace.step(index).outputs[0].inner
            last = inner.step if inner is not None and inner.step is not None else index
            stands_for[index] = stands_for.get(last, last)
        return stands_for

    def _operands(self, step: Step) -> Sequence[Reference]:
        if step.index not in self._composites:
            return step.operands
        inside = self._inside.get(step.index, [])
        own = {one.index for one in inside}
        return [ref for one in inside for ref in one.operands if ref.step is None or ref.step not in own]

    def _connected(self) -> Flow:
        # an input that is another one again is drawn once
        given = [named for named in self._trace.inputs if named.tensor.storage.kind != "same"]
        nodes = [FlowNode(named.name or "input", "", "input") for named in given]
        places: dict[int, int] = {}
        for group in self._groups:
            for step in group.steps:
                places[step.index] = len(nodes)
            nodes.append(self._node(group))
        signatures = {named.name: named.tensor.signature for named in given}
        inputs = {named.name: place for place, named in enumerate(given)}
        edges: dict[tuple[int, int, str], None] = {}

        def connect(reference: Reference, target: int) -> None:
            if reference.input in inputs:
                edges[inputs[reference.input], target, signatures[reference.input]] = None
            elif (made := resolve(self._trace, reference)) is not None and reference.step is not None:
                source = places.get(self._stands_for[reference.step])
                if source is not None and source != target:
                    edges[source, target, made.tensor.signature] = None

        for group in self._groups:
            for step in group.steps:
                for reference in self._operands(step):
                    connect(reference, places[step.index])
        for outputs in self._outputs(places):
            first, *others = outputs
            # what a model returns of each layer is drawn as one
            title = first.name if not others else f"{first.name} … {others[-1].name}"
            nodes.append(FlowNode(title, "", "output", times=f"×{len(outputs)}" if others else ""))
            connect(first.of, len(nodes) - 1)
        return _without_idle(nodes, [FlowEdge(*edge) for edge in edges])

    def _outputs(self, places: Mapping[int, int]) -> list[list[TargetOutput]]:
        """Return the outputs, those together that are many of one kind: of one signature, from one node."""
        kinds: dict[object, list[TargetOutput]] = {}
        for returned in self._trace.outputs:
            made = resolve(self._trace, returned.of)
            # what isn't made by a step is drawn as it is
            step = returned.of.step if made is not None else None
            kind = (places.get(self._stands_for[step]), made.tensor.signature) if made and step else returned.name
            kinds.setdefault(kind, []).append(returned)
        return [
            part
            for same in kinds.values()
            for part in ([same] if len(same) > _MOST_OUTPUTS else [[one] for one in same])
        ]

    def _node(self, group: _Group) -> FlowNode:
        last = group.steps[-1]
        if self._module_depth is not None and len(group.steps) > 1:
            title = ".".join((last.module or "").split(".")[: self._module_depth]) or self._trace.target
            does = group.phrases
        else:
            results = [[out for out in step.outputs if out.name and not out.by_use] for step in group.steps]
            named = next(filter(None, reversed(results)), [])
            title = _cut(", ".join(str(out.name) for out in named) or short(last.expression))
            does = group.phrases or ", ".join(dict.fromkeys(map(operation_name, group.steps)))
        fused = any(step.avoided is not UNSET for step in group.steps)
        does = does.replace(_PHRASES["context"], "fused attention") if fused else does
        roles = set(group.roles)
        kind = "softmax" if "softmax" in roles or fused else "product" if roles & {"scores", "context"} else "step"
        every = {self._times(step) for step in group.steps}
        times = every.pop() if len(every) == 1 else ""
        module = _common_module([step.module or "" for step in group.steps])
        return FlowNode(title, does, kind, tuple(step.index for step in group.steps), times, module)

    def _times(self, step: Step) -> str:
        """Return how often a step is repeated, such as `×H`; empty if it isn't."""
        return " ".join(f"×{loop.expression}" for loop in self._loops.get(step.index, ()))


def _common_module(paths: Sequence[str]) -> str:
    """Return the innermost module that contains all of some.

    >>> _common_module(["layers.0.attn.q", "layers.0.attn"])
    'layers.0.attn'
    """
    parts = [path.split(".") for path in paths]
    return ".".join(
        names[0] for names in itertools.takewhile(lambda names: len({*names}) == 1, zip(*parts, strict=False))
    )


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _is_merge_after_context(step: Step, group: _Group) -> bool:
    """Return whether a step begins to merge heads, which is drawn apart from the context."""
    return step.role == "merge" and "context" in group.roles


def _without_idle(nodes: Sequence[FlowNode], edges: Iterable[FlowEdge]) -> Flow:
    """Return the flow without nodes from which no path leads to an output, if any leads to one."""
    every = list(edges)
    outputs = {place for place, node in enumerate(nodes) if node.kind == "output"}
    before: dict[int, set[int]] = {}
    for edge in every:
        before.setdefault(edge.target, set()).add(edge.source)
    needed, waiting = set(outputs), list(outputs)
    while waiting:
        for source in before.get(waiting.pop(), ()):
            if source not in needed:
                needed.add(source)
                waiting.append(source)
    kept = [place for place, node in enumerate(nodes) if place in needed or not outputs or node.kind == "input"]
    order: Mapping[int, int] = {place: number for number, place in enumerate(kept)}
    return Flow(
        tuple(nodes[place] for place in kept),
        tuple(
            FlowEdge(order[edge.source], order[edge.target], edge.signature)
            for edge in every
            if edge.source in order and edge.target in order
        ),
    )
