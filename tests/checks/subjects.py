"""Experiments, subjects and single runs of functions that the tests define."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from attnshape.checks.attention.cores import RunGraph
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Budget, Experiment, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Replace, Replay, ReplayedCall
from attnshape.dims.sizes import Sizes
from attnshape.inference.plan import Plan
from attnshape.options.claims import parse_claims
from attnshape.options.spec import DtypeName, RunOptions, TargetSpec, parse_dims
from attnshape.runtime.time_limit import TimeLimit
from attnshape.targets.find import find_target
from attnshape.targets.target import Target

SIZES = {"B": 5, "Hkv": 2, "H": 7, "L": 11, "Lq": 11, "Lk": 13, "Dk": 3, "Dv": 4, "W": 3}
"""Small and nearly all different; H is Hkv*G if G is given."""


def target_and_sizes(
    function: Callable[..., Any] | str,
    inputs: Mapping[str, str],
    init: str | None = None,
    values: Mapping[str, Any] | None = None,
    given: Mapping[str, int] | None = None,
    own: tuple[str, ...] = (),
) -> tuple[Target, Sizes]:
    """Return a target and its sizes; inputs are described by dims strings such as `{"x": "B L D"}`."""
    request = TargetSpec(
        function if isinstance(function, str) else "target",
        init=init,
        inputs=inputs,
        sizes={**(given or {}), **parse_dims(own)},
        callable=None if isinstance(function, str) else function,
        values=values or {},
    )
    target = find_target(request)
    return target, target.sizes


def run_options(dtype: DtypeName = "float64", train: bool = False) -> RunOptions:
    return RunOptions(dtype=dtype, train=train)


def experiment_of(
    function: Callable[..., Any] | str,
    inputs: Mapping[str, str] | None = None,
    init: str | None = None,
    budget: Budget | None = None,
    train: bool = False,
    values: Mapping[str, Any] | None = None,
    **given: int,
) -> Experiment:
    """Return an experiment at SIZES, or at the given sizes."""
    target, sizes = target_and_sizes(function, inputs or {}, init, values, given)
    chosen = {symbol: {**SIZES, **given}.get(symbol, number) for symbol, number in sizes.numbers.items()}
    numbers = sizes.at({symbol: chosen[symbol] for symbol in sizes.independent})
    return Experiment(target, numbers, run_options(train=train), TimeLimit(), budget or Budget(300.0))


def subject_of(
    function: Callable[..., Any] | str,
    inputs: Mapping[str, str] | None = None,
    claims: tuple[str, ...] = (),
    init: str | None = None,
    values: Mapping[str, Any] | None = None,
    **given: int,
) -> Subject:
    """Return a subject at SIZES, or at the given sizes; raise the target's error if it fails."""
    experiment = experiment_of(function, inputs, init, values=values, **given)
    if experiment.base.error is not None:
        raise experiment.base.error
    return Subject(experiment, parse_claims(claims), None)


def replayed(
    function: Callable[..., Any], changed: Mapping[OutputRef, Replace] | None = None, /, **tensors: Tensor
) -> ReplayRun:
    """Run a function of named tensors once, without an experiment around it."""
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    replay = Replay(list(tensors.items()), changed or {})
    with torch.no_grad(), replay:
        result = function(**tensors)
    results = (result,) if isinstance(result, Tensor) else tuple(result)
    returned = [("output", tensor.clone()) for tensor in results]
    return ReplayRun(replay.events, returned, before, tensors, {}, {}, None, results)


def flow_of(function: Callable[..., Any], /, *parameters: str, **tensors: Tensor) -> RunGraph:
    """Return the data flow of one run of a function; all tensors but the named parameters carry data."""
    run = replayed(function, **tensors)
    return RunGraph(run, set(tensors) - set(parameters))


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Return normally distributed numbers, the same for each seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def named(run: ReplayRun, name: str) -> ReplayedCall:
    """Return the one call of that name."""
    (found,) = [event for event in run.events if event.name == name]
    return found


def plan_of(target: Callable[..., Any], inputs: Mapping[str, str], constraints: tuple[Any, ...] = ()) -> Plan:
    return Plan(target_and_sizes(target, inputs)[1], constraints)
