"""Find repeated steps and fold them: loops whose number of iterations follows from the sizes, and equal blocks."""

from __future__ import annotations

import dataclasses
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attnshape.model.trace import Reference
from attnshape.tracing.passes import renumber
from attnshape.tracing.raw import RawLoop, RawStep, RawTrace

_MOST_STEPS = 20_000
_SMALLEST_LAYER = 4
"""How many steps a module of a list has that is folded with those equal to it."""
_FEWEST_ITERATIONS = 4
"""How often other steps are repeated that are folded."""
Key = tuple[object, ...]


@dataclass(frozen=True)
class _Loop:
    """Steps that repeat one after the other."""

    body: tuple[_Node, ...]


_Node = Key | _Loop
_Path = tuple[int, ...]
"""Which loop: its place among the nodes, then that of each loop inside."""


@dataclass(frozen=True)
class _Iterations:
    """The iterations of one loop in one run: where each begins and ends, and the loops inside of it."""

    path: _Path
    spans: tuple[tuple[int, int], ...]
    inner: tuple[tuple[_Iterations, ...], ...]


@dataclass(frozen=True)
class Folding:
    """The loops of a target whose number of iterations follows from the sizes."""

    nodes: tuple[_Node, ...]
    varying: frozenset[_Path]
    splits: tuple[int, ...] = ()
    """The folded run's steps that return as many tensors as a size says, such as `x.split(W)`."""

    def fold(self, raw: RawTrace) -> RawTrace:
        """Return the run with one iteration of each such loop; the run itself if it takes different steps."""
        loops = _matched(self.nodes, [_key(raw.steps, step) for step in raw.steps])
        if loops is None:
            return raw
        return _with_first_outputs(_Folder(raw, self.varying, loops).folded(), self.splits)


def find_folding(runs: Sequence[RawTrace]) -> Folding | None:
    """Return the loops in whose number of iterations alone the runs differ; None if they differ in more."""
    if any(run.failure is not None or len(run.steps) > _MOST_STEPS for run in runs):
        return None
    keys = [[_key(run.steps, step) for step in run.steps] for run in runs]
    for nodes in (tuple(_nodes(of_run)) for of_run in keys):
        matches = [loops for other in keys if (loops := _matched(nodes, other)) is not None]
        if len(matches) == len(keys):
            counts = [dict(_counts(loops)) for loops in matches]
            varying = {path for path in counts[0] if len({count.get(path) for count in counts}) > 1}
            folding = Folding(nodes, frozenset(varying))
            steps = enumerate(zip(*(folding.fold(run).steps for run in runs), strict=True))
            # the steps that return more tensors in one run than in another
            splits = tuple(place for place, same in steps if len({len(step.outputs) for step in same}) > 1)
            if varying or splits:
                return dataclasses.replace(folding, splits=splits)
    return None


def fold_equal_blocks(runs: Sequence[RawTrace]) -> list[RawTrace]:
    """Return runs of the same steps with one of each series of equal blocks, such as a model's layers.

    Blocks are equal if in each of the runs they take the same steps with the same arguments and return tensors of the
    same names, shapes, strides and dtypes, and if they read the same results of earlier steps, such as a mask, or what
    the block before them returned. Whether their number follows from the sizes doesn't matter.
    """
    first = runs[0]
    if len(first.steps) > _MOST_STEPS:
        return list(runs)
    facts = [_facts(run) for run in runs]
    keys: list[Key] = [
        (*_key(first.steps, step), *(of_run[place] for of_run in facts)) for place, step in enumerate(first.steps)
    ]
    found = _loops_in(keys)
    read = _read_outside(first, found)
    of_step = _blocks(first, found)
    blocks = [of_step.get(place) for place in range(len(keys))]
    begins = frozenset(place for place, block in enumerate(blocks) if block and block != blocks[place - 1])
    loops = _loops_in([(*key, *read.get(place, ())) for place, key in enumerate(keys)], begins)
    worth = frozenset(
        loop.path
        for loop in _with_inner(loops)
        if len(loop.spans) >= _FEWEST_ITERATIONS
        or (loop.spans[0][1] - loop.spans[0][0] >= _SMALLEST_LAYER and _modules(first, loop) is not None)
    )
    return [_Folder(run, worth, loops).folded() for run in runs] if worth else list(runs)


def _loops_in(keys: Sequence[Key], begins: frozenset[int] = frozenset()) -> tuple[_Iterations, ...]:
    loops = _matched(tuple(_nodes(keys, begins)), keys)
    assert loops is not None  # the nodes are those of these steps
    return loops


def _blocks(run: RawTrace, loops: Sequence[_Iterations]) -> dict[int, tuple[object, int]]:
    """Return which block each step is in: which module of a list that a loop is over, else which iteration."""
    blocks: dict[int, tuple[object, int]] = {}
    lists: dict[str, int] = {}
    for loop in loops:
        if (modules := _modules(run, loop)) is not None:
            lists[modules[0].rpartition(".")[0]] = loop.spans[-1][1]
            continue
        for number, span in enumerate(loop.spans):
            blocks |= dict.fromkeys(range(*span), (loop.path, number))
    for path, end in lists.items():
        pattern = re.compile(rf"{re.escape(path)}\.?([0-9]+)(?=\.|$)")
        block: tuple[object, int] | None = None
        for place, step in enumerate(run.steps):
            if found := pattern.match(step.module or ""):
                blocks[place] = block = path, int(found[1])
            elif block is not None and place < end:  # between two modules of the list
                blocks[place] = block
    return blocks


def _read_outside(run: RawTrace, loops: Sequence[_Iterations]) -> dict[int, Key]:
    """Return, for each step in a block, which results from outside of the block it reads.

    That is a step or an input that several blocks read, or how many blocks ago the result was made. What only the first
    block reads stands for what the others get from the block before them.
    """
    blocks = _blocks(run, loops)
    first: dict[object, int] = {}
    for path, number in blocks.values():
        first[path] = min(number, first.get(path, number))
    outside = {
        place: [
            source
            for reference in run.steps[place].operands
            if (source := reference.step - 1 if reference.step is not None else reference.input) is not None
            and (isinstance(source, str) or blocks.get(source) != block)
        ]
        for place, block in blocks.items()
    }
    readers: dict[tuple[object, int | str], set[int]] = {}
    for place, made in outside.items():
        path, number = blocks[place]
        for one in made:
            readers.setdefault((path, one), set()).add(number)

    def described(place: int, made: int | str) -> Key:
        path, number = blocks[place]
        if len(readers[path, made]) > 1:
            return ("shared", made)
        inside, earlier = blocks.get(made, (None, 0)) if isinstance(made, int) else (None, 0)
        if inside == path:
            return ("blocks ago", number - earlier)
        if isinstance(inside, tuple):  # each block has its own of what a loop made before
            return ("of a loop", inside)
        return ("blocks ago", 1) if number == first[path] else ("shared", made)

    return {place: tuple(described(place, one) for one in made) for place, made in outside.items()}


def _facts(run: RawTrace) -> list[Key]:
    """Return what equal blocks have in common, for each step."""
    counts: dict[int, list[tuple[int, int]]] = {}
    for loop in run.loops:
        counts.setdefault(loop.begin, []).append((loop.end - loop.begin, loop.count))
    return [
        (
            step.location.expression if step.location else None,
            step.opaque,
            step.arguments,
            tuple(_without_numbers(one.parameter or "") for one in step.operands),
            tuple(
                (
                    output.name if not output.named_by_use else None,
                    tensor.shape,
                    tensor.stride,
                    tensor.dtype,
                    tensor.kind,
                    tensor.layout,
                )
                for output in step.outputs
                for tensor in [output.tensor]
            ),
            tuple(counts.get(place, ())),
        )
        for place, step in enumerate(run.steps)
    ]


def _with_inner(loops: Sequence[_Iterations]) -> Iterator[_Iterations]:
    """Yield each loop, and those inside of its first iteration."""
    for loop in loops:
        yield loop
        yield from _with_inner(loop.inner[0])


def _with_first_outputs(raw: RawTrace, splits: Sequence[int]) -> RawTrace:
    """Return the run with only the first of the tensors that these steps return."""
    counts = [RawLoop(place, place + 1, len(raw.steps[place].outputs)) for place in splits]
    for place in splits:
        raw.steps[place].outputs = raw.steps[place].outputs[:1]

    def move(reference: Reference, _: int | None) -> Reference:
        return Reference(step=reference.step) if (reference.step or 0) - 1 in splits else reference

    return dataclasses.replace(renumber(raw, dict(enumerate(raw.steps)), move), loops=[*raw.loops, *counts])


def _key(steps: Sequence[RawStep], step: RawStep) -> Key:
    """Return what identifies a step in all iterations: the modules of a list count as one."""
    depth, parent = 0, step.parent
    while parent is not None:
        depth, parent = depth + 1, steps[parent].parent
    return (*place_in_layer(step), depth)


def place_in_layer(step: RawStep) -> Key:
    """Return what identifies a step in every layer of a model: all modules of a list count as one."""
    *place, module = step.key
    return (*place, _without_numbers(module or ""))


def _parts(path: str) -> list[str]:
    return path.split(".")


def _without_numbers(path: str) -> str:
    return re.sub(r"\d+", "#", path)


def _nodes(keys: Sequence[Key], begins: frozenset[int] = frozenset()) -> Iterator[_Node]:
    """Yield the nodes of steps; an iteration that is in several blocks begins at one of the places in `begins`."""
    places: dict[Key, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    place = 0
    while place < len(keys):
        # the longest loop is the outermost; a shorter one's further iterations are no loops of their own
        length, end = 0, place
        same = places[keys[place]]
        for again in same[bisect_right(same, place) :]:
            if again >= end and keys[place:again] == keys[again : 2 * again - place]:
                length, end = again - place, again
                while keys[place : place + length] == keys[end : end + length]:
                    end += length
        if length and place not in begins and any(inner in begins for inner in range(place, place + length)):
            length = 0
        if length:
            inside = frozenset(inner - place for inner in begins if place <= inner < place + length)
            yield _Loop(tuple(_nodes(keys[place : place + length], inside)))
            place = end
        else:
            yield keys[place]
            place += 1


def _matched(nodes: Sequence[_Node], keys: Sequence[Key]) -> tuple[_Iterations, ...] | None:
    match = _match(nodes, keys, 0, ())
    return match[1] if match is not None and match[0] == len(keys) else None


def _match(
    nodes: Sequence[_Node], keys: Sequence[Key], at: int, path: _Path
) -> tuple[int, tuple[_Iterations, ...]] | None:
    """Return where the nodes end in a run that has them from a place on, and the iterations of their loops."""
    loops: list[_Iterations] = []
    for number, node in enumerate(nodes):
        if not isinstance(node, _Loop):
            if at >= len(keys) or keys[at] != node:
                return None
            at += 1
            continue
        spans, inner = [], []
        while (iteration := _match(node.body, keys, at, (*path, number))) is not None:
            spans.append((at, iteration[0]))
            inner.append(iteration[1])
            at = iteration[0]
        if not spans:
            return None
        loops.append(_Iterations((*path, number), tuple(spans), tuple(inner)))
    return at, tuple(loops)


def _counts(loops: Sequence[_Iterations]) -> Iterator[tuple[_Path, int]]:
    for loop in loops:
        yield loop.path, len(loop.spans)
        for inner in loop.inner:
            yield from _counts(inner)


def _modules(run: RawTrace, loop: _Iterations) -> tuple[str, str] | None:
    """Return the first module of the first iteration and the last one of the last, where they are of one list."""
    first, last = ([run.steps[place].module or "" for place in range(*loop.spans[end])] for end in (0, -1))
    for one, other in zip(first, last, strict=False):
        paths = _parts(one), _parts(other)
        for depth, (name, twin) in enumerate(zip(*paths, strict=False), 1):
            if name != twin:
                prefix = paths[0][: depth - 1]
                listed = [path[depth - 1] for path in map(_parts, last) if path[: depth - 1] == prefix != path]
                return ".".join([*prefix, name]), ".".join([*prefix, listed[-1]])
    return None


class _Folder:
    """Leaves one iteration of each varying loop of a run."""

    def __init__(self, raw: RawTrace, varying: frozenset[_Path], loops: Sequence[_Iterations]) -> None:
        self.raw = raw
        self.varying = varying
        self.stands_for: dict[int, int] = {}
        """For each step of an iteration that is left out, the one of the iteration that is kept."""
        self.loops: list[_Iterations] = []
        self._fold(loops)

    def folded(self) -> RawTrace:
        kept = {place: _copy(step) for place, step in enumerate(self.raw.steps) if place not in self.stands_for}
        order = {place: number for number, place in enumerate(kept)}

        def move(reference: Reference, _: int | None) -> Reference:
            place = reference.step - 1 if reference.step is not None else None
            while place in self.stands_for:
                place = self.stands_for[place]
            return reference if place is None else Reference(step=place + 1, output=reference.output)

        for step in kept.values():
            while step.parent in self.stands_for:
                step.parent = self.stands_for[step.parent]
        found = [RawLoop(*loop.spans[0], len(loop.spans), _modules(self.raw, loop)) for loop in self.loops]
        left = [
            (loop, [order[place] for place in range(loop.begin, loop.end) if place in order])
            for loop in (*found, *self.raw.loops)
        ]
        loops = [dataclasses.replace(loop, begin=at[0], end=at[-1] + 1) for loop, at in left if at]
        # an outer loop comes before those in it
        loops.sort(key=lambda loop: (loop.begin, -loop.end))
        return dataclasses.replace(renumber(self.raw, kept, move), loops=loops)

    def _fold(self, loops: Sequence[_Iterations]) -> None:
        for loop in loops:
            if loop.path not in self.varying:
                for inner in loop.inner:
                    self._fold(inner)
                continue
            self._fold(loop.inner[0])
            left = [place for place in range(*loop.spans[0]) if place not in self.stands_for]
            for span, inner in zip(loop.spans[1:], loop.inner[1:], strict=True):
                self._fold(inner)
                others = [place for place in range(*span) if place not in self.stands_for]
                # an iteration may be longer than the first where a loop inside of it has more iterations
                self.stands_for |= {place: left[min(number, len(left) - 1)] for number, place in enumerate(others)}
            self.loops.append(loop)


def _copy(step: RawStep) -> RawStep:
    outputs = [dataclasses.replace(output, tensor=dataclasses.replace(output.tensor)) for output in step.outputs]
    return dataclasses.replace(step, outputs=outputs)
