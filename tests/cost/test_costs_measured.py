"""Costs of the catalog, the examples and library modules equal what is measured without attnshape, at three sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from attnshape.dims.expressions import parse_expression
from attnshape.model.trace import Cost, Quantity, Trace, loops_by_step
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.trace import trace_request
from attnshape.targets.builtin.registry import CATALOG
from attnshape.targets.find import find_target
from tests.cost.elementwise import measure_elementwise
from tests.cost.independent import measure, measure_peak, profile_peak
from tests.cost.measuring import Subject
from tests.examples.expectations import EXPECTED, example_spec
from tests.libraries.tracing_cases import HAND_WORKED, target_of
from tests.sampling import sampled

BY_HAND = {
    "multi-head": "8*B*L*D*D + 4*B*H*L*L*Dk + 6*B*H*L*L",
    "scaled-dot-product": "2*B*Lq*Lk*Dk + 2*B*Lq*Lk*Dv + 6*B*Lq*Lk",
    "single-head": "6*B*L*D*Dk + 4*B*L*L*Dk + 6*B*L*L",
    "multi-head-concat": "8*B*L*D*D + 4*B*H*L*L*Dk + 6*B*H*L*L",
    "average": "2*B*L*L*D + 5*B*L*L",
    "dot-product": "4*B*L*L*D + 5*B*L*L",
    "additive": "2*B*Lq*D*Dk + 2*B*Lk*D*Dk + 4*B*Lq*Lk*Dk + 5*B*Lq*Lk + 2*B*Lq*Lk*D",
    "multiplicative": "4*B*Lq*Lk*D + 5*B*Lq*Lk",
    "grouped-query": "4*B*L*D*D + 4*B*L*D*Hkv*Dk + 4*B*H*L*L*Dk + 6*B*H*L*L",
    "multi-query": "4*B*L*D*D + 4*B*L*D*Dk + 4*B*H*L*L*Dk + 6*B*H*L*L",
    # each of two rotations takes 3 for each feature, 5 for the angle, cosines and sines of each pair at each position,
    # and 3 for each pair's frequency
    "rotary-interleaved": "8*B*L*D*D + 6*B*H*L*Dk + 5*L*Dk + 3*Dk + 4*B*H*L*L*Dk + 6*B*H*L*L",
    "rotary-halves": "8*B*L*D*D + 6*B*H*L*Dk + 5*L*Dk + 3*Dk + 4*B*H*L*L*Dk + 6*B*H*L*L",
    "partial-rotary": "8*B*L*D*D + 4*B*L*D*H*Dr + 6*B*H*L*Dr + 5*L*Dr + 3*Dr"
    " + 2*B*H*L*L*(Dk+Dr) + 2*B*H*L*L*Dk + 6*B*H*L*L",
    # distances, 3 for each slope, their products, and one more for each score to add them
    "alibi": "8*B*L*D*D + L*L + 3*H + H*L*L + 4*B*H*L*L*Dk + 7*B*H*L*L",
    # the quotients and logarithms of the buckets; a bias, but no scale
    "relative-bias": "8*B*L*D*D + 4*L*L + 4*B*H*L*L*Dk + 6*B*H*L*L",
    # Nh*Nw windows of W*W tokens; a scale and a bias; the windows aren't contiguous, so that torch adds the biases of
    # three projections after their products, in operations of their own
    "shifted-window": "8*B*Nh*Nw*W*W*D*D + 3*B*Nh*Nw*W*W*D + 4*B*Nh*Nw*H*W*W*W*W*Dk + 7*B*Nh*Nw*H*W*W*W*W",
    "kv-cache": "8*B*L*D*D + 4*B*H*L*L*Dk + 6*B*H*L*L",
    "sliding-window": "8*B*L*D*D + 4*B*H*L*L*Dk + 6*B*H*L*L",
    "packed": "8*L*D*D + 4*H*L*L*Dk + 6*H*L*L",
    # the indexer's projections, its scores, and their relu, gate and sum
    "sparse": "2*B*L*D*Hi*Di + 2*B*L*D*Di + 2*B*L*D*Hi + 2*B*Hi*L*L*Di + 3*B*Hi*L*L"
    " + 8*B*L*D*D + 4*B*H*L*L*Dk + 6*B*H*L*L",
    # down and up to queries; down and up to keys and values; rotated keys, which all heads share, and output; rotations
    "latent": "2*B*L*Dcq*(2*D+H*Dr) + 6*B*L*D*Dc + 2*B*L*D*Dr + 2*B*L*D*D"
    " + 3*B*H*L*Dr + 3*B*L*Dr + 5*L*Dr + 3*Dr + 4*B*H*L*L*Dk + 2*B*H*L*L*Dr + 7*B*H*L*L",
    # queries are the same for the whole batch
    "latent-queries": "2*Lz*D*D + 4*B*Lk*Din*D + 2*B*Lz*D*D + 4*B*H*Lz*Lk*Dk + 6*B*H*Lz*Lk",
    # the sums of outer products, and their product with each query; features take 4, running sums 1, and divisors 2
    "linear": "4*B*H*L*Dk*Dv + 7*B*H*L*Dk + B*H*L*Dv",
    # of the state at each token: decay, recall (2), outer product, sum, and the query's product (2); then unit keys
    "gated-delta": "7*B*H*L*Dk*Dv + 2*B*H*L*Dv + 3*B*H*L*Dk + 2*B*H*L",
    # two scales, two softmaxes and their difference; the norm and its factor; two products, their exponentials, and λ
    "differential": "8*B*L*D*D + 4*B*H*L*L*Dk + 14*B*H*L*L + 5*B*H*L*Dk + 3*B*H*L + 2*Dk + 4",
    "sinks": "8*B*L*D*D + 4*B*H*L*L*Dk + B*H*L*L + 5*B*H*L*(L+1)",
    "gated-output": "10*B*L*D*D + 2*B*L*D + 4*B*H*L*L*Dk + 6*B*H*L*L",
    "qk-norm": "8*B*L*D*D + 8*B*H*L*Dk + 6*B*H*L + 4*B*H*L*L*Dk + 6*B*H*L*L",
    "softcap": "8*B*L*D*D + 4*B*H*L*L*Dk + 9*B*H*L*L",
    "multi-head-list": "2*B*L*H*Din*(2*Dk+Dv) + 2*B*H*L*L*(Dk+Dv) + 6*B*H*L*L + 2*B*L*H*Dv*Dout",
}
"""Projections, the products of scores and context, the scale, and 5 for each weight of a softmax."""
PAGE = Path(__file__).parents[2] / "docs" / "cost.md"
QUICK = {"torch_cases:mha_self", "torch_cases:fused", "labml_cases:cross", "transformers_text_cases:gpt2"}
MADE_OUTSIDE = {
    "efficient_cases:routing",
    "transformers_text_cases:deberta",
    "transformers_text_cases:longformer_global",
}
"""Modules with tensors that no step returns and no operator inside one makes, such as those of Python's numbers."""
UNSEEN = {"shifted-window"}
"""Mechanisms at whose peak the allocator has a copy that the dispatch mode isn't told of; torch's profiler sees it."""
LIBRARIES = [
    pytest.param(case, id=case, marks=[pytest.mark.libraries, *(() if case in QUICK else [pytest.mark.slow])])
    for case in HAND_WORKED
]


@cache
def costed(spec_of: str, case: str) -> tuple[TargetSpec, Trace]:
    if spec_of == "library":
        spec = TargetSpec(target_of(case), sizes=HAND_WORKED[case].sizes[0])
    else:
        spec = example_spec(case) if spec_of == "example" else TargetSpec(case)
    return spec, trace_request(spec, RunOptions(command=case, cost=True, grad=True))


def numbers(trace: Trace) -> dict[str, int]:
    return {symbol: size.size for symbol, size in trace.sizes.items()}


def places(spec: TargetSpec, trace: Trace, case: str) -> Iterator[Mapping[str, int]]:
    """Yield three sets of sizes, those of the trace first."""
    yield numbers(trace)
    if trace.held_out is not UNSET and trace.held_out.sizes:
        yield trace.held_out.sizes
    if case in HAND_WORKED:
        yield find_target(replace(spec, sizes=HAND_WORKED[case].sizes[1])).sizes.numbers
    else:
        sizes = find_target(spec).sizes
        yield sizes.at({symbol: sizes.records[symbol].size + (symbol == "B") for symbol in sizes.independent})


def value(quantity: Quantity | None, at: Mapping[str, int], trace: Trace) -> int | None:
    """Return what a trace says at its own sizes, and what its formula says at others; None if there is none."""
    if quantity is None:
        return None
    if at == numbers(trace):
        return quantity.value
    return parse_expression(quantity.expression).evaluate(at) if quantity.expression is not None else None


def new_bytes(trace: Trace, at: Mapping[str, int]) -> int | None:
    """Return the bytes of the new storages that steps return at some sizes, in every iteration of the loops.

    None if they have no formula at other sizes than those of the trace.
    """
    loops = loops_by_step(trace.loops)
    every = 0
    for step in trace.steps:
        around = loops.get(step.index, ())
        for output in step.outputs if step.index not in trace.composites else ():
            tensor = output.tensor
            if tensor.storage.kind != "new":
                continue
            if at == numbers(trace):
                every += tensor.bytes * math.prod(loop.count for loop in around)
                continue
            known = [(axis.known, axis.unexplained) for axis in tensor.axes] + [(loop.known, False) for loop in around]
            if not tensor.bytes or any(one != ("verified", False) for one in known):
                return None
            expressions = [axis.expression for axis in tensor.axes] + [loop.expression for loop in around]
            sizes = [parse_expression(expression).evaluate(at) for expression in expressions]
            every += tensor.bytes // math.prod(tensor.shape) * math.prod(sizes)
    return every


def assert_costs(spec: TargetSpec, trace: Trace, case: str) -> None:
    target = find_target(spec)
    assert trace.cost is not UNSET
    for at in places(spec, trace, case):
        truth = measure(target, at)
        assert value(trace.cost.products, at, trace) in (None, truth.products), at
        # two axes merge without a copy where one of them is 1
        if at == numbers(trace) or 1 not in at.values():
            assert value(trace.cost.saved, at, trace) in (None, truth.saved), at
            temporary, made = value(trace.cost.temporary, at, trace), new_bytes(trace, at)
            if temporary is not None and made is not None and case not in MADE_OUTSIDE:
                assert temporary + made == truth.made, at


def assert_totals_known(trace: Trace) -> None:
    assert trace.cost is not UNSET
    assert None not in (trace.cost.products, trace.cost.saved, trace.cost.temporary)


def known(trace: Trace) -> tuple[int, int]:
    """Return how many steps have every cost, and how many steps there are."""
    leaves = [step for step in trace.steps if step.index not in trace.composites]
    whole = [step for step in leaves if step.cost is not UNSET and None not in quantities(step.cost)]
    return len(whole), len(leaves)


def quantities(cost: Cost) -> tuple[Quantity | None, ...]:
    return cost.flops, cost.moved, cost.temporary, cost.saved


@pytest.mark.parametrize("name", sampled(CATALOG, ["multi-head", "grouped-query", "latent", "gated-delta"]))
def test_catalog_costs_what_is_measured(name: str) -> None:
    spec, trace = costed("catalog", name)
    assert_costs(spec, trace, name)
    assert_totals_known(trace)
    assert known(trace)[0] == known(trace)[1]


@pytest.mark.parametrize("name", sampled(CATALOG, ["multi-head", "grouped-query", "latent", "gated-delta"]))
def test_operations_of_a_mechanism_are_those_of_its_closed_formula(name: str) -> None:
    spec, trace = costed("catalog", name)
    assert trace.cost is not UNSET
    for at in places(spec, trace, name):
        assert value(trace.cost.flops, at, trace) == parse_expression(BY_HAND[name].replace(" ", "")).evaluate(at)


def assert_elementwise(spec: TargetSpec, trace: Trace, case: str) -> None:
    assert trace.cost is not UNSET
    target = find_target(spec)
    for at in places(spec, trace, case):
        flops, products = value(trace.cost.flops, at, trace), value(trace.cost.products, at, trace)
        assert flops is not None
        assert products is not None
        assert flops - products == measure_elementwise(target, at), at


@pytest.mark.parametrize("name", sampled(CATALOG, ["multi-head", "relative-bias", "gated-delta"]))
def test_operations_on_elements_of_the_catalog(name: str) -> None:
    assert_elementwise(*costed("catalog", name), name)


@pytest.mark.parametrize("name", EXPECTED)
def test_operations_on_elements_of_an_example(name: str) -> None:
    assert_elementwise(*costed("example", name), name)


@pytest.mark.parametrize("name", EXPECTED)
def test_example_costs_what_is_measured(name: str) -> None:
    spec, trace = costed("example", name)
    assert_costs(spec, trace, name)
    assert_totals_known(trace)
    assert known(trace)[0] == known(trace)[1]


@pytest.mark.parametrize("case", LIBRARIES)
def test_library_module_costs_what_is_measured(case: str) -> None:
    spec, trace = costed("library", case)
    assert_costs(spec, trace, case)
    whole, every = known(trace)
    assert whole >= 0.99 * every


def assert_peak(spec: TargetSpec, trace: Trace) -> None:
    """Assert that the peak is what was alive at once, but for the numbers that autograd saves."""
    live = measure_peak(find_target(spec), numbers(trace))
    assert trace.peak is not UNSET
    more = trace.peak.bytes - live.peak
    assert 0 <= more <= 8 * live.scalars or (more > 0 and spec.target in UNSEEN)


def assert_peak_profiled(spec: TargetSpec, trace: Trace, *more_sizes: Mapping[str, int]) -> None:
    """Assert that the peak is what torch's profiler sees, to the byte, also where one size is one more."""
    assert trace.peak is not UNSET
    target = find_target(spec)
    assert trace.peak.bytes == profile_peak(target, numbers(trace))
    first = "B" if "B" in target.sizes.independent else target.sizes.independent[0]
    for sizes in ({**spec.sizes, first: target.sizes.numbers[first] + 1}, *more_sizes):
        other = find_target(replace(spec, sizes=sizes))
        estimate = Subject(other, other.sizes, RunOptions(grad=True)).estimate()
        assert estimate.peak().bytes == profile_peak(other, other.sizes.numbers), sizes


@pytest.mark.parametrize("name", sampled(CATALOG, ["multi-head", "shifted-window"]))
def test_peak_of_the_catalog_is_what_is_allocated(name: str) -> None:
    assert_peak_profiled(*costed("catalog", name))


@pytest.mark.parametrize("name", sampled(EXPECTED, ["examples/gqa.py"]))
def test_peak_of_an_example_is_what_is_allocated(name: str) -> None:
    assert_peak_profiled(*costed("example", name))


@pytest.mark.parametrize("case", LIBRARIES)
def test_peak_of_a_library_module_is_what_is_allocated(case: str) -> None:
    assert_peak_profiled(*costed("library", case), HAND_WORKED[case].sizes[1])


@pytest.mark.parametrize("name", sampled(CATALOG, ["multi-head", "softcap", "linear"]))
def test_peak_of_the_catalog_is_what_is_alive(name: str) -> None:
    assert_peak(*costed("catalog", name))


@pytest.mark.parametrize("name", sampled(EXPECTED, ["examples/gqa.py", "examples/sdpa.py"]))
def test_peak_of_an_example_is_what_is_alive(name: str) -> None:
    assert_peak(*costed("example", name))


def test_documentation_has_the_peaks_of_multi_head_attention() -> None:
    spec, trace = costed("catalog", "multi-head")
    assert trace.peak is not UNSET
    live = measure_peak(find_target(spec), numbers(trace)).peak
    said = (PAGE.read_text(encoding="utf-8")).replace("\n  ", " ")
    assert f"it sees {live:,} bytes of the {trace.peak.bytes:,} of `attnshape trace multi-head --cost`" in said
    assert f"at the end, {trace.peak.parameters + trace.peak.inputs:,} bytes of parameters and input there" in said
