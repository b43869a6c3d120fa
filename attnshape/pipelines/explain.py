"""Explains a target: traces it with costs, observes its attention in a run of its own, and writes the article."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from msgspec import UNSET
from msgspec.structs import replace

from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Budget, OutOfTimeError, UnreadableError
from attnshape.checks.interventions.module_state import ModuleState
from attnshape.checks.interventions.own_run import OwnRun
from attnshape.checks.interventions.small_sizes import MAX_RESULT_BYTES
from attnshape.dims.sizes import are_large, proxy_sizes
from attnshape.errors import AttnshapeError, literal
from attnshape.explanation.attention import Attention
from attnshape.explanation.introduction import further_steps, introduction, other_steps, part_title, shared_by
from attnshape.explanation.observed import RunValues, observed_scores
from attnshape.explanation.sentences import GROUPED_HEADS
from attnshape.explanation.stages import StepLinks, TracedAttention, attentions
from attnshape.explanation.states import corrected_state, may_have_state, summed_first
from attnshape.explanation.summary import summary
from attnshape.explanation.topics.registry import TOPICS
from attnshape.explanation.topics.states import sections
from attnshape.inference.small_runs import ProgressCallback
from attnshape.model.explanation import Explanation, Part
from attnshape.model.trace import Trace
from attnshape.options.claims import Claims
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.target_runs import complete_spec
from attnshape.pipelines.trace import OutputRedirect, trace_request
from attnshape.runtime.capture import to_standard_error
from attnshape.runtime.isolation import isolated, one_thread
from attnshape.runtime.signals import foreign_code
from attnshape.runtime.time_limit import TimeLimit, TooLong
from attnshape.targets.find import find_target
from attnshape.targets.target import Target
from attnshape.tracing.containers import module_of


def explain_request(
    spec: TargetSpec,
    options: RunOptions,
    time_limit: float,
    redirect_output: OutputRedirect = to_standard_error,
    progress: ProgressCallback = lambda activity: None,
) -> Explanation:
    """Return the explanation of a request.

    Args:
        spec: The target and its sizes.
        options: How to run it; its numbers are observed on the CPU.
        time_limit: Seconds for the runs in which numbers are observed.
        redirect_output: Returns a context that redirects the output of the target.
        progress: The progress callback.

    Raises:
        AttnshapeError: The request can't be carried out, or the target fails.
    """
    with redirect_output(), foreign_code(), isolated():
        completed = complete_spec(spec, progress)
    trace = trace_request(completed.spec, replace(options, cost=True, grad=True), redirect_output, progress)
    if trace.failure is not None:
        raise AttnshapeError(
            f"the target fails, so that it can't be explained: {trace.failure.error}",
            "attnshape trace, with the same arguments, shows where and why",
        )
    trace = replace(trace, found=completed.flags or UNSET)
    with redirect_output(), foreign_code(), isolated(), one_thread():
        progress("observing the attention")
        runs = _Runs(trace, find_target(completed.spec), options, time_limit)
        seen = [runs.attention(traced) for traced in attentions(trace)]
        parts = [_part(trace, number, len(seen), attention) for number, attention in enumerate(seen, 1)]
        told = {index for part in parts for index in _steps_of(part)}
        parts += [part for part in runs.states() if not told & _steps_of(part)]
        mode = runs.mode
        runs.close()
    explained = {step.index for attention in seen for steps in attention.traced.stages.values() for step in steps}
    explained |= {index for part in parts[len(seen) :] for index in _steps_of(part)}
    explained |= trace.composites
    others = other_steps(trace, tuple(step for step in trace.steps if step.index not in explained), bool(parts))
    return Explanation(
        trace=trace,
        call=_call(completed.spec, options, trace),
        observed_at=runs.observed_at,
        introduction=introduction(trace, runs.observed_at, mode),
        parts=(*parts, *([others] if others is not None else [])),
        summary=summary(trace, seen),
    )


_MOST_PARAMETERS = 10**8
"""How many parameters a target has at most that is observed at its own sizes, where its trace allocated none."""


class _Runs:
    """The runs in which one target is observed."""

    def __init__(self, trace: Trace, target: Target, options: RunOptions, time_limit: float) -> None:
        self._trace, self._target = trace, target
        self._links = StepLinks(trace)
        self._run = replace(options, device="cpu", cost=False, grad=False)
        self._modules, self._limit, self._budget = ModuleState(target.module), TimeLimit(), Budget(time_limit)
        self._values: RunValues | None = None
        self._training: RunValues | None = None
        if not any(step.role == "context" for step in trace.steps) and not may_have_state(trace):
            return
        for numbers in _candidates(target, trace):
            self._values = self._observe(numbers, self._run)
            if self._values is not None:
                has_dropout = any(step.role == "dropout" for step in trace.steps)
                training = replace(self._run, train=True)
                if has_dropout:
                    self._training = self._values if options.train else self._observe(numbers, training)
                break

    @property
    def observed_at(self) -> dict[str, int]:
        """The sizes of the run; empty if there was none."""
        return dict(self._values.subject.experiment.numbers) if self._values is not None else {}

    @property
    def mode(self) -> str | None:
        """The mode in which the modules ran, `training` or `evaluation`; None if there are none."""
        if self._run.train:
            return "training"
        has_modules = any(step.module for step in self._trace.steps)
        if self._values is not None and not has_modules:
            experiment = self._values.subject.experiment
            with contextlib.suppress(UnreadableError, OutOfTimeError, TooLong):
                has_modules = experiment.observe(lambda runnable, _: module_of(runnable.function) is not None)
        return "evaluation" if has_modules else None

    def attention(self, traced: TracedAttention) -> Attention:
        """Return an attention of the trace with what its run shows."""
        scores = None
        with contextlib.suppress(UnreadableError, OutOfTimeError, TooLong):
            if self._values is not None:
                scores = observed_scores(self._values, traced, _head_axes(traced))
        return Attention(self._trace, self._links, traced, self._values, self._training, scores)

    def states(self) -> Iterator[Part]:
        """Yield what the run shows of states that take the place of weights, if it has any."""
        if self._values is None:
            return
        with contextlib.suppress(UnreadableError, OutOfTimeError, TooLong):
            summed = summed_first(self._trace, self._links, self._values)
            corrected = corrected_state(self._trace, self._links, self._values)
            found = tuple(sections(self._trace, self._links, summed, corrected))
            if found:
                yield Part(title="The state in place of weights", sections=found)

    def close(self) -> None:
        """Put the target's Python modules back to what they were."""
        self._modules.restore()

    def _observe(self, numbers: Mapping[str, int], run: RunOptions) -> RunValues | None:
        """Return a run at these sizes; None if it fails, takes too long, or its results are too large."""
        with contextlib.suppress(UnreadableError, OutOfTimeError, TooLong):
            experiment = OwnRun(self._target, numbers, run, self._limit, self._budget, self._modules)
            if experiment.base.error is None and experiment.bytes <= MAX_RESULT_BYTES and not experiment.raw.failure:
                return RunValues(self._trace, Subject(experiment, Claims(), None, run.dtype))
        return None


def _head_axes(traced: TracedAttention) -> tuple[int, ...]:
    """Return the axes of the scores that count heads."""
    product = next((step for step in traced.of("scores") if step.role == "scores"), None)
    axes = product.outputs[0].tensor.axes if product is not None else ()
    return tuple(place for place, axis in enumerate(axes) if axis.expression in GROUPED_HEADS)


def _candidates(target: Target, trace: Trace) -> Iterator[Mapping[str, int]]:
    """Yield the user's sizes unless they are large, then smaller ones.

    A trace on the meta device allocates nothing; what it says of the parameters must fit into memory here.
    """
    own = target.sizes.numbers
    is_huge = trace.cost is not UNSET and trace.cost.parameters.value > _MOST_PARAMETERS
    if not are_large(target.sizes) and not (is_huge and trace.device == "meta"):
        yield own
    if target.resizable:
        yield from (sizes.numbers for sizes in proxy_sizes(target.sizes) if sizes.numbers != own)


def _part(trace: Trace, number: int, count: int, attention: Attention) -> Part:
    sections = []
    for topic in TOPICS:
        with contextlib.suppress(UnreadableError, OutOfTimeError, TooLong):
            if (section := topic(attention)) is not None:
                sections.append(section)
    shown = {index for section in sections for index in section.steps}
    stages = attention.traced.stages.values()
    missing = [step for steps in stages for step in steps if step.index not in shown]
    if (further := further_steps(trace, missing)) is not None:
        sections.append(further)
    modules = attention.traced.modules
    return Part(
        title=part_title(number, count, modules),
        modules=modules,
        paragraphs=tuple(shared_by(modules)),
        sections=tuple(sections),
    )


def _steps_of(part: Part) -> set[int]:
    return {index for section in part.sections for index in section.steps}


def _call(spec: TargetSpec, options: RunOptions, trace: Trace) -> str:
    """Return the call of `attnshape.trace` that repeats the trace; empty if it needs objects that only Python has."""
    if spec.callable is not None or spec.values:
        return ""
    arguments: dict[str, object] = {"init": spec.init, "inside": spec.inside}
    arguments |= {name: dict(getattr(spec, name)) or None for name in ("inputs", "arguments", "options")}
    defaults = RunOptions()
    for name in ("device", "dtype", "seed", "train"):
        value = getattr(options, name)
        arguments[name] = value if value != getattr(defaults, name) else None
    sizes = {
        symbol: spec.sizes.get(symbol, size.size)
        for symbol, size in trace.sizes.items()
        if size.origin != "derived" or symbol in spec.sizes
    }
    given = [f"{name}={_literal(value)}" for name, value in arguments.items() if value is not None]
    given += [f"{symbol}={_literal(size)}" for symbol, size in sizes.items()]
    return f"attnshape.trace({', '.join([literal(spec.target or 'multi-head'), *given])})"


def _literal(value: object) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{literal(key)}: {_literal(item)}' for key, item in value.items())}}}"
    return literal(value)
