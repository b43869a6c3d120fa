"""Proposes rotations and position embeddings: what the module's own code makes, else constants."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator
from types import ModuleType

from attnshape.proposals import conventions
from attnshape.targets.evaluation import required_parameters

ROTARY = re.compile(
    r"position_embeddings?|rotary(_pos)?_emb\w*|rope\w*|freqs?(_cis|_complex)?|freqs_cos|freqs_sin|cos|sin|pos_emb\w*"
)
HALF_OF_ROTATION = re.compile(r"cos|sin|freqs_cos|freqs_sin")
SAME = ":…"
"""The description that the first tensor has, too."""
_POSITIONAL_CLASS = re.compile(r"\w*Pos(ition(al)?)?_?(Emb|Enc)\w*")
_ROTARY_CLASS = re.compile(r"\w*(Rotary|Rope|RoPE)\w*")
_POSITIONAL = re.compile(r"(position|pos)_?emb\w*")
_MAKES = re.compile(r"comp|make|build|get|pre")
_ROTARY_SIZES = {"dim": "Dk", "end": "L", "n_elem": "Dk"}


def rotations(name: str, module: ModuleType, init: str, first: str | None) -> Iterator[str]:
    """Yield rotations: made by the module's own class or function, else angles of zero."""
    config = re.match(r"\w+\(.*?\)(?=,|$)", init)
    part = {"freqs_cos": "[0]", "cos": "[0]", "freqs_sin": "[1]", "sin": "[1]"}.get(name, "")
    yield from (f"{made}{part}" for made in _made_by(_ROTARY_CLASS, module, config, init, first))
    stem = re.sub(r"_(cis|complex|cos|sin)$", "", name)
    makers = [key for key, one in vars(module).items() if inspect.isfunction(one) and _MAKES.search(key)]
    for key in makers:
        if not re.search(rf"{stem}|rope|rotary", key):
            continue
        needed = required_parameters(getattr(module, key))
        values = [
            (config[0] if config is not None else None)
            if conventions.is_config(one)
            else _ROTARY_SIZES.get(one) or conventions.size_of(one)
            for one in needed
        ]
        if all(values):
            made = f"{key}({', '.join(filter(None, values))}){part}"
            yield from (made, f"{made}[None]") if part else (made,)
    if HALF_OF_ROTATION.fullmatch(name):
        value = "ones" if "cos" in name else "zeros"
        yield f"torch.{value}(L, Dk)"
        yield f"torch.{value}(L, Dk//2)"
        yield f"torch.{value}(1, L, Dk)"
    else:
        if _POSITIONAL.fullmatch(name):
            yield SAME
            yield from _made_by(_POSITIONAL_CLASS, module, config, init, first)
            # from the last position before a token to the first one after it
            yield ":B 2*L-1 D"
            yield ":1 2*L-1 D"
        yield "(torch.ones(1, L, Dk), torch.zeros(1, L, Dk))"
        yield "(torch.ones(L, Dk), torch.zeros(L, Dk))"
        yield "torch.polar(torch.ones(L, Dk//2), torch.zeros(L, Dk//2))"
        yield "torch.polar(torch.ones(L, 1, Dk//2), torch.zeros(L, 1, Dk//2))"  # with an axis for the heads


def _made_by(
    pattern: re.Pattern[str], module: ModuleType, config: re.Match[str] | None, init: str, first: str | None
) -> Iterator[str]:
    """Yield what the module's own classes of such names make, if they take the configuration that the target gets."""
    kinds = [one for key, one in vars(module).items() if inspect.isclass(one) and pattern.fullmatch(key)]
    # of several, first the one whose name begins as that of the configuration: for texts, or for images
    for kind in sorted(kinds, key=lambda one: -_common_start(one.__name__, init)):
        takes_config = any(conventions.is_config(parameter) for parameter in required_parameters(kind))
        if takes_config and config is not None and first is not None:
            yield f"{kind.__name__}({config[0]})({_of_rotary(kind, first)})"


def _of_rotary(kind: type, first: str) -> str:
    """Return what a class of rotations is called with: the first tensor, for its type, positions, or one of them."""
    needed = required_parameters(getattr(kind, "forward", None) or kind)
    if len(needed) == 2:
        return "torch.arange(L)[None]" if conventions.has_positions(needed[-1]) else first
    return f"{first}, torch.arange(L)[None]"


def _common_start(one: str, other: str) -> int:
    """Return how many characters two texts begin with alike."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in pairs)
