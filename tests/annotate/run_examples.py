"""Runs an annotated and a plain example in a separate process; prints whether the hook is set and the results match."""

import json
import sys

import torch
from msgspec.structs import replace

from attnshape.options.spec import RunOptions
from attnshape.targets.find import find_target
from tests.examples.expectations import example_spec


def run(name: str, package: str) -> list[object]:
    """Return the bytes of each result at three sets of sizes, for the example in one of the two packages."""
    request = example_spec(name)
    target = find_target(replace(request, target=request.target.replace("examples/", f"{package}/")))
    sizes = target.sizes
    results: list[object] = []
    for factor in (1, 2, 3):
        small = {symbol: max(sizes.records[symbol].size // 2, 1) for symbol in sizes.independent}
        numbers = sizes.at({symbol: factor * size for symbol, size in small.items()})
        with torch.no_grad():
            result = target.build(numbers, RunOptions(seed=factor)).call()
        tensors = result if isinstance(result, tuple) else (result,)
        results.append([(str(tensor.dtype), tensor.shape, tensor.numpy().tobytes()) for tensor in tensors])
    return results


def main(name: str) -> None:
    plain, edited = run(name, "plain"), run(name, "edited")
    copy = sys.modules[f"edited.{name.removeprefix('examples/').removesuffix('.py')}"]
    hooked = "beartype" in type(copy.__loader__).__module__
    print(json.dumps({"hooked": hooked, "same": [bool(a) and a == b for a, b in zip(plain, edited, strict=True)]}))


if __name__ == "__main__":
    main(sys.argv[1])
