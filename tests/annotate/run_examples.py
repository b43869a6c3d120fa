"""Runs annotated examples beside plain ones, in a process of its own: is the hook set, are the bits the same."""

import json
import sys
from dataclasses import replace

import torch

from attnshape.sizes import resolve
from attnshape.target.find import find_target
from attnshape.target.request import Placement
from tests.examples.expectations import asked


def main() -> None:
    said = {}
    for name in json.load(sys.stdin):
        results: dict[str, list[object]] = {"plain": [], "bed": []}
        for package, found in results.items():
            request = asked(name)
            target = find_target(replace(request, target=request.target.replace("examples/", f"{package}/")))
            sizes = resolve(target.used, target.given, request.own)
            for factor in (1, 2, 3):
                small = {letter: max(sizes.records[letter].size // 2, 1) for letter in sizes.independent}
                numbers = sizes.at({letter: factor * size for letter, size in small.items()})
                with torch.no_grad():
                    result = target.build(numbers, Placement(torch.device("cpu"), torch.float32, factor, False)).call()
                tensors = result if isinstance(result, tuple) else (result,)
                found.append([(str(one.dtype), one.shape, one.numpy().tobytes()) for one in tensors])
        copy = sys.modules[f"bed.{name.removeprefix('examples/').removesuffix('.py')}"]
        said[name] = {
            "hooked": "beartype" in type(copy.__loader__).__module__,
            "same": [bool(a) and a == b for a, b in zip(results["plain"], results["bed"], strict=True)],
        }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
