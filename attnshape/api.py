"""The public functions: `trace` and `check` what can be run at any sizes, `record` what runs, `diff` two traces."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from attnshape.errors import AttnshapeError
from attnshape.wording import in_python

if TYPE_CHECKING:
    import torch

    from attnshape.comparing.difference import Difference
    from attnshape.model import Trace
    from attnshape.recording import Recording
    from attnshape.report import Report
    from attnshape.settings import Settings
    from attnshape.target.request import Request


def trace(
    target: str | Callable[..., Any],
    /,
    *,
    init: str | None = None,
    inputs: Mapping[str, str | torch.Tensor] | None = None,
    arguments: Mapping[str, Any] | None = None,
    options: Mapping[str, bool | float] | None = None,
    expect: Mapping[str, str] | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    seed: int = 0,
    train: bool = False,
    grad: bool = False,
    **sizes: int | str,
) -> Trace:
    """Return the trace of attention code: every intermediate tensor of one run, with its signature worked out.

    The target is run at the sizes given, and again at other sizes on small CPU tensors, which proves its axes. Code
    that fails is no error: the trace goes as far as the code went, and has a `failure`.

    `target` is a case (a function of sizes alone that returns what to call and with what), a function, a class, a
    module that is built already, or a string as on the command line. A module is copied, never moved or changed; its
    own widths can't be varied, a class's can.

    `init` says what to call a class with, in Python over the sizes: `"D, n_head=H"`.
    `inputs` has for each tensor argument a description, `"B Lq D"`, `"bool B 1 1 Lk"`, `"int[V] B L"`, or the tensor
    itself: then there is one run, and axes are only matched against the sizes named.
    `arguments` has the others: a string is Python over the sizes, `"torch.ones(L, L).tril().bool()"`; anything else
    is passed as it is.
    `options` are those of built-in mechanisms: causal, padding, mask_value, dropout, bias.
    `expect` has the signature that a variable, or `output`, must have; the trace's `expectations` have the verdicts.
    With `train` dropout is active, with `grad` what gradients need is kept.
    `device` and `dtype` are the module's or the given tensors' own where they have some, else cpu and float32.
    `sizes` are the symbols' numbers, `B=2`; letters of your own are numbers or expressions, `nh=4, C="nh*hs"`.

    Grad mode, random states, default dtype and device are afterwards what they were; what the code prints goes to
    `sys.stderr`, since it runs several times.

    Raises AttnshapeError where the request can't be carried out.

    >>> def attention(query, key, value):
    ...     weights = (query @ key.mT / key.shape[-1] ** 0.5).softmax(-1)
    ...     return weights @ value
    >>> made = trace(attention, inputs={"query": "B Lq Dk", "key": "B Lk Dk", "value": "B Lk Dv"}, B=3, Lk=7)
    >>> for step in made.steps:
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
    from attnshape.call import Call
    from attnshape.pipeline import trace_request

    call = Call(target, init, inputs or {}, arguments or {}, options or {}, expect or {}, sizes)
    try:
        request, settings = call.request(device, dtype, seed, train, grad)
        return _run(request, settings, partial(trace_request, request, settings))
    except AttnshapeError as error:
        raise in_python(error) from error.__cause__


def check(
    target: str | Callable[..., Any],
    /,
    *,
    claims: Sequence[str] = (),
    init: str | None = None,
    inputs: Mapping[str, str | torch.Tensor] | None = None,
    arguments: Mapping[str, Any] | None = None,
    options: Mapping[str, bool | float] | None = None,
    seed: int = 0,
    train: bool = False,
    time_limit: float = 60.0,
    **sizes: int | str,
) -> Report:
    """Return what is wrong with attention code that no shape tells of: a report of findings, each at its line.

    The target is run many times at small sizes, in float64 where it allows that, each time with something changed:
    a token, a batch element, a head, the scores themselves. What moves, and what doesn't, shows what each axis means.

    `claims` say what the code is meant to do: `"causal"`, `"window=W"`, `"mask=keep"`, `"scale=1/sqrt(Dk)"`. What
    depends on intent and isn't claimed is measured and reported as a fact.
    `time_limit` is in seconds, for all runs together; what could not be examined by then is listed.
    The other arguments are those of `trace`.

    Raises AttnshapeError where the request can't be carried out, or the target fails at its sizes.

    >>> def attention(query, key, value):
    ...     weights = (query @ key.mT / query.shape[-1]).softmax(-1)
    ...     return weights @ value
    >>> inputs = {"query": "B H Lq Dk", "key": "B H Lk Dk", "value": "B H Lk Dv"}
    >>> report = check(attention, inputs=inputs)
    >>> [finding.code for finding in report.findings]
    ['AS203']
    >>> print(report.findings[0].message)
    scores are scaled by 1/Dk = 0.1429, expected 1/sqrt(Dk) = 0.378
    """
    from attnshape.call import Call
    from attnshape.claims import parse_claims
    from attnshape.examine import check_request

    call = Call(target, init, inputs or {}, arguments or {}, options or {}, {}, sizes, "check", tuple(claims))
    try:
        request, settings = call.request(None, None, seed, train, False)
        parsed = parse_claims(claims)
        return _run(request, settings, partial(check_request, request, settings, parsed, time_limit))
    except AttnshapeError as error:
        raise in_python(error) from error.__cause__


def diff(old: Trace, new: Trace) -> Difference:
    """Return what differs between two traces, step by step; it is true where anything does.

    Steps are aligned by what they do, so that an inserted step is one addition and what only has another name is no
    difference; nor is anything that depends on the machine, the path, the seed or the versions.

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
    from attnshape.comparing.compare import compare
    from attnshape.comparing.outline import outline

    return compare(outline(old), outline(new))


Made = TypeVar("Made")


def _run(request: Request, settings: Settings, make: Callable[[Callable[[], Any]], Made]) -> Made:
    """Make something of a request, with the process as it was afterwards."""
    from attnshape.recording import Recording
    from attnshape.target.device import require_device
    from attnshape.tracing.process import unchanged

    if Recording.active:
        raise AttnshapeError(
            "attnshape was called inside a recording, which would see its runs", "call it after the block"
        )
    require_device(settings.device)
    with unchanged():
        try:
            return make(lambda: contextlib.redirect_stdout(sys.stderr))
        except SystemExit as error:
            raise AttnshapeError(
                f"{request.target} ended the run itself: sys.exit({error.code!r})", "give a part of it that doesn't"
            ) from None


def record(sizes: Mapping[str, int | str] | None = None) -> Recording:
    """Return a recording of the `with` block that it is entered for, which watches code that already runs.

    `sizes` are the numbers to match axes against: `dict(B=2, L=10, nh=4, hs=16, C="nh*hs")`. There is one run, so no
    axis is proved. Modules and tensors that variables hold when the block begins go by these variables' names. An
    exception goes through unchanged, and the trace up to it is there with its `failure`.

    Raises AttnshapeError where the sizes can't be.

    >>> import torch
    >>> query, key = torch.ones(2, 10, 64), torch.ones(2, 16, 64)
    >>> with record(sizes=dict(B=2, Lq=10, Lk=16, Dk=64)) as recording:
    ...     scores = query @ key.mT
    >>> step = recording.trace.steps[-1]
    >>> step.outputs[0].name, step.outputs[0].tensor.signature
    ('scores', 'B Lq Lk')
    """
    from attnshape.call import numbers, written
    from attnshape.recording import Recording
    from attnshape.sizes import resolve

    try:
        given, own = numbers(sizes or {})
        return Recording(resolve((), given, own), f"attnshape.record({written({'sizes': dict(sizes or {})})})")
    except AttnshapeError as error:
        raise in_python(error) from None
