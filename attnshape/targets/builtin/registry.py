"""The built-in mechanisms: their names, their descriptions, and their cases.

Descriptions are read from the files' text: listing the catalog imports neither a mechanism nor torch.
"""

from __future__ import annotations

import ast
import importlib
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from attnshape.errors import AttnshapeError, did_you_mean

if TYPE_CHECKING:
    from attnshape.targets.builtin.cases import Case

CATALOG: dict[str, str] = {
    "multi-head": "multi_head",
    "scaled-dot-product": "scaled_dot_product",
    "single-head": "single_head",
    "multi-head-concat": "multi_head_concat",
    "average": "average",
    "dot-product": "dot_product",
    "additive": "additive",
    "multiplicative": "multiplicative",
    "grouped-query": "grouped_query",
    "multi-query": "multi_query",
    "rotary-interleaved": "rotary_interleaved",
    "rotary-halves": "rotary_halves",
    "partial-rotary": "partial_rotary",
    "alibi": "alibi",
    "relative-bias": "relative_bias",
    "shifted-window": "shifted_window",
    "kv-cache": "kv_cache",
    "sliding-window": "sliding_window",
    "packed": "packed",
    "sparse": "sparse",
    "latent": "latent",
    "latent-queries": "latent_queries",
    "linear": "linear",
    "gated-delta": "gated_delta",
    "differential": "differential",
    "sinks": "sinks",
    "gated-output": "gated_output",
    "qk-norm": "qk_norm",
    "softcap": "softcap",
    "multi-head-list": "multi_head_list",
}
"""Each mechanism's name, and its module in `mechanisms/`."""
DEFAULT = "multi-head"
MECHANISMS = Path(__file__).parent / "mechanisms"


@dataclass(frozen=True)
class CaseDescription:
    """A case of a mechanism: the size symbols that it takes, in order, and its options."""

    name: str
    summary: str
    sizes: tuple[str, ...]
    options: tuple[str, ...]


@dataclass(frozen=True)
class MechanismDescription:
    """A mechanism: its formula, its paper, its cases and its code."""

    name: str
    summary: str
    formula: str
    source: str
    cases: tuple[CaseDescription, ...]
    cached: tuple[str, ...]
    """The tensors that a decoder keeps of each token, by the names that `CACHED` in its file lists."""
    code: str

    def takes(self, symbol: str) -> bool:
        """Return whether a case takes a size, or one that determines it."""
        return any(concerns(symbol, case.sizes) for case in self.cases)


def concerns(symbol: str, sizes: Sequence[str]) -> bool:
    """Return whether a case with these sizes takes a size, or one that determines it: D = H*Dk.

    >>> concerns("Dk", ["B", "H", "L", "D"]), concerns("Dk", ["B", "L", "D"])
    (True, False)
    """
    pair = {"D": "Dk", "Dk": "D"}
    return symbol in sizes or (symbol in pair and pair[symbol] in sizes and "H" in sizes)


def describe(name: str) -> MechanismDescription:
    """Return the description of a mechanism. Raises AttnshapeError for an unknown name.

    >>> description = describe("multi-head")
    >>> [(case.name, " ".join(case.sizes)) for case in description.cases]
    [('self_attention', 'B H L D'), ('cross_attention', 'B H Lq Lk D')]
    """
    code = (MECHANISMS / f"{_module_name(name)}.py").read_text(encoding="utf-8")
    tree = ast.parse(code)
    doc = ast.get_docstring(tree) or ""
    return MechanismDescription(
        name=name,
        summary=doc.partition("\n")[0],
        formula=_section(doc, "Formula:"),
        source=_section(doc, "Source:"),
        cases=tuple(_case(node) for node in tree.body if isinstance(node, ast.FunctionDef) and _is_case(node)),
        cached=next((ast.literal_eval(node.value) for node in tree.body if _is_cached(node)), ()),
        code=code,
    )


def load(name: str) -> dict[str, Callable[..., Case]]:
    """Import a mechanism and return its cases by name, in file order. Raises AttnshapeError for an unknown name."""
    module = importlib.import_module(f"attnshape.targets.builtin.mechanisms.{_module_name(name)}")
    case = module.Case
    return {
        key: value
        for key, value in vars(module).items()
        if not key.startswith("_") and getattr(value, "__annotations__", {}).get("return") is case
    }


def _module_name(name: str) -> str:
    if name not in CATALOG:
        hint = did_you_mean(name, CATALOG, "the mechanisms are")
        raise AttnshapeError(f"there is no mechanism {name!r} in the catalog", hint)
    return CATALOG[name]


def _is_case(function: ast.FunctionDef) -> bool:
    return isinstance(function.returns, ast.Name) and function.returns.id == "Case" and function.name[0] != "_"


def _is_cached(node: ast.stmt) -> TypeGuard[ast.Assign]:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CACHED"


def _case(function: ast.FunctionDef) -> CaseDescription:
    return CaseDescription(
        name=function.name,
        summary=(ast.get_docstring(function) or "").partition("\n")[0],
        sizes=tuple(parameter.arg for parameter in function.args.args),
        options=tuple(parameter.arg for parameter in function.args.kwonlyargs),
    )


def _section(doc: str, heading: str) -> str:
    lines = doc.partition(f"\n{heading}\n")[2].splitlines()
    end = next((place for place, line in enumerate(lines) if line and not line[0].isspace()), len(lines))
    return textwrap.dedent("\n".join(lines[:end])).strip()
