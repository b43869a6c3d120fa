"""The annotate pipeline: observe the targets, find what holds in all runs, annotate their file, verify the result."""

from __future__ import annotations

import ast
import contextlib
import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jaxtyping
from msgspec.structs import replace as with_fields

from attnshape.annotate.changes import AnnotateContext
from attnshape.annotate.enforcing import find_hook, functions_without_typechecker
from attnshape.annotate.exclusions import (
    annotations_not_recognized,
    axes_not_varied,
    functions_not_annotated,
    tensors_without_shape,
    variables_not_watched,
    without_conflicting_symbols,
    without_taken_symbols,
)
from attnshape.annotate.sandbox.attempt import TargetCall
from attnshape.annotate.sandbox.verification import SandboxVerification
from attnshape.annotate.saving import Project
from attnshape.annotate.source import PythonSource, decode_source
from attnshape.annotate.styles import AnnotatedFile, rewrite_with_comments
from attnshape.annotate.syntax import parse
from attnshape.comments.verify import verify_shape_comments
from attnshape.errors import AttnshapeError
from attnshape.inference.small_runs import ProgressCallback
from attnshape.observation.forms import FunctionForms
from attnshape.observation.signatures import infer_forms
from attnshape.observation.watch import TargetObservation, observe, symbols_of_other_numbers
from attnshape.options.spec import AnnotateOptions, RunOptions, TargetSpec
from attnshape.pipelines.target_runs import complete_spec, sample_target_closely, small_enough
from attnshape.runtime.capture import to_standard_error
from attnshape.runtime.files import display_path
from attnshape.runtime.isolation import isolated, unattended
from attnshape.runtime.signals import foreign_code
from attnshape.runtime.time_limit import TimeLimit
from attnshape.targets.builtin.registry import DEFAULT
from attnshape.targets.find import find_target, without_arguments_of_a_case

_SECONDS = 30.0
"""How long to look for constraints on the sizes."""


def annotate_requests(
    specs: Sequence[TargetSpec],
    run: RunOptions,
    options: AnnotateOptions,
    project: Project,
    progress: ProgressCallback = lambda words: None,
) -> AnnotatedFile:
    """Return the first target's file with annotations that hold for it and for the other targets.

    Raises AttnshapeError if the file can't be annotated, for example because it isn't in the project.
    """
    with to_standard_error(), foreign_code(), isolated():
        specs = [*specs[:1], *map(without_arguments_of_a_case, specs[1:])]
        completed = [complete_spec(spec, progress) for spec in specs]
        specs = [one.spec for one in completed]
        found = tuple(dict.fromkeys(one.flags for one in completed if one.flags))
        observations = [_observe_despite_annotations(spec, run, options, progress) for spec in specs]
        for spec, observation in zip(tuple(specs), tuple(observations), strict=True):
            default = _default_call(spec, observation, run)
            with contextlib.suppress(AttnshapeError):  # there need not be one that works
                if default is not None:
                    observations.append(_observe_despite_annotations(default, run, options, progress))
                    specs.append(default)
    progress("finding what holds in all runs")
    forms = infer_forms(observations)
    path = _find_file(specs[0], observations[0], forms, project)
    try:
        source = decode_source(path, path.read_bytes())
    except OSError as error:
        name = display_path(str(path))
        raise AttnshapeError(f"{name} can't be read: {error.strerror}", "make it readable") from None
    files = {form.function.file for form in forms}
    same = {file for file in files if not file.startswith("<") and Path(file).resolve() == path}
    forms = [form for form in forms if form.function.file in same]
    tree = parse(source)
    defined = {(definition.name, definition.line) for definition in tree.definitions}
    if not any((form.function.name, form.function.line) in defined for form in forms):
        raise AttnshapeError(
            f"none of the functions that ran is in {display_path(str(path))} as it is on disk",
            "its code was made as it ran, or the file has changed since it was imported",
        )
    runs = [run for observation in observations for run in (*observation.small, observation.actual)]
    taken = [symbols_of_other_numbers(form.function, runs) for form in forms]
    forms, omissions = without_taken_symbols(forms, taken)
    if options.existing != "replace":
        forms, conflicting = without_conflicting_symbols(tree, forms)
        omissions += conflicting
    context = AnnotateContext(
        options.existing,
        options.include_matched,
        sizes=tuple(run.numbers for run in runs),
        unchecked=functions_without_typechecker(tree),
        hook=find_hook(path).is_possible,
    )
    if options.style == "comment":
        annotated = _comment(source, forms, context)
    else:
        # each target at its own sizes, and at two sets of small ones
        calls = tuple(
            TargetCall(spec, (observation.actual.numbers, *(run.numbers for run in observation.small[:2])))
            for spec, observation in zip(specs, observations, strict=True)
        )
        annotated = SandboxVerification(source, forms, context, calls, run).verify(options, progress)
    skipped = [
        *axes_not_varied(observations),
        *functions_not_annotated(tree, forms),
        *tensors_without_shape(forms, runs),
        *variables_not_watched(forms),
    ]
    if options.style != "comment" and not annotated.omissions:  # else these say which annotations don't hold
        skipped += annotations_not_recognized(tree, forms)
    annotated = replace(annotated, omissions=(*skipped, *omissions, *annotated.omissions), found=found)
    if options.existing != "check":
        return annotated
    progress("verifying the shape comments")
    return replace(annotated, findings=verify_shape_comments(runs, [form.function for form in forms]).findings)


def _observe_despite_annotations(
    spec: TargetSpec, run: RunOptions, options: AnnotateOptions, progress: ProgressCallback
) -> TargetObservation:
    """Observe a target; if it fails and its annotations are to be checked or replaced, observe it without checks."""
    try:
        return _observe(spec, run, progress)
    except AttnshapeError:
        if options.existing == "keep":
            raise
    # without jaxtyping's decorators, which check calls and bind the sizes that beartype's hook checks against
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        return _observe(spec, run, progress)
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


def _default_call(spec: TargetSpec, observation: TargetObservation, run: RunOptions) -> TargetSpec | None:
    """Return the spec without the arguments of parameters that have a default, None if it gives no such argument.

    Annotations hold for that call too: what is a mask here may be None there.
    """
    given = {**spec.inputs, **spec.arguments}
    if not given or spec.inside is not None:  # the outer target's arguments aren't those of the module
        return None
    with unattended():
        runnable = find_target(spec).build(observation.actual.numbers, RunOptions(seed=run.seed, train=run.train))
    try:
        parameters = inspect.signature(runnable.signature_of).parameters
    except (TypeError, ValueError):  # a built-in
        return None
    optional = {
        name for name in given if name in parameters and parameters[name].default is not inspect.Parameter.empty
    }
    if not optional:
        return None
    return with_fields(
        spec,
        inputs={name: text for name, text in spec.inputs.items() if name not in optional},
        arguments={name: text for name, text in spec.arguments.items() if name not in optional},
    )


def _observe(spec: TargetSpec, run: RunOptions, progress: ProgressCallback) -> TargetObservation:
    progress("loading the target")
    target = find_target(spec)
    sizes = small_enough(target.sizes)
    small = RunOptions(seed=run.seed, train=run.train)
    limit = TimeLimit()
    variation = sample_target_closely(target, sizes, small, limit, _SECONDS, progress)
    progress("watching the variables")
    return observe(target, variation, small, limit)


def _find_file(
    spec: TargetSpec, observation: TargetObservation, forms: Sequence[FunctionForms], project: Project
) -> Path:
    """Return the file of the code that is called, else the first of the project's files in which any code ran.

    Raises AttnshapeError if there is none.
    """
    own = observation.actual.file
    candidates = [own or "", *(form.function.file for form in forms)]
    paths = [Path(file).resolve() for file in candidates if file.endswith(".py") and Path(file).is_file()]
    if not paths:
        where = f"in {own}" if own is not None else "not in a file of Python code"
        raise AttnshapeError(
            f"the code of {spec.target or DEFAULT} is {where}, so there is nothing to annotate",
            "name a function or class in a .py file: model.py:Attention",
        )
    path = next((path for path in paths if project.contains(path)), paths[0])
    project.check(path)
    return path


def _comment(source: PythonSource, forms: Sequence[FunctionForms], context: AnnotateContext) -> AnnotatedFile:
    """Return the file with comments. Raises AttnshapeError if these would change its code."""
    rewrite = rewrite_with_comments(source, forms, context)
    for _, edits in rewrite.files:
        if ast.dump(ast.parse(source.apply(edits))) != ast.dump(ast.parse(source.data)):
            raise AttnshapeError(
                f"comments would change the code of {display_path(str(source.path))}",
                "nothing was written; please report this with the file",
            )
    return AnnotatedFile(source, "comment", rewrite)
