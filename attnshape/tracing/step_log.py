"""The steps of a run, recorded call by call: where each is in the source, and how its results are named."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch import Tensor

from attnshape.model.trace import Reference
from attnshape.tracing.arguments import plain_arguments
from attnshape.tracing.caller_names import CallerNames
from attnshape.tracing.calls import OnStep, TracedCall, library_call_name
from attnshape.tracing.failures import min_and_max, only_wraps, parameter_names, without_tensors
from attnshape.tracing.frames import Frames, Site
from attnshape.tracing.opaque import IN_OTHER_THREAD, OtherThreads
from attnshape.tracing.raw import Composite, RawFailure, RawOperand, RawOutput, RawStep, SourceLocation
from attnshape.tracing.source_locations import (
    FramePosition,
    SourceLocator,
    by_tensor,
    calls_itself,
    is_node_of,
    operand_variables,
)
from attnshape.tracing.storage import OperandState, TensorRegistry, describe_tensor
from attnshape.tracing.tensor_access import is_mapped


@dataclass(slots=True)
class PendingStep:
    """A composite's first inner step, whose source location is looked up only if a second step follows.

    Most composites return what their only inner step returns, and the source of torch's functions takes a while to
    parse. The tensors are held until the next call at most.
    """

    position: int
    frame: FramePosition
    call: TracedCall
    result: object = None
    written: Tensor | None = None
    finished: bool = True
    """Whether its result is known; a composite's is known only at its end."""


@dataclass(slots=True)
class Scope:
    """A running composite."""

    position: int
    barrier: int
    """The id of the frame that runs its body, which is alive as long as the composite runs."""
    call: TracedCall
    before: list[OperandState]
    own: bool
    """Whether the traced code itself called it."""
    node: ast.AST | None
    """The node of the composite's call, if it was looked up and is certain."""


class CompositeMark:
    """Marks a running frame as that of one composite, by its position among the steps.

    It is set as the frame's trace function, the one attribute of a frame that can be set. It lives as long as the call,
    and only a debugger calls it.
    """

    def __init__(self, position: int) -> None:
        self.position = position

    def __call__(self, _frame: FrameType, _event: str, _argument: Any) -> None:
        """Do nothing."""


class OutputNames:
    """Names the outputs of a run's steps. The first name of an output wins."""

    def __init__(self, steps: list[RawStep], registry: TensorRegistry) -> None:
        self._steps = steps
        self._registry = registry
        self._iterations: dict[SourceLocation, int] = {}

    def bound(self, place: SourceLocation) -> Sequence[str | None]:
        """Return the names to which a location binds this iteration's value: one, or one for each unpacked element."""
        if not place.targets_per_iteration:
            return place.targets
        iteration = self._iterations[place] = self._iterations.get(place, -1) + 1
        return (place.targets_per_iteration[iteration % len(place.targets_per_iteration)],)

    def assign(self, place: SourceLocation, result: object) -> None:
        """Give the tensors in a result the names to which their location binds them."""
        names = self.bound(place)
        values = [result] if not place.unpacked else result if isinstance(result, (tuple, list)) else []
        if len(names) == len(values):
            for name, value in zip(names, values, strict=True):
                if name is not None and isinstance(value, Tensor):
                    self.give(value, name)

    def give(self, tensor: Tensor, name: str) -> None:
        """Name the step output that a tensor is."""
        output = self._output(self._registry.reference(tensor))
        if output is not None and output.name is None:
            output.name = name

    def give_by_use(self, tensor: Tensor, name: str, since: int) -> None:
        """Name a step output by the variable under which a later call reads it.

        Steps that return their operand are skipped: the name goes to the step that made the tensor. Only outputs of
        steps after the position `since` are named, since a library's variable is no name for what it was given.
        """
        reference: Reference | None = self._registry.reference(tensor)
        while reference is not None and reference.step is not None and reference.step - 1 > since:
            step = self._steps[reference.step - 1]
            if reference.output >= len(step.outputs):  # a running composite
                return
            output = step.outputs[reference.output]
            if output.tensor.kind not in ("same", "inplace"):
                if step.library and since < 0:
                    output.outside_name = output.outside_name or name
                elif output.name is None:
                    output.name, output.named_by_use = name, True
                return
            reference = output.tensor.of

    def give_from_caller(self, tensor: Tensor, name: str, since: int) -> bool:
        """Give a tensor, if a step after the number `since` made it, the name of the caller's variable for it."""
        reference = self._registry.reference(tensor)
        output = self._output(reference)
        if output is None or reference.step is None or reference.step <= since:
            return False
        if output.name != name:
            output.local_name, output.name, output.named_by_use = output.name, name, True
        return True

    def known(self, tensor: Tensor) -> str | None:
        """Return the name of the input, parameter or step output that a tensor is."""
        reference = self._registry.reference(tensor)
        output = self._output(reference)
        return output.name if output is not None else reference.input or reference.parameter

    def _output(self, reference: Reference) -> RawOutput | None:
        if reference.step is None:
            return None
        outputs = self._steps[reference.step - 1].outputs
        # a running composite has no outputs yet
        return outputs[reference.output] if reference.output < len(outputs) else None


class StepLog:
    """Records the steps of one run."""

    def __init__(
        self, frames: Frames, stop: FrameType | None, threads: OtherThreads, on_step: OnStep | None = None
    ) -> None:
        """`on_step` is called after each step that is not a composite."""
        self._on_step = on_step
        self._threads = threads
        self.steps: list[RawStep] = []
        self.failure: RawFailure | None = None
        self.registry = TensorRegistry()
        self._frames = frames
        self._stop = stop
        self._running: list[Scope] = []
        """The running composites, innermost last."""
        self._locator = SourceLocator()
        self._names = OutputNames(self.steps, self.registry)
        self._pending: list[PendingStep] = []
        self._callers = CallerNames(frames, stop, self._locator, self._names.give_from_caller)

    @property
    def has_pending(self) -> bool:
        """Whether the location of some step has not been looked up yet."""
        return bool(self._pending)

    def prepare(self, frame: FrameType) -> None:
        """Release the tensors of pending steps before a call, unless the call is the first of another composite."""
        site = self._site(frame)
        if not self._is_first(site, self._parent(site)):
            self._resolve_pending()

    def add(
        self,
        call: TracedCall,
        number: int,
        frame: FrameType,
        outputs: list[Tensor],
        written: Tensor | None,
        result: object,
    ) -> None:
        """Add the step of a call that returned or changed tensors; `number` is the call's."""
        site = self._site(frame)
        step, waits = self._step(call, site)
        index = len(self.steps) + 1
        node = self._look_up(step, site.nearest, call) if site is not None and not waits else None
        for place, output in enumerate(outputs):
            reference = Reference(step=index, output=place)
            step.outputs.append(RawOutput(self.registry.register_output(output, reference, call.operands, written)))
        step.mapped = any(map(is_mapped, outputs))
        self.steps.append(step)
        if waits and site is not None:
            self._pending.append(PendingStep(index - 1, FramePosition.of(site.nearest), call, result, written))
        elif node is not None:
            self._bind(step, node, call, result, written)
        step.order = number
        if self._on_step is not None:
            self._on_step(outputs)

    def add_from_other_threads(self, operands: list[Tensor], parent: int | None) -> None:
        """Add an opaque step for each operand that another thread made."""
        if not self._threads.created_any:
            return
        for operand in operands:
            if self._threads.created(operand) and not self.registry.is_known(operand):
                output = RawOutput(
                    self.registry.register_output(operand, Reference(step=len(self.steps) + 1), [], None)
                )
                step = RawStep("threading.Thread", None, [], [output], None, parent, opaque=IN_OTHER_THREAD)
                self.steps.append(step)

    def begin(self, composite: Composite, call: TracedCall, frame: FrameType | None, barrier: FrameType) -> Scope:
        """Begin a composite; the steps until its end belong to it."""
        site = self._site(frame)
        step, waits = self._step(call, site)
        step.composite = composite
        position = len(self.steps)
        node = self._look_up(step, site.nearest, call) if site is not None and not waits else None
        self.steps.append(step)
        if waits and site is not None:
            self._pending.append(PendingStep(position, FramePosition.of(site.nearest), call, finished=False))
        scope = Scope(position, id(barrier), call, self.registry.operand_states(call.operands), not step.library, node)
        self._running.append(scope)
        return scope

    def add_keywords(self, scope: Scope, operands: list[Tensor]) -> None:
        """Add a module's keyword arguments, which torch passes only to the hook at its end."""
        known = self.registry.operand_states(operands)
        scope.before.extend(known)
        references = [operand.reference for operand in known]
        self.steps[scope.position].operands += [r for r in references if (r.step or 0) <= scope.position]

    def finish(self, scope: Scope, outputs: list[Tensor], result: object) -> None:
        """Give a composite its outputs, or drop it where it returned nothing new."""
        step, inner = self.steps[scope.position], self.steps[scope.position + 1 :]
        if not outputs:
            if step.composite == "function":
                self._drop(scope.position)  # it worked for itself only, as when a tensor is printed
            return
        if not inner and all(self.registry.is_known(output) for output in outputs):
            if scope.node is not None and step.location is not None:
                self._names.assign(step.location, result)
            self._drop(scope.position)
            return
        step.opaque = None if inner else "nothing inside it can be seen"
        step.passes_through = self._passes_through(scope.position, outputs)
        references = [self.registry.reference(output) for output in outputs]
        step.outputs = [
            RawOutput(
                self.registry.register_composite_output(
                    output, Reference(step=scope.position + 1, output=place), scope.before
                ),
                inner=reference if reference.step is not None and reference.step > scope.position + 1 else None,
            )
            for place, (output, reference) in enumerate(zip(outputs, references, strict=True))
        ]
        if step.passes_through:
            self._pending = [pending for pending in self._pending if pending.position <= scope.position]
        for pending in self._pending:
            if pending.position == scope.position:
                pending.result, pending.finished = result, True
        if any(pending.position > scope.position for pending in self._pending):
            self._resolve_pending()
        elif scope.node is not None:
            self._bind(step, scope.node, scope.call, result, None)

    def end(self, scope: Scope) -> None:
        """End a composite, whether it returned or raised, and every composite inside it that has not ended."""
        if scope in self._running:
            del self._running[self._running.index(scope) :]

    def name_arguments(self, call: TracedCall, frame: FrameType) -> None:
        """Name the arguments of a module call in the traced code: `self.attention(query, key, value)`."""
        site = self._site(frame)
        if site is not None and site.own and site.library is None:
            place, node = self._locator.find(site.frame)
            if node is not None and is_node_of(node, call):
                self._name_operands(place, node, call, -1)

    def fail(self, error: Exception, call: TracedCall, frame: FrameType) -> None:
        """Keep the facts of an exception, at the innermost call that raised it."""
        if self.failure is not None and self.failure.error is error:
            return
        site = self._site(frame)
        place, node = self._locator.find(site.nearest) if site is not None else (None, None)
        names = by_tensor(operand_variables(node, call)) if node is not None and is_node_of(node, call) else {}
        own = own_or_thin = _is_own(site)
        outer_names: dict[int, str] = {}
        running = self._running
        if site is not None and site.own:
            place, _ = self._locator.find(site.frame)
        elif callers := [at for at, scope in enumerate(running) if scope.own]:
            outer = running[callers[-1]]
            place = self.steps[outer.position].location
            outer_names = by_tensor(operand_variables(outer.node, outer.call)) if outer.node is not None else {}
            own_or_thin = only_wraps([scope.call.name for scope in running[callers[-1] :]], call.name)
        parameters = parameter_names(call.func, call.args, call.keywords)
        operands = []
        for operand in call.operands:
            reference, variable = self.registry.reference(operand), names.get(id(operand))
            inside = reference.step is not None and self.steps[reference.step - 1].library
            known = self._names.known(operand) if not inside else None
            # the traced code's names come first: a library's mean something only within the library
            outer_name = outer_names.get(id(operand)) or known or (None if own_or_thin else variable)
            name = variable or known if own else outer_name
            tensor = describe_tensor(operand, "new", reference, self.registry.root(operand))
            operands.append(RawOperand(name, tensor, parameters.get(id(operand)), min_and_max(operand)))
        taken = without_tensors(call.func, call.args, call.keywords)
        self.failure = RawFailure(error, call.name, place, operands, taken, own=own_or_thin)

    def close(self) -> None:
        """Release every tensor and frame."""
        self._pending.clear()
        self._running.clear()
        self._callers.close()
        self._stop = None  # a frame keeps its variables alive, and the result is one of them

    def _site(self, frame: FrameType | None) -> Site | None:
        return self._frames.site(frame, self._stop, self._running[-1].barrier if self._running else None)

    def _parent(self, site: Site | None) -> int | None:
        """Return the position of the composite to which a call from a site belongs, if that composite has begun."""
        if site is not None and site.library is not None:
            mark: Any = site.library.f_trace
            return mark.position if isinstance(mark, CompositeMark) else None
        return self._running[-1].position if self._running else None

    def _is_body(self, site: Site | None) -> bool:
        """Return whether a call is in the innermost composite's own body, which may be in the target's file too."""
        body = getattr(self._running[-1].call.func, "__code__", None) if self._running else None
        return site is not None and site.frame.f_code is body

    def _step(self, call: TracedCall, site: Site | None) -> tuple[RawStep, bool]:
        """Return a step for a call, and whether its location is looked up only if a second inner step follows."""
        parent = self._parent(site)
        if site is not None and site.library is not None and parent is None:
            parent = self._begin_call(site, site.library, call.path)
        waits = self._is_first(site, parent)
        if not waits:
            self._resolve_pending()
        self.add_from_other_threads(call.operands, parent)
        if site is not None and site.own:
            self._callers.at_step(site.frame, len(self.steps))
        references = [self.registry.reference(operand) for operand in call.operands]
        library = not _is_own(site) or self._is_body(site)
        step = RawStep(call.name, None, references, [], call.path, parent, library=library, opaque=call.opaque)
        if not call.is_module:
            step.function, step.arguments = call.func, plain_arguments(call.args, call.keywords)
        return step, waits

    def _begin_call(self, site: Site, library: FrameType, module: str | None) -> int:
        """Add a composite for a library function that the traced code called; its first step follows."""
        self._resolve_pending()
        place, node = self._locator.find(site.frame)
        itself = isinstance(node, ast.Call) and calls_itself(node, library.f_code.co_name)
        around = self._running[-1].position if self._running else None
        step = RawStep(library_call_name(library), place, [], [], module, around, composite="call")
        step.bound_names = tuple(self._names.bound(place)) if itself else ()
        self.steps.append(step)
        library.f_trace = CompositeMark(len(self.steps) - 1)
        return len(self.steps) - 1

    def _is_first(self, site: Site | None, parent: int | None) -> bool:
        """Return whether a call in a library's source is the first inner step of its composite."""
        return site is not None and not _is_own(site) and parent is not None and len(self.steps) == parent + 1

    def _resolve_pending(self) -> None:
        all_pending, self._pending = self._pending, []
        for pending in all_pending:
            step = self.steps[pending.position]
            node = self._look_up(step, pending.frame, pending.call)
            if node is not None and pending.finished:
                self._bind(step, node, pending.call, pending.result, pending.written)
            for scope in self._running:
                if scope.position == pending.position:
                    scope.node = node

    def _look_up(self, step: RawStep, at: FramePosition | FrameType, call: TracedCall) -> ast.AST | None:
        """Look up a step's location and name its operands; return the node if it is certainly the call."""
        step.location, node = self._locator.find(at)
        if node is None or not is_node_of(node, call):
            return None
        self._name_operands(step.location, node, call, self._since(step))
        return node

    def _since(self, step: RawStep) -> int:
        """Return the position after which steps may be named by this step's variables.

        A library's variables name only what the library made, and those inside a library call name nothing.
        """
        if not step.library or step.parent is None:
            return -1
        return step.parent if self.steps[step.parent].composite != "call" else len(self.steps)

    def _name_operands(self, place: SourceLocation, node: ast.AST, call: TracedCall, since: int) -> None:
        for name, tensor in operand_variables(node, call):
            if name not in place.loop_variables:
                self._names.give_by_use(tensor, name, since)

    def _bind(self, step: RawStep, node: ast.AST, call: TracedCall, result: object, written: Tensor | None) -> None:
        """Name a call's results by their assignment targets, or by the variable that it wrote to in place."""
        if step.location is not None:
            self._names.assign(step.location, result)
            for name, tensor in operand_variables(node, call) if written is not None else ():
                if tensor is written and name not in step.location.loop_variables:
                    self._names.give(tensor, name)

    def _passes_through(self, position: int, outputs: list[Tensor]) -> bool:
        """Return whether a composite returns just what its only inner step, in the library's source, returns."""
        inner = [(place, s) for place, s in enumerate(self.steps[position + 1 :], position + 2) if s.parent == position]
        if len(inner) != 1 or not inner[0][1].library:
            return False
        returned = [Reference(step=inner[0][0], output=place) for place in range(len(inner[0][1].outputs))]
        return [self.registry.reference(output) for output in outputs] == returned

    def _drop(self, position: int) -> None:
        if len(self.steps) > position + 1:
            self.registry.forget(position + 1)
        del self.steps[position:]
        self._pending = [pending for pending in self._pending if pending.position < position]


def _is_own(site: Site | None) -> bool:
    return site is not None and site.own and site.library is None
