"""The mutants themselves: right code matches an independent reference, and wrong code differs only in values."""

import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from attnshape.checks.rules.pages import codes
from attnshape.comments.verify import CODES as WRITTEN
from tests.mutants.cases import PAIRS, ROOT, UNFOUND, UNUSUAL, Pair, Unusual, function, wrong_line
from tests.sampling import sampled

SEEDS = (0, 1, 2)
PRIMES = {
    "B": 5,
    "H": 7,
    "Hkv": 3,
    "G": 2,
    "L": 11,
    "Lq": 17,
    "Lk": 19,
    "Lp": 11,
    "D": 91,
    "Dk": 13,
    "Dv": 23,
    "N": 3,
    "K": 3,
    "V": 29,
    "W": 3,
    "Nh": 2,
    "Nw": 5,
    "rows": 5,
    "columns": 3,
    "n_head": 7,
    "C": 31,
    "Dn": 37,
    "R": 2,
    "P": 41,
    "T": 43,
    "S": 47,
    "Np": 11,
    "Ps": 17,
    "E": 53,
}
CODES = sorted(({pair.code for pair in PAIRS} | set(codes())) - set(WRITTEN))


EVERY = (*PAIRS, *UNFOUND)

each_pair = pytest.mark.parametrize("pair", sampled(EVERY, [str(pair) for pair in EVERY[::8]]))


def built(
    entry: Pair | Unusual, case: str, sizes: dict[str, int], seed: int = 0
) -> tuple[Any, tuple[Any, ...], Any, Any]:
    torch.manual_seed(seed)
    called, args, *rest = function(entry, case)(**sizes)
    if isinstance(called, nn.Module):
        called.eval()
    kwargs, claims = [*rest, *({}, [])[len(rest) :]]
    return called, tuple(args), kwargs, list(claims)


def in_dtype(value: Any, dtype: torch.dtype) -> Any:
    """Return a copy with all floating-point tensors in float64, or another type."""
    if isinstance(value, Tensor):
        return value.detach().clone().to(dtype) if value.is_floating_point() else value.clone()
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).to(dtype)
    if isinstance(value, Mapping):
        return {key: in_dtype(item, dtype) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(in_dtype(item, dtype) for item in value)
    return value


in_float64 = partial(in_dtype, dtype=torch.float64)
in_float16 = partial(in_dtype, dtype=torch.float16)


def first(output: Any) -> Tensor:
    while not isinstance(output, Tensor):
        output = next(iter(output.values())) if isinstance(output, Mapping) else output[0]
    return output


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def called_with_copies(called: Any, args: Any, kwargs: Any) -> Tensor:
    with torch.no_grad():
        return first(called(*copy.deepcopy(args), **copy.deepcopy(kwargs)))


def reversed_batch(value: Any) -> Any:
    """Return arguments whose tensors have the elements along their first axis in the opposite order."""
    return tree_map_only(Tensor, lambda tensor: tensor.flip(0) if tensor.ndim else tensor, value)


def observed(called: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Return the outputs of several calls, and the arguments and the state after them.

    Two calls are alike, one has other values, and modules are also called in training mode and in eval mode again.
    """
    args, kwargs = copy.deepcopy(args), copy.deepcopy(kwargs)
    with torch.no_grad():
        outputs = [first(called(*args, **kwargs)).clone() for _ in range(2)]
        outputs.append(first(called(*reversed_batch(args), **reversed_batch(kwargs))).clone())
        for train in (True, False) if isinstance(called, nn.Module) and called.training is False else ():
            torch.manual_seed(0)
            outputs.append(first(called.train(train)(*args, **kwargs)).clone())
    state = list(called.state_dict().values()) if isinstance(called, nn.Module) else []
    return [*outputs, *tensors(args), *tensors(kwargs), *state]


def gradients(called: Any, args: Any) -> dict[str, Tensor]:
    """Return the gradients of the parameters and the arguments, without those that get none."""
    leaves = [tensor.clone().requires_grad_(tensor.is_floating_point()) for tensor in args]
    first(called(*leaves)).square().sum().backward()  # type: ignore[no-untyped-call]
    every = {str(place): leaf for place, leaf in enumerate(leaves)}
    every |= dict(called.named_parameters()) if isinstance(called, nn.Module) else {}
    return {name: tensor.grad for name, tensor in every.items() if tensor.grad is not None}


def distance(one: Tensor, other: Tensor) -> float:
    if not one.numel():
        return 0.0
    return (one.double() - other.double()).abs().nan_to_num(nan=0.0 if one.equal(other) else 1.0).max().item()


def assert_matches_reference(
    entry: Pair | Unusual, case: str, reference: str, sizes: dict[str, int], seed: int
) -> None:
    called, args, kwargs, _ = built(entry, case, sizes, seed)
    called, args, kwargs = in_float64(called), in_float64(args), in_float64(kwargs)
    expected = first(function(entry, reference)(in_float64(called), *copy.deepcopy(args), **copy.deepcopy(kwargs)))
    output = called_with_copies(called, args, kwargs)
    assert output.dtype == torch.float64
    torch.testing.assert_close(output, expected.detach(), rtol=1e-9, atol=1e-11)


@each_pair
def test_right_version_matches_its_reference(pair: Pair) -> None:
    for sizes in pair.sizes:
        for seed in SEEDS:
            assert_matches_reference(pair, pair.right, pair.reference, sizes, seed)


@each_pair
def test_wrong_version_differs_only_in_values(pair: Pair) -> None:
    for sizes in pair.sizes:
        for seed in SEEDS:
            wrong, wrong_args, wrong_kwargs, wrong_claims = built(pair, pair.wrong, sizes, seed)
            right, args, kwargs, claims = built(pair, pair.right, sizes, seed)
            assert wrong_claims == claims
            assert equal(list(tensors(wrong_args)), list(tensors(args)))
            assert list(wrong_kwargs) == list(kwargs)
            assert equal(list(tensors(wrong_kwargs)), list(tensors(kwargs)))
            assert isinstance(wrong, nn.Module) == isinstance(right, nn.Module)
            if isinstance(right, nn.Module) and pair.code != "AS811":  # there the wrong version knows less of its state
                assert list(wrong.state_dict()) == list(right.state_dict())
                states = zip(wrong.state_dict().values(), right.state_dict().values(), strict=True)
                # parameters may start at zero in the wrong version only
                known = [(one, other) for one, other in states if pair.code != "AS808" or bool(one.any())]
                assert equal([one for one, _ in known], [other for _, other in known])
            if pair.code == "AS208":  # right in every other type
                wrong, wrong_args, right, args = map(in_float16, (wrong, wrong_args, right, args))
            if pair.code == "AS306" and "keep=keep" in claims:  # right where the first keys are visible
                wrong_args, args = ((*given[:-1], given[-1].logical_not()) for given in (wrong_args, args))
            if pair.code == "AS908" and "Lp" in sizes:  # right for several tokens
                wrong_args, args = ((given[0][:, -1:], *given[1:]) for given in (wrong_args, args))
            torch.use_deterministic_algorithms(pair.code == "AS308")  # fills memory that is only allocated with NaN
            output, *after = observed(wrong, wrong_args, wrong_kwargs)
            torch.use_deterministic_algorithms(False)
            expected, *expected_after = observed(right, args, kwargs)
            assert output.shape == expected.shape
            assert output.dtype == expected.dtype
            assert not expected.isnan().any()
            difference = distance(output, expected)
            if pair.code.startswith("AS9") or pair.code == "AS816":  # right in eval mode
                difference = max([difference, *(distance(a, b) for a, b in zip(after, expected_after, strict=True))])
            if pair.code in ("AS309", "AS808"):
                slopes, expected_slopes = gradients(wrong, args), gradients(right, args)
                assert not any(slope.isnan().any() for slope in expected_slopes.values())
                difference = float(not equal(list(slopes.values()), list(expected_slopes.values())))
            if pair.code in ("AS810", "AS811"):
                difference = abs(len(list(wrong.parameters())) - len(list(right.parameters())))
            assert difference > 1e-6, f"{sizes}, seed {seed}: {difference}"


@pytest.mark.parametrize("one", [unusual for unusual in UNUSUAL if unusual.reference], ids=str)
def test_unusual_code_matches_its_reference(one: Unusual) -> None:
    assert one.reference is not None
    for sizes in one.sizes:
        for seed in SEEDS:
            assert_matches_reference(one, one.case, one.reference, sizes, seed)


@pytest.mark.parametrize("one", [unusual for unusual in UNUSUAL if not unusual.reference], ids=str)
def test_unusual_code_runs(one: Unusual) -> None:
    for sizes in one.sizes:
        called, args, kwargs, _ = built(one, one.case, sizes)
        assert called_with_copies(called, args, kwargs).isfinite().all()


@pytest.mark.parametrize("entry", (*EVERY, *UNUSUAL), ids=str)
def test_case_runs_at_prime_sizes(entry: Pair | Unusual) -> None:
    sizes = {symbol: PRIMES[symbol] for symbol in entry.sizes[0]}
    if all(given.get("Dk", 1) % 2 == 0 for given in entry.sizes):
        sizes["Dk"] *= 2  # rotary embeddings need an even width
    for case in (entry.right, entry.wrong) if isinstance(entry, Pair) else (entry.case,):
        called, args, kwargs, _ = built(entry, case, sizes)
        called_with_copies(called, args, kwargs)


def test_markers_name_each_pair_once() -> None:
    marked = Counter(
        (path.relative_to(ROOT).as_posix(), line.rpartition("# wrong: ")[2])
        for path in (Path(__file__).parent / "pairs").glob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "# wrong: " in line
    )
    expected = Counter((pair.file, f"{pair.code} {pair.name}") for pair in PAIRS if wrong_line(pair) is not None)
    assert marked == expected


def test_names_and_sizes_are_unique() -> None:
    names = Counter(str(entry) for entry in (*EVERY, *UNUSUAL))
    assert [name for name, count in names.items() if count > 1] == []
    for pair in EVERY:
        assert len(pair.sizes) == 3, pair
        assert all(list(sizes) == list(pair.sizes[0]) for sizes in pair.sizes), pair
    for entry in (*EVERY, *UNUSUAL):
        assert entry.sizes, entry
        for sizes in entry.sizes:
            assert len(set(sizes.values())) == len(sizes), f"{entry}: {sizes} has a number twice"


@pytest.mark.parametrize("code", CODES)
def test_code_has_three_pairs(code: str) -> None:
    assert sum(pair.code == code for pair in PAIRS) >= 3
