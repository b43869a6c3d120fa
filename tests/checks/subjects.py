"""Benches, subjects and single runs of functions that tests write on the spot."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from attnshape.attention.flow import Flow
from attnshape.attention.subject import Subject
from attnshape.claims import parse_claims
from attnshape.inference.plan import Plan
from attnshape.replaying.bench import Bench, Budget, Run
from attnshape.replaying.replay import Address, Event, Replace, Replay
from attnshape.sizes import Sizes, own_letters, resolve
from attnshape.target.find import find_target
from attnshape.target.request import Placement, Request, Target
from attnshape.tracing.patience import Patience

SIZES = {"B": 5, "Hkv": 2, "H": 7, "L": 11, "Lq": 11, "Lk": 13, "Dk": 3, "Dv": 4, "W": 3}
"""Small and nearly all different; H is Hkv*G where G is given."""


def asked(
    function: Callable[..., Any] | str,
    inputs: Mapping[str, str],
    init: str | None = None,
    values: Mapping[str, Any] | None = None,
    given: Mapping[str, int] | None = None,
    own: tuple[str, ...] = (),
) -> tuple[Target, Sizes]:
    """Return a target and its sizes; inputs are described as in `{"x": "B L D"}`."""
    request = Request(
        function if isinstance(function, str) else "target",
        init=init,
        inputs=tuple(f"{name}: {text}" for name, text in inputs.items()),
        given=given or {},
        own=own_letters(own),
        callable=None if isinstance(function, str) else function,
        values=values or {},
    )
    target = find_target(request)
    return target, resolve(target.used, target.given, request.own)


def placement(dtype: torch.dtype = torch.float64, train: bool = False) -> Placement:
    return Placement(torch.device("cpu"), dtype, 0, train)


def bench_of(
    function: Callable[..., Any] | str,
    inputs: Mapping[str, str] | None = None,
    init: str | None = None,
    budget: Budget | None = None,
    train: bool = False,
    values: Mapping[str, Any] | None = None,
    **given: int,
) -> Bench:
    """Return a bench at SIZES, or at the sizes given."""
    target, sizes = asked(function, inputs or {}, init, values, given)
    chosen = {letter: {**SIZES, **given}.get(letter, number) for letter, number in sizes.numbers.items()}
    numbers = sizes.at({letter: chosen[letter] for letter in sizes.independent})
    return Bench(target, numbers, placement(train=train), Patience(), budget or Budget(60.0))


def subject_of(
    function: Callable[..., Any] | str,
    inputs: Mapping[str, str] | None = None,
    claims: tuple[str, ...] = (),
    init: str | None = None,
    values: Mapping[str, Any] | None = None,
    **given: int,
) -> Subject:
    """Return a subject at SIZES, or at the sizes given. Fails where the target does."""
    bench = bench_of(function, inputs, init, values=values, **given)
    if bench.base.error is not None:
        raise bench.base.error
    return Subject(bench, parse_claims(claims), None)


def replayed(
    function: Callable[..., Any], changed: Mapping[Address, Replace] | None = None, /, **tensors: Tensor
) -> Run:
    """Return one run of a function of tensors, which go by their names, without a bench around it."""
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    replay = Replay(list(tensors.items()), changed or {})
    with torch.no_grad(), replay:
        result = function(**tensors)
    results = (result,) if isinstance(result, Tensor) else tuple(result)
    returned = [("output", tensor.clone()) for tensor in results]
    return Run(replay.events, returned, before, tensors, {}, {}, None, results)


def flow_of(function: Callable[..., Any], /, *parameters: str, **tensors: Tensor) -> Flow:
    """Return what flows where in one run of a function; all tensors but the named parameters carry data."""
    run = replayed(function, **tensors)
    return Flow(run, set(tensors) - set(parameters))


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Return normal deviates, the same for a seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def named(run: Run, name: str) -> Event:
    """Return the one call of that name."""
    (found,) = [event for event in run.events if event.name == name]
    return found


def plan_of(target: Callable[..., Any], inputs: Mapping[str, str], constraints: tuple[Any, ...] = ()) -> Plan:
    return Plan(asked(target, inputs)[1], constraints)
