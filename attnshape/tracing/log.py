"""What is written down of each call: its step, where it stands in the source, and what its results are named."""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import FrameType

from torch import Tensor

from attnshape.model import Reference
from attnshape.tracing.call import Call
from attnshape.tracing.composites import Invocation
from attnshape.tracing.failed import does_no_more, extremes, parameter_names, taken_apart
from attnshape.tracing.frames import Frames, Site
from attnshape.tracing.mapped import is_mapped
from attnshape.tracing.names import Names
from attnshape.tracing.naming import calls_itself
from attnshape.tracing.operations import library_call_name
from attnshape.tracing.places import Moment, Places
from attnshape.tracing.raw import Composite, Place, RawFailure, RawOperand, RawOutput, RawStep
from attnshape.tracing.scopes import Scope, Scopes
from attnshape.tracing.storage import Ledger, facts
from attnshape.tracing.threads import REASON, OtherThreads
from attnshape.tracing.waiting import Waiting
from attnshape.tracing.written import by_tensor, is_of, variables


class Log:
    """The steps of one run as they are made."""

    def __init__(
        self,
        frames: Frames,
        stop: FrameType | None,
        threads: OtherThreads,
        stepped: Callable[[], None] | None = None,
    ) -> None:
        """`stepped` is called behind each step that is no composite."""
        self._stepped = stepped
        self._threads = threads
        self._calls = 0
        self.steps: list[RawStep] = []
        self.failure: RawFailure | None = None
        self.ledger = Ledger()
        self._scopes = Scopes(frames, stop)
        self._places = Places()
        self._names = Names(self.steps, self.ledger)
        self._waiting: list[Waiting] = []

    @property
    def waits(self) -> bool:
        """Whether something waits for a second inner step."""
        return bool(self._waiting)

    def prepare(self, frame: FrameType) -> None:
        """Before a call is made, settle what waits for a second inner step; it may hold tensors."""
        site = self._scopes.site(frame)
        if not self._is_first(site, self._scopes.parent(site)):
            self._settle()

    def add(self, call: Call, frame: FrameType, outputs: list[Tensor], written: Tensor | None, result: object) -> None:
        """Write down a call that made or changed tensors."""
        site = self._scopes.site(frame)
        step, waits = self._step(call, site)
        index = len(self.steps) + 1
        node = self._look_up(step, site.nearest, call) if site is not None and not waits else None
        step.outputs = [
            RawOutput(self.ledger.measure(output, Reference(step=index, output=place), call.operands, written))
            for place, output in enumerate(outputs)
        ]
        step.mapped = any(map(is_mapped, outputs))
        self.steps.append(step)
        if waits and site is not None:
            self._waiting.append(Waiting(index - 1, Moment.of(site.nearest), call, result, written))
        elif node is not None:
            self._bind(step, node, call, result, written)
        self._calls += 1
        step.order = self._calls
        if self._stepped is not None:
            self._stepped()

    def take_from_elsewhere(self, operands: list[Tensor], parent: int | None) -> None:
        """Write down what comes from another thread, each tensor as an opaque step."""
        if not self._threads.worked:
            return
        for operand in operands:
            if self._threads.made(operand) and not self.ledger.is_known(operand):
                output = self.ledger.measure(operand, Reference(step=len(self.steps) + 1), [], None)
                self.steps.append(
                    RawStep("threading.Thread", None, [], [RawOutput(output)], None, parent, opaque=REASON)
                )

    def begin(self, composite: Composite, call: Call, frame: FrameType | None, barrier: FrameType) -> Scope:
        """Write down that a composite begins; what follows until its end is part of it."""
        site = self._scopes.site(frame)
        step, waits = self._step(call, site)
        step.composite = composite
        position = len(self.steps)
        node = self._look_up(step, site.nearest, call) if site is not None and not waits else None
        self.steps.append(step)
        if waits and site is not None:
            self._waiting.append(Waiting(position, Moment.of(site.nearest), call, over=False))
        scope = Scope(position, id(barrier), call, self.ledger.before(call.operands), not step.library, node)
        self._scopes.running.append(scope)
        return scope

    def take_keywords(self, scope: Scope, operands: list[Tensor]) -> None:
        """Add what a module was given by name, which torch tells only at the end."""
        known = self.ledger.before(operands).operands
        scope.before.operands.extend(known)
        earlier = (one.reference for one in known if one.reference.step is None or one.reference.step <= scope.position)
        self.steps[scope.position].operands.extend(earlier)

    def finish(self, scope: Scope, outputs: list[Tensor], result: object) -> None:
        """Write down what a composite has returned."""
        step, inner = self.steps[scope.position], self.steps[scope.position + 1 :]
        if not outputs:
            if step.composite == "function":
                self._drop(scope.position)  # what it did was for its own use, as when a tensor is printed
            return
        if not inner and all(self.ledger.is_known(output) for output in outputs):
            if scope.node is not None and step.place is not None:
                self._names.assign(step.place, result)
            self._drop(scope.position)
            return
        step.opaque = None if inner else "nothing inside it can be seen"
        step.thin = self._passes_on(scope.position, outputs)
        references = [self.ledger.reference(output) for output in outputs]
        step.outputs = [
            RawOutput(
                self.ledger.conclude(output, Reference(step=scope.position + 1, output=place), scope.before),
                inner=reference if reference.step is not None and reference.step > scope.position + 1 else None,
            )
            for place, (output, reference) in enumerate(zip(outputs, references, strict=True))
        ]
        if step.thin:
            self._waiting = [waiting for waiting in self._waiting if waiting.position <= scope.position]
        for waiting in self._waiting:
            if waiting.position == scope.position:
                waiting.result, waiting.over = result, True
        if any(waiting.position > scope.position for waiting in self._waiting):
            self._settle()
        elif scope.node is not None:
            self._bind(step, scope.node, scope.call, result, None)

    def end(self, scope: Scope) -> None:
        """End a composite, however it ended."""
        self._scopes.end(scope)

    def name_arguments(self, call: Call, frame: FrameType) -> None:
        """Name what a module of the traced code is called with: `self.attention(query, key, value)`."""
        site = self._scopes.site(frame)
        if site is not None and site.own and site.library is None:
            place, node = self._places.find(site.frame)
            if node is not None and is_of(node, call):
                self._name_operands(place, node, call, -1)

    def fail(self, error: Exception, call: Call, frame: FrameType) -> None:
        """Write down the exception that came out of a call, where it came out first."""
        if self.failure is not None and self.failure.error is error:
            return
        site = self._scopes.site(frame)
        place, node = self._places.find(site.nearest) if site is not None else (None, None)
        names = {}
        if node is not None and is_of(node, call):
            names = by_tensor(variables(node, call))
        own = all_of_it = _is_own(site)
        given: dict[int, str] = {}
        if site is not None and site.own:
            place, _ = self._places.find(site.frame)
        else:
            running = self._scopes.running
            caller = next((at for at in range(len(running) - 1, -1, -1) if running[at].own), None)
            if caller is not None:
                place, outer = self.steps[running[caller].position].place, running[caller]
                given = by_tensor(variables(outer.node, outer.call)) if outer.node is not None else {}
                all_of_it = does_no_more([scope.call.name for scope in running[caller:]], call.name)
        parameters = parameter_names(call.func, call.args, call.keywords)
        operands = []
        for operand in call.operands:
            reference, variable = self.ledger.reference(operand), names.get(id(operand))
            inside = reference.step is not None and self.steps[reference.step - 1].library
            known = self._names.known(operand) if not inside else None
            # the traced code's own names come before a library's, which mean something within the library only
            name = variable or known if own else given.get(id(operand)) or known or (None if all_of_it else variable)
            tensor = facts(operand, "new", reference, self.ledger.root(operand))
            operands.append(RawOperand(name, tensor, parameters.get(id(operand)), extremes(operand)))
        taken = taken_apart(call.func, call.args, call.keywords)
        self.failure = RawFailure(error, call.name, place, operands, taken, own=all_of_it)

    def close(self) -> None:
        """Let go of every tensor and frame."""
        self._waiting.clear()
        self._scopes.close()

    def _step(self, call: Call, site: Site | None) -> tuple[RawStep, bool]:
        """Return the call's step, and whether it waits for a second one before its place is looked up."""
        parent = self._scopes.parent(site)
        if site is not None and site.library is not None and parent is None:
            parent = self._begin_call(site, site.library, call.path)
        waits = self._is_first(site, parent)
        if not waits:
            self._settle()
        self.take_from_elsewhere(call.operands, parent)
        references = [self.ledger.reference(operand) for operand in call.operands]
        library = not _is_own(site) or self._scopes.is_body(site)
        return RawStep(call.name, None, references, [], call.path, parent, library=library, opaque=call.opaque), waits

    def _begin_call(self, site: Site, library: FrameType, module: str | None) -> int:
        """Write down that the traced code has called a library's function, whose first step is about to follow."""
        self._settle()
        place, node = self._places.find(site.frame)
        itself = isinstance(node, ast.Call) and calls_itself(node, library.f_code.co_name)
        around = self._scopes.running[-1].position if self._scopes.running else None
        step = RawStep(library_call_name(library), place, [], [], module, around, composite="call")
        step.bound = tuple(self._names.bound(place)) if itself else ()
        self.steps.append(step)
        library.f_trace = Invocation(len(self.steps) - 1)
        return len(self.steps) - 1

    def _is_first(self, site: Site | None, parent: int | None) -> bool:
        """Say whether a call from a library's source is the first step of the composite that it is part of."""
        return site is not None and not _is_own(site) and parent is not None and len(self.steps) == parent + 1

    def _settle(self) -> None:
        """Look up what waits."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            step = self.steps[one.position]
            node = self._look_up(step, one.moment, one.call)
            if node is not None and one.over:
                self._bind(step, node, one.call, one.result, one.written)
            for scope in self._scopes.running:
                if scope.position == one.position:
                    scope.node = node

    def _look_up(self, step: RawStep, at: Moment | FrameType, call: Call) -> ast.AST | None:
        """Find the step's place, and name its operands by their variables; return the node where that is the call."""
        step.place, node = self._places.find(at)
        if node is None or not is_of(node, call):
            return None
        self._name_operands(step.place, node, call, self._since(step))
        return node

    def _since(self, step: RawStep) -> int:
        """Return behind which step a result may be named by this one's variables.

        A library's variable is no name for what came from outside, and those of a call's helpers for nothing at all.
        """
        if not step.library or step.parent is None:
            return -1
        return step.parent if self.steps[step.parent].composite != "call" else len(self.steps)

    def _name_operands(self, place: Place, node: ast.AST, call: Call, since: int) -> None:
        for name, tensor in variables(node, call):
            if name not in place.passing:
                self._names.give_by_use(tensor, name, since)

    def _bind(self, step: RawStep, node: ast.AST, call: Call, result: object, written: Tensor | None) -> None:
        """Name what a call has made by what it is assigned to, or by the variable that it wrote to."""
        if step.place is not None:
            self._names.assign(step.place, result)
            for name, tensor in variables(node, call) if written is not None else ():
                if tensor is written and name not in step.place.passing:
                    self._names.give(tensor, name)

    def _passes_on(self, position: int, outputs: list[Tensor]) -> bool:
        """Say whether a composite's only inner step is the library's, and returns what the composite does."""
        inner = [place for place in range(position + 1, len(self.steps)) if self.steps[place].parent == position]
        if len(inner) != 1 or not self.steps[inner[0]].library:
            return False
        made = [Reference(step=inner[0] + 1, output=place) for place in range(len(self.steps[inner[0]].outputs))]
        return [self.ledger.reference(output) for output in outputs] == made

    def _drop(self, position: int) -> None:
        """Take a composite out again, and all that was inside of it."""
        if len(self.steps) > position + 1:
            self.ledger.forget(position + 1)
        del self.steps[position:]
        self._waiting = [waiting for waiting in self._waiting if waiting.position < position]


def _is_own(site: Site | None) -> bool:
    """Say whether a call stands in the traced code's own source."""
    return site is not None and site.own and site.library is None
