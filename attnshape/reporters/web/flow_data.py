"""The data flow of a trace as a page folds and unfolds it: all nodes, and the tree of modules that they are in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnshape.model.formatting import pluralize
from attnshape.reporters.flow import Flow

_MOST_PARTS = 40
"""How many parts a module has at most that is unfolded; more are folded into groups."""
_GROUP = 20


@dataclass
class _Fold:
    """A module, or a group of parts of one."""

    title: str
    parts: list[_Fold | int] = field(default_factory=list)
    """Folds, and nodes by their positions."""

    @property
    def nodes(self) -> list[int]:
        """All nodes in it."""
        return [place for part in self.parts for place in ([part] if isinstance(part, int) else part.nodes)]


def flow_data(flow: Flow, text: Callable[[str], int]) -> dict[str, Any]:
    """Return the nodes, the edges, and the folds, each with the fold around it, -1 for none.

    Args:
        flow: The data flow, with all its nodes.
        text: Returns the position of a text in the page's table of texts.
    """
    root = _Fold("")
    modules: dict[str, _Fold] = {"": root}
    for place, node in enumerate(flow.nodes):
        _module(node.module, modules).parts.append(place)
    _tidy(root, flow)
    folds: list[list[Any]] = []
    around = [-1] * len(flow.nodes)

    def number(fold: _Fold, parent: int) -> None:
        for part in fold.parts:
            if isinstance(part, int):
                around[part] = parent
                continue
            place = len(folds)
            folds.append([text(part.title), parent, text(_times(part, flow)), text(_does(part, flow))])
            number(part, place)

    number(root, -1)
    return {
        "nodes": [
            [text(node.title), text(node.does), node.kind, text(node.times), list(node.steps), around[place]]
            for place, node in enumerate(flow.nodes)
        ],
        "edges": [[edge.source, edge.target, text(edge.signature or "scalar")] for edge in flow.edges],
        "folds": folds,
    }


def _module(path: str, modules: dict[str, _Fold]) -> _Fold:
    """Return the fold of a module, within that of the module around it."""
    if path not in modules:
        modules[path] = _Fold(path)
        _module(path.rpartition(".")[0], modules).parts.append(modules[path])
    return modules[path]


def _tidy(fold: _Fold, flow: Flow) -> None:
    """Leave out folds of a single part, and fold what would be too many parts."""
    for part in fold.parts:
        if isinstance(part, _Fold):
            _tidy(part, flow)
    fold.parts = [part.parts[0] if isinstance(part, _Fold) and len(part.parts) == 1 else part for part in fold.parts]
    while len(fold.parts) > _MOST_PARTS:
        groups = [fold.parts[start : start + _GROUP] for start in range(0, len(fold.parts), _GROUP)]
        fold.parts = [_Fold(_range(group, flow), group) if len(group) > 1 else group[0] for group in groups]


def _range(parts: Sequence[_Fold | int], flow: Flow) -> str:
    first, last = (flow.nodes[part].title if isinstance(part, int) else part.title for part in (parts[0], parts[-1]))
    return f"{first.partition(' … ')[0]} … {last.rpartition(' … ')[2]}"


def _times(fold: _Fold, flow: Flow) -> str:
    """Return how often all of a fold is repeated; empty if its nodes differ in that."""
    times = {flow.nodes[place].times for place in fold.nodes}
    return times.pop() if len(times) == 1 else ""


def _does(fold: _Fold, flow: Flow) -> str:
    nodes = [flow.nodes[place] for place in fold.nodes]
    attention = ", with attention" if any(node.kind == "softmax" for node in nodes) else ""
    return pluralize(sum(len(node.steps) for node in nodes), "step") + attention
