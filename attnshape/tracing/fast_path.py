"""Compares a recorded run with torch's fast path, which some modules take only if no function mode is active."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from attnshape.errors import exception_text
from attnshape.runtime.isolation import isolated, seed_all, unattended
from attnshape.tracing.containers import tensor_paths
from attnshape.tracing.opaque import force_eager
from attnshape.tracing.runner import Runnable
from attnshape.tracing.tensor_access import NoNumbersError, numbers_of, shape_of, version_of

_WITH_FAST_PATH = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
Results = list[tuple[str, Tensor]]


class Comparison:
    """Keeps the result of a recorded run if a module with a fast path was called in evaluation mode."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._module: str | None = None
        self._results: Results = []

    def of(self, runnable: Runnable) -> Runnable:
        """Return a runnable that does the same and keeps its result for this comparison."""
        self._module, self._results = None, []
        return _Kept(**vars(runnable), comparison=self)

    def notes(self, build: Callable[[], Runnable]) -> list[str]:
        """Return a note if the fast path's results differ from the recorded run's, else nothing.

        `build` builds the same target again. It is run once more, and twice if the results differ.
        """
        results, self._results = self._results, []
        if not results or any(tensor.is_meta for _, tensor in results):
            return []
        try:
            difference = _difference(results, self._unrecorded(build))
        except Exception as error:  # noqa: BLE001 - whatever the code raises without the recorder
            difference = f"it fails with {type(error).__name__}: {exception_text(error).strip().partition(chr(10))[0]}"
        if difference is None or not self._repeats(results, build):
            return []
        return [f"untraced, torch runs {self._module} by a fast path that can't be seen: {difference}"]

    def run(self, runnable: Runnable) -> object:
        """Run a runnable, and keep its tensors if they are to be compared."""
        inputs = [tensor for _, tensor in runnable.named_inputs()]
        versions = list(map(version_of, inputs))
        handle = register_module_forward_pre_hook(self._see)
        try:
            result = runnable.function(*runnable.args, **runnable.kwargs)
        finally:
            handle.remove()
        # if it writes to given inputs, a second run would get others
        if self._module is not None and list(map(version_of, inputs)) == versions:
            self._results = list(tensor_paths("output", result))
        return result

    def _see(self, module: nn.Module, _: object) -> None:
        if self._module is None and not module.training and isinstance(module, _WITH_FAST_PATH):
            self._module = type(module).__name__ if torch.backends.mha.get_fastpath_enabled() else None

    def _unrecorded(self, build: Callable[[], Runnable]) -> Results:
        # the recorded run gave its warnings already, and ran compiled code eagerly
        with isolated(), unattended(), torch.no_grad(), force_eager(), warnings.catch_warnings(action="ignore"):
            runnable = build()
            seed_all(self._seed)
            return list(tensor_paths("output", runnable.call()))

    def _repeats(self, expected: Results, build: Callable[[], Runnable]) -> bool:
        """Return whether a run without the fast path repeats the results; else it doesn't explain the difference."""
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            return _difference(expected, self._unrecorded(build)) is None
        except Exception:  # noqa: BLE001 - whatever the code raises
            return False
        finally:
            torch.backends.mha.set_fastpath_enabled(True)


@dataclass
class _Kept(Runnable):
    comparison: Comparison | None = None

    def call(self) -> object:
        return self.comparison.run(self) if self.comparison is not None else super().call()


def _difference(expected: Results, found: Results) -> str | None:
    """Return how the results differ; None if they are the same bit by bit."""
    if [path for path, _ in expected] != [path for path, _ in found]:
        return f"it returns {_listed(found)}, not {_listed(expected)}"
    for (path, old), (_, new) in zip(expected, found, strict=True):
        if shape_of(old) != shape_of(new):
            return f"its {path} is {_shape(new)}, not {_shape(old)}"
    pairs = []
    for (_, old), (_, new) in zip(expected, found, strict=True):
        with contextlib.suppress(NoNumbersError):  # what can't be compared differs in no number that is known
            pairs.append((numbers_of(old), numbers_of(new)))
    if all(torch.equal(old, new) or _both_nan(old, new) for old, new in pairs):
        return None
    if any(not torch.equal(old.isnan(), new.isnan()) for old, new in pairs):
        return "its results are NaN at other places than these"
    wide = [torch.complex128 if old.is_complex() else torch.float64 for old, _ in pairs]
    differences = [(old.to(dtype) - new.to(dtype)).abs() for (old, new), dtype in zip(pairs, wide, strict=True)]
    off = max(float(difference.nan_to_num(0.0).max()) for difference in differences if difference.numel())
    return f"its results differ from these by up to {off:.2g}"


def _both_nan(old: Tensor, new: Tensor) -> bool:
    return torch.equal(old.isnan(), new.isnan()) and torch.equal(old.nan_to_num(0.0), new.nan_to_num(0.0))


def _listed(results: Results) -> str:
    return ", ".join(path for path, _ in results) or "no tensors"


def _shape(tensor: Tensor) -> str:
    return "nested" if tensor.is_nested else " ".join(map(str, shape_of(tensor))) or "scalar"
