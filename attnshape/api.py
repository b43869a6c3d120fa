"""The Python API: `trace`, `explain` and `check` run code, `record` and `watch` see it run, `diff` compares traces."""

from __future__ import annotations

import contextlib
import functools
import reprlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from attnshape.errors import AttnshapeError

if TYPE_CHECKING:
    import torch

    from attnshape.model.difference import Difference
    from attnshape.model.explanation import Explanation
    from attnshape.model.program import ProcessCaptures
    from attnshape.model.report import Report
    from attnshape.model.trace import Trace
    from attnshape.options.spec import RunOptions, TargetSpec
    from attnshape.pipelines.record import Recording
    from attnshape.pipelines.run import Watching


def trace(
    target: str | Callable[..., Any],
    /,
    *,
    init: str | None = None,
    inputs: Mapping[str, str | torch.Tensor] | None = None,
    arguments: Mapping[str, Any] | None = None,
    inside: str | None = None,
    options: Mapping[str, bool | float] | None = None,
    expect: Mapping[str, str] | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    seed: int = 0,
    train: bool = False,
    grad: bool = False,
    cost: bool = False,
    behaviour: bool = False,
    **sizes: int | str,
) -> Trace:
    """Return the trace of attention code: every intermediate tensor of one run, with its symbolic signature.

    The target runs at the sizes given, and again at other sizes on small CPU tensors, which verifies its signatures.
    Code that fails raises nothing: the trace goes as far as the code went, and has a `failure`.

    Grad mode, random states, default dtype and device are restored afterwards. What the code prints goes to
    `sys.stderr`, since it runs several times.

    Args:
        target: A case (a function of sizes alone that returns a callable and its arguments), a function, a class, a
            module, or a string as on the command line: `"multi-head"`, `"model.py:Attention"`. A module is copied,
            never moved or changed; its own widths can't vary, those of a class can.
        init: The arguments of a class, as Python code that may use the sizes: `"D, n_head=H"`.
        inputs: The tensor arguments by parameter: each a description, `"B Lq D"`, `"bool B 1 1 Lk"`, `"int[V] B L"`,
            or the tensor itself. With tensors there is one run, and axes are only matched against the sizes given.
        arguments: The other arguments by parameter: a string is Python over the sizes,
            `"torch.ones(L, L).tril().bool()"`; anything else is passed as it is.
        inside: The path of a module of the target, `"transformer.h.0.attn"`: only it is traced, with the arguments
            that it gets when the target runs.
        options: Options of built-in mechanisms: causal, padding, mask_value, dropout, bias.
        expect: The signature that a variable, or `output`, must have. The trace's `expectations` have the verdicts.
        device: Where to run. By default the device of the module or of the tensors given, else the CPU.
        dtype: The dtype of parameters and floating-point inputs. By default that of the module or of the tensors
            given, else float32.
        seed: The seed of parameters and inputs.
        train: Whether to run in training mode, with dropout.
        grad: Whether to keep the tensors that the backward pass needs, as in training.
        cost: Whether to count what each step computes, moves, copies and saves for the backward pass, as in training.
        behaviour: Whether to measure the behaviour too, as `diff` compares it: who sees whom, the scale, on what the
            results depend. This takes many runs at small sizes.
        **sizes: The sizes of the symbols, `B=2`, and of your own dimensions, as numbers or expressions: `nh=4,
            C="nh*hs"`.

    Returns:
        The trace, with shapes, strides in elements and storage in bytes.

    Raises:
        AttnshapeError: The target can't be found or built, an argument is invalid, or the run needs more memory than
            is free.

    Example:
        >>> def attention(query, key, value):
        ...     weights = (query @ key.mT / key.shape[-1] ** 0.5).softmax(-1)
        ...     return weights @ value
        >>> inputs = {"query": "B Lq Dk", "key": "B Lk Dk", "value": "B Lk Dv"}
        >>> attention_trace = trace(attention, inputs=inputs, B=3, Lk=7)
        >>> for step in attention_trace.steps:
        ...     print(step.outputs[0].name, step.outputs[0].tensor.signature, step.outputs[0].tensor.shape)
        None B Dk Lk (3, 64, 7)
        None B Lq Lk (3, 10, 7)
        None B Lq Lk (3, 10, 7)
        weights B Lq Lk (3, 10, 7)
        None B Lq Dv (3, 10, 96)
        >>> trace("multi-head", H=4, options={"causal": True}).sizes["H"].size
        4
    """
    # torch is imported on the first use, not with the package
    from attnshape.pipelines.trace import trace_request

    run = {"device": device, "dtype": dtype, "seed": seed, "train": train, "grad": grad or cost, "cost": cost}
    given = {"init": init, "inputs": inputs, "arguments": arguments, "inside": inside}
    given |= {"options": options, "expect": expect}
    spec, how = _options("trace", target, given, sizes, run)
    if behaviour:
        from attnshape.options.limits import MEASURING_SECONDS
        from attnshape.pipelines.behaviour import with_behaviour

        def traced() -> Trace:
            trace = trace_request(spec, how, _print_to_stderr)
            return with_behaviour(trace, spec, how, MEASURING_SECONDS, redirect_output=_print_to_stderr)

        return _run(spec, traced)
    return _run(spec, lambda: trace_request(spec, how, _print_to_stderr))


def explain(
    target: str | Callable[..., Any],
    /,
    *,
    init: str | None = None,
    inputs: Mapping[str, str | torch.Tensor] | None = None,
    arguments: Mapping[str, Any] | None = None,
    inside: str | None = None,
    options: Mapping[str, bool | float] | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    seed: int = 0,
    train: bool = False,
    **sizes: int | str,
) -> Explanation:
    """Return an article about attention code: what each step does, why, and what would go wrong without it.

    The reasons come from the trace, with its costs, and from numbers that are observed in a run at these sizes: the
    spread of the scores with and without the scale, the weights of hidden keys, what dropout does. What doesn't apply
    to the code isn't said.

    Args:
        target: What to explain, as for `trace`.
        init, inputs, arguments, inside, options, device, dtype, seed, train, **sizes: How to build and run it, as for
            `trace`.

    Returns:
        The explanation. Its `sections` have the texts, and the `measurements` behind every number in them.

    Raises:
        AttnshapeError: An argument is invalid, or the target can't be found or built, or fails.

    Example:
        >>> def attention(query, key, value):
        ...     weights = (query @ key.mT / key.shape[-1] ** 0.5).softmax(-1)
        ...     return weights @ value
        >>> explanation = explain(attention, inputs={"query": "B Lq Dk", "key": "B Lk Dk", "value": "B Lk Dv"})
        >>> [section.topic for section in explanation.parts[0].sections]
        ['scores', 'scale', 'softmax', 'context']
        >>> spread = {one.name: one.text for one in explanation.parts[0].sections[1].measurements}
        >>> spread["spread without the scale"], spread["spread with the scale"]
        ('8.16', '1.02')
    """
    from attnshape.options.limits import MEASURING_SECONDS
    from attnshape.pipelines.explain import explain_request

    run = {"device": device, "dtype": dtype, "seed": seed, "train": train}
    given = {"init": init, "inputs": inputs, "arguments": arguments, "inside": inside, "options": options}
    spec, how = _options("explain", target, given, sizes, run)
    return _run(spec, lambda: explain_request(spec, how, MEASURING_SECONDS, _print_to_stderr))


def check(
    target: str | Callable[..., Any],
    /,
    *,
    claims: Sequence[str] = (),
    init: str | None = None,
    inputs: Mapping[str, str | torch.Tensor] | None = None,
    arguments: Mapping[str, Any] | None = None,
    inside: str | None = None,
    options: Mapping[str, bool | float] | None = None,
    seed: int = 0,
    train: bool = False,
    time_limit: float = 60.0,
    **sizes: int | str,
) -> Report:
    """Return the mistakes in attention code that no shape reveals: findings, each at its line.

    The target runs many times at small sizes, in float64 where it allows that, each time with something changed: a
    token, a batch element, a head, the scores themselves. What changes in the result shows what each axis means.

    Args:
        target: What to check, as for `trace`.
        claims: What the code is meant to do: `"causal"`, `"window=W"`, `"mask=keep"`, `"visible=k <= q"`. What
            depends on intent and isn't claimed is reported as a fact, never as a finding.
        init, inputs, arguments, inside, options, seed, train, **sizes: How to build and run it, as for `trace`.
        time_limit: The seconds that all runs may take together. The report lists what wasn't checked by then.

    Returns:
        The report: findings, facts, what was verified, and what was not checked.

    Raises:
        AttnshapeError: An argument is invalid, or the target can't be found, built, or run at its sizes.

    Example:
        >>> def attention(query, key, value):
        ...     weights = (query @ key.mT / query.shape[-1]).softmax(-1)
        ...     return weights @ value
        >>> inputs = {"query": "B H Lq Dk", "key": "B H Lk Dk", "value": "B H Lk Dv"}
        >>> report = check(attention, inputs=inputs)
        >>> [finding.code for finding in report.findings]
        ['AS203']
        >>> print(report.findings[0].message)
        scores are scaled by 1/Dk = 0.09091, expected 1/sqrt(Dk) = 0.3015
    """
    from attnshape.options.claims import parse_claims
    from attnshape.options.limits import check_time_limit
    from attnshape.pipelines.check import check_request

    check_time_limit(time_limit)
    run = {"seed": seed, "train": train}
    given = {"claims": tuple(claims), "init": init, "inputs": inputs, "arguments": arguments, "inside": inside}
    given["options"] = options
    spec, how = _options("check", target, given, sizes, run)
    return _run(spec, lambda: check_request(spec, how, parse_claims(spec.claims), time_limit, _print_to_stderr))


def diff(old: Trace, new: Trace) -> Difference:
    """Return the differences between two traces, step by step.

    Behaviour is compared where both traces hold it: `trace(…, behaviour=True)`. Steps are aligned by what they do, so
    that an inserted step is one addition, and a renamed variable is no difference. Neither is anything that depends on
    the machine, the path, the seed or the versions.

    Args:
        old: The trace to compare with.
        new: The trace that is compared.

    Returns:
        The difference, which is true where the traces differ.

    Example:
        >>> def attention(q, k):
        ...     return (q @ k.mT).softmax(-1)
        >>> def scaled(q, k):
        ...     scores = q @ k.mT
        ...     return (scores / q.shape[-1] ** 0.5).softmax(-1)
        >>> inputs = {"q": "B Lq Dk", "k": "B Lk Dk"}
        >>> difference = diff(trace(attention, inputs=inputs), trace(scaled, inputs=inputs))
        >>> [step.new.expression for step in difference.steps if step.old is None]
        ['scores / q.shape[-1] ** 0.5']
        >>> difference.kinds
        ('steps',)
    """
    from attnshape.comparison.compare import compare
    from attnshape.comparison.outline import outline

    return compare(outline(old), outline(new))


def record(sizes: Mapping[str, int | str] | None = None) -> Recording:
    """Return a context manager that records the code that its `with` block runs.

    The code runs once, so its axes are matched against the sizes given and not verified at others. Modules and tensors
    that variables hold when the block begins go by the names of these variables. An exception passes through
    unchanged; the trace then goes as far as the code went, and has a `failure`.

    Args:
        sizes: The sizes to match axes against, of symbols and of your own dimensions: `dict(B=2, L=10, nh=4, hs=16,
            C="nh*hs")`.

    Returns:
        The recording. After the block its `trace` is the trace of what ran.

    Raises:
        AttnshapeError: A size is invalid.

    Example:
        >>> import torch
        >>> query, key = torch.ones(2, 10, 64), torch.ones(2, 16, 64)
        >>> with record(sizes=dict(B=2, Lq=10, Lk=16, Dk=64)) as recording:
        ...     scores = query @ key.mT
        >>> step = recording.trace.steps[-1]
        >>> step.outputs[0].name, step.outputs[0].tensor.signature
        ('scores', 'B Lq Lk')
    """
    from attnshape.dims.sizes import resolve
    from attnshape.pipelines.record import Recording

    given = dict(sizes or {})
    return Recording(resolve((), given), f"attnshape.record({format_arguments({'sizes': given})})")


@contextlib.contextmanager
def watch() -> Iterator[Watching]:
    """Watch the attention that is called inside, and report it on standard error at the end, as `attnshape run` does.

    Modules may have been constructed before; the arguments of their constructors are then worked out. Nothing else
    changes: results, random states and saved modules stay the same. Under `attnshape run`, its summary at the end of
    the program has these calls, and nothing is reported here.

    Yields:
        What is watched; its `summary` exists once the block has ended.

    Raises:
        AttnshapeError: The block is inside another one.

    Example:
        >>> import attnshape, torch
        >>> attention = torch.nn.MultiheadAttention(8, 2)
        >>> with attnshape.watch() as watching:  # doctest: +SKIP
        ...     _ = attention(*[torch.rand(5, 3, 8)] * 3)
        >>> watching.summary.attentions[0].captured.calls  # doctest: +SKIP
        1
    """
    from attnshape.pipelines.run import Watching
    from attnshape.programs.activation import is_active
    from attnshape.programs.watch import Watch

    watching = Watching()
    if is_active():
        yield watching
        return
    if Watch.current is not None:
        raise AttnshapeError("attention is being watched already", "leave the inner `with attnshape.watch()` out")
    watch = Watch()
    watch.install()
    try:
        watch.watch_loaded_classes()
        yield watching
    finally:
        watch.uninstall()
        captures = watch.captures()
        captures.is_final = True
        _report(watching, captures)


def _report(watching: Watching, captures: ProcessCaptures) -> None:
    """Write the summary to standard error, whatever becomes of it: the block may be ending with an exception."""
    try:
        from attnshape.pipelines.run import summarize
        from attnshape.reporters.program import program_text

        watching.summary = summarize([captures])
        print(program_text(watching.summary, 100, color=False), end="", file=sys.stderr)  # noqa: T201 - as documented
    except Exception as error:  # noqa: BLE001 - the user's program goes on
        print(f"attnshape: no summary: {error}", file=sys.stderr)  # noqa: T201 - likewise


def format_arguments(arguments: Mapping[str, object]) -> str:
    """Return keyword arguments as they would be typed; tensors as their shapes.

    >>> import torch
    >>> format_arguments({"B": 2, "inputs": {"x": torch.ones(2, 3), "y": "B L"}})
    "B=2, inputs={'x': <tensor 2 3>, 'y': 'B L'}"
    """
    return ", ".join(f"{name}={_format_value(value)}" for name, value in arguments.items())


def _options(
    function: str,
    target: str | Callable[..., Any],
    given: Mapping[str, Any],
    sizes: Mapping[str, int | str],
    run: Mapping[str, Any],
) -> tuple[TargetSpec, RunOptions]:
    """Return what to run and how, from the arguments of a call. Raises AttnshapeError if one is invalid."""
    from attnshape.options.pyproject import resolve_name
    from attnshape.options.spec import TargetSpec, require_name
    from attnshape.tracing.containers import tensor_paths

    given = {name: value for name, value in given.items() if value}
    inputs, arguments = given.get("inputs", {}), given.get("arguments", {})
    by_name = isinstance(target, str)
    if not by_name and not callable(target):
        raise AttnshapeError(
            f"attnshape.{function} was given a {type(target).__name__}, expected something to call, or a name",
            "give a case, a function, a module, its class, or a string such as 'multi-head'",
        )
    for name, value in inputs.items():
        if not isinstance(value, str) and next(tensor_paths("", value), None) is None:
            raise AttnshapeError(
                f"inputs[{name!r}] is a {type(value).__name__}, expected a description, 'B L D', or a tensor",
                f"give what isn't a tensor in arguments={{{name!r}: …}}",
            )
        if name in arguments:
            raise AttnshapeError(f"{name} is given twice, in inputs and in arguments", "give it once")
    if "options" in given and not by_name:
        raise AttnshapeError("options are those of built-in mechanisms", "give your own target's with arguments={…}")
    values = {name: value for name, value in {**inputs, **arguments}.items() if not isinstance(value, str)}
    texts = {
        field: {name: text for name, text in given.get(field, {}).items() if name not in values}
        for field in ("inputs", "arguments")
    }
    spec = TargetSpec(
        require_name(target) if isinstance(target, str) else _label(target),
        **{**given, **texts, "expect": tuple(given.get("expect", {}).items())},
        sizes=sizes,
        callable=None if by_name else target,
        values=values,
    )
    run = {name: _plain(value) for name, value in run.items() if value}
    return resolve_name(spec, {**_defaults(target, values), **run}, _command(function, target, {**given, **run}, sizes))


def _defaults(target: object, values: Mapping[str, object]) -> dict[str, str]:
    """Return the device and the dtype of the first tensor of a module or of the arguments."""
    from attnshape.tracing.containers import module_of, tensor_paths

    owner = module_of(target)
    tensors = [*owner.parameters(), *owner.buffers()] if owner is not None else []
    tensors += [tensor for _, tensor in tensor_paths("", dict(values))]
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    device = {"device": str(tensors[0].device)} if tensors else {}
    return {**device, "dtype": _plain(floating[0].dtype)} if floating else device


def _plain(value: Any) -> Any:
    """Return devices and dtypes by name, numbers as they are."""
    return value if isinstance(value, int) else str(value).removeprefix("torch.")


def _command(function: str, target: object, given: Mapping[str, Any], sizes: Mapping[str, object]) -> str:
    """Return the call as it would be typed."""
    if isinstance(target, str):
        first = repr(target)
    else:
        name = getattr(target, "__name__", None)
        first = name if isinstance(name, str) and name.isidentifier() else f"<{type(target).__name__}>"
    described = ("init", "inputs", "arguments", "inside", "options", "expect", "claims")
    order = (*described, "device", "dtype", "seed", "train", "grad")
    rest = format_arguments({**{name: given[name] for name in order if name in given}, **sizes})
    return f"attnshape.{function}({first}{', ' if rest else ''}{rest})"


def _format_value(value: object) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        return f"<tensor {' '.join(map(str, value.shape))}>" if value.ndim else "<tensor>"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_format_value(item)}' for key, item in value.items())}}}"
    if isinstance(value, (str, int, float)):
        return repr(value)
    return " ".join(reprlib.repr(value).split())


def _label(target: Callable[..., Any]) -> str:
    """Return the name of a callable with its module, as on a command line; without it where that is a script."""
    while isinstance(target, functools.partial):
        target = target.func
    kind = target if hasattr(target, "__qualname__") else type(target)
    module = getattr(kind, "__module__", None)
    name = kind.__qualname__.replace("<locals>.", "").replace("<lambda>", "lambda")
    return name if module in (None, "__main__", "builtins") else f"{module}:{name}"


Result = TypeVar("Result")


def _run(spec: TargetSpec, pipeline: Callable[[], Result]) -> Result:
    """Return what a pipeline returns, with the state of the process restored.

    Raises AttnshapeError if the code exits, and within a recording.
    """
    from attnshape.pipelines.record import Recording
    from attnshape.runtime.isolation import isolated

    if Recording.active:
        raise AttnshapeError(
            "attnshape was called inside a recording, which would record its runs", "call it after the block"
        )
    with isolated():
        try:
            return pipeline()
        except SystemExit as error:
            raise AttnshapeError(
                f"{spec.target} exits: sys.exit({error.code!r})", "pass a part of it that doesn't exit"
            ) from None


def _print_to_stderr() -> contextlib.AbstractContextManager[object]:
    return contextlib.redirect_stdout(sys.stderr)
