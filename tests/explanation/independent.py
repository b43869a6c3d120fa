"""The numbers that articles state, computed again by plain torch from the parameters and inputs of the same run.

Nothing here is of attnshape but the code under explanation, which is built again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.explanation.explained import built

Numbers = dict[tuple[str, str], float]
"""By topic and name."""


@dataclass
class Parts:
    """What one attention computes, all in float64: queries, keys and values as (…, tokens, features)."""

    query: Tensor
    key: Tensor
    value: Tensor
    hidden: Tensor
    """Where a key is hidden, in the shape of the scores."""
    fill: float = -math.inf
    factor: float | None = None
    heads: int | None = None
    """The axis of the heads."""
    tokens: Tensor | None = None
    """The vectors from which queries and keys are projected, if it is the same tensor."""
    dropped: tuple[Tensor, Tensor] | None = None
    """The weights before and after dropout in a training run."""


def _split(tensor: Tensor, heads: int) -> Tensor:
    return tensor.unflatten(-1, (heads, -1)).transpose(-3, -2)


def function() -> Parts:
    query, key, value = (tensor.double() for tensor in built("function").kwargs.values())
    hidden = torch.zeros(*query.shape[:-1], key.shape[-2], dtype=torch.bool)
    return Parts(query, key, value, hidden, factor=query.shape[-1] ** -0.5, heads=1)


def causal_module() -> Parts:
    run = built("causal_module")
    module, x = run.function, run.kwargs["x"]
    query, key, value = (_split(one.double(), module.n_head) for one in module.c_attn(x).detach().chunk(3, -1))
    length = x.shape[1]
    hidden = torch.ones(length, length).triu(1).bool().expand(*query.shape[:-1], length)
    factor = query.shape[-1] ** -0.5
    return Parts(
        query, key, value, hidden, factor=factor, heads=1, tokens=x.double(), dropped=_dropped("causal_module")
    )


def comprehension() -> Parts:
    run = built("comprehension")
    module = run.function
    query, key, value, mask = run.kwargs.values()
    projected = [
        _split(layer(one).detach().double(), module.h)
        for layer, one in zip(module.linears, (query, key, value), strict=False)
    ]
    scores = projected[0].shape[:-1]
    hidden = (mask == 0).unsqueeze(1).expand(*scores, key.shape[1])
    factor = projected[0].shape[-1] ** -0.5
    dropped = _dropped("comprehension")
    return Parts(*projected, hidden, -1e9, factor, heads=1, dropped=dropped)


def list_of_heads() -> Parts:
    run = built("list_of_heads")
    head, x = run.function.heads[0], run.kwargs["x"]
    query, key, value = (layer(x).detach().double() for layer in (head.query, head.key, head.value))
    hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool().expand(x.shape[0], -1, -1)
    return Parts(query, key, value, hidden, factor=query.shape[-1] ** -0.5, tokens=x.double())


def parallel_heads() -> Parts:
    run = built("parallel_heads")
    module, x = run.function, run.kwargs["x"]
    query, key, value = (
        _split(layer(x).detach().double(), module.heads) for layer in (module.to_q, module.to_k, module.to_v)
    )
    hidden = torch.zeros(*query.shape[:-1], key.shape[-2], dtype=torch.bool)
    return Parts(query, key, value, hidden, heads=1, tokens=x.double())


def _dropped(name: str) -> tuple[Tensor, Tensor]:
    """Return the weights before and after dropout in a training run with the seed of the run."""
    run = built(name, train=True)
    found: list[tuple[Tensor, Tensor]] = []
    dropouts = [module for module in run.function.modules() if isinstance(module, torch.nn.Dropout)]
    dropouts[0].register_forward_hook(lambda module, given, result: found.append((given[0].detach(), result.detach())))
    torch.manual_seed(0)
    run.function(**run.kwargs)
    before, after = found[0]
    return before.double(), after.double()


PARTS: dict[str, Callable[[], Parts]] = {
    "function": function,
    "causal_module": causal_module,
    "comprehension": comprehension,
    "list_of_heads": list_of_heads,
    "parallel_heads": parallel_heads,
}


def observed_numbers(name: str) -> Numbers:
    """Return every number of an article that rests on an observation."""
    parts = PARTS[name]()
    raw = parts.query @ parts.key.mT
    factor = parts.factor or 1.0
    scores = (raw * factor).masked_fill(parts.hidden, -math.inf)
    weights = scores.softmax(-1)
    numbers: Numbers = {}
    seen = (~parts.hidden).sum(-1)
    choice = seen > 1
    # projections
    if parts.tokens is not None:
        own = torch.arange(parts.tokens.shape[1])
        bare = (parts.tokens @ parts.tokens.mT).argmax(-1) == own
        numbers["projections", "tokens that score themselves highest without projections"] = float(bare.double().mean())
        projected = raw.argmax(-1) == own
        numbers["projections", "queries that score their own key highest"] = float(projected.double().mean())
    # heads
    if parts.heads is not None and name != "function":
        best = weights.argmax(-1)
        differ = (best != best[:, :1]).any(1)[choice.any(1)]
        numbers["heads", "queries whose heads prefer different keys"] = float(differ.double().mean())
    # scale
    if parts.factor is not None:
        width = parts.query.shape[-1]
        numbers["scale", "factor of the scores"] = parts.factor
        numbers["scale", "spread without the scale"] = float(raw[~parts.hidden].std(correction=0))
        numbers["scale", "spread with the scale"] = float((raw * factor)[~parts.hidden].std(correction=0))
        size = [float(one.square().mean().sqrt()) for one in (parts.query, parts.key)]
        numbers["scale", "expected spread without the scale"] = math.sqrt(width) * size[0] * size[1]
        for features in (width // 4, width // 2):
            part = parts.query[..., :features] @ parts.key[..., :features].mT
            spread = float(part[~parts.hidden].std(correction=0))
            numbers["scale", f"spread of sums over {features} features"] = spread
        unscaled = raw.masked_fill(parts.hidden, -math.inf).softmax(-1)
        for which, each in (("with", weights), ("without", unscaled)):
            numbers["scale", f"largest weight {which} the scale"] = float(each.amax(-1)[choice].mean())
            rows = each[choice]
            numbers["scale", f"slope {which} the scale"] = _mean_derivative(rows, parts.hidden[choice])
        slopes = [numbers["scale", f"slope {which} the scale"] for which in ("with", "without")]
        numbers["scale", "loss of slope without the scale"] = slopes[0] / slopes[1]
    # mask
    if bool(parts.hidden.any()):
        some = parts.hidden.any(-1) & ~parts.hidden.all(-1)
        everything = (raw * factor).softmax(-1)
        left = everything.masked_fill(parts.hidden, 0).sum(-1)[some]
        zero = (raw * factor).masked_fill(parts.hidden, 0).softmax(-1)
        filled = (raw * factor).masked_fill(parts.hidden, parts.fill).softmax(-1)
        numbers["mask", "hidden pairs"] = float(parts.hidden.double().mean())
        numbers["mask", "sum of the visible weights if masked afterwards"] = float(left.mean())
        numbers["mask", "least sum of the visible weights if masked afterwards"] = float(left.min())
        numbers["mask", "score of a hidden key"] = parts.fill
        numbers["mask", "largest weight of a hidden key"] = float(filled[parts.hidden & some.unsqueeze(-1)].max())
        kept = zero.masked_fill(~parts.hidden, 0).sum(-1)[some]
        numbers["mask", "weight of hidden keys with a fill of 0"] = float(kept.mean())
        numbers["operations", "weights that are exactly 0"] = float(parts.hidden.double().mean())
    # softmax
    visible = scores[~parts.hidden]
    numbers["softmax", "negative scores"] = float((visible < 0).double().mean())
    unweighted = scores.masked_fill(parts.hidden, 0.0).sum(-1)
    numbers["softmax", "least sum of the scores of a row"] = float(unweighted.min())
    numbers["softmax", "largest sum of the scores of a row"] = float(unweighted.max())
    filled = (raw * factor).masked_fill(parts.hidden, parts.fill)
    sums = filled.softmax(-2).sum(-1)
    sums = sums[sums.isfinite()]
    numbers["softmax", "least sum of a row along the queries"] = float(sums.min())
    numbers["softmax", "largest sum of a row along the queries"] = float(sums.max())
    numbers["softmax", "largest weight of a row"] = float(weights.amax(-1)[choice].mean())
    numbers["softmax", "weight of a key if all were equal"] = float((1 / seen[choice].double()).mean())
    # dropout
    if parts.dropped is not None:
        before, after = parts.dropped
        known = before > 0
        ratio = 1 / (1 - 0.1)
        numbers["dropout", "dropped weights"] = float((after[known] == 0).double().mean())
        numbers["dropout", "factor of the others"] = ratio
        rows = after.sum(-1)
        numbers["dropout", "sum of a row after dropout"] = float(rows.mean())
        numbers["dropout", "sum of a row without the factor"] = float(rows.mean()) / ratio
    # context
    context = weights @ parts.value
    plain = (~parts.hidden / seen.unsqueeze(-1).double()) @ parts.value
    numbers["context", "distance from the plain average"] = float((context - plain).norm() / context.norm())
    # output
    if name != "function":
        numbers["output", "features that change before the projection"] = parts.value.shape[-1]
        numbers["output", "features that change after the projection"] = 512
    return numbers


def _mean_derivative(rows: Tensor, hidden: Tensor) -> float:
    """Return the mean derivative of each visible weight by its own score, by autograd's Jacobian."""
    total, count = 0.0, 0
    for weights, gone in zip(rows, hidden, strict=True):
        scores = weights.log()
        jacobian = torch.autograd.functional.jacobian(lambda one: one.softmax(-1), scores[~gone])
        total += float(jacobian.diagonal().sum())
        count += int((~gone).sum())
    return total / count
