"""Hypothesis strategies for outlines: of plausible code, and of anything that a saved trace may contain."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from attnshape.comparison.outline import INPUT, Outline
from attnshape.model.difference import OutlineLoop, OutlineResult, OutlineStep, OutlineTensor
from attnshape.model.trace import Reference

NASTY = (
    "[bold red]x[/]",
    "a | b",
    "a\\|b `c` ``d``",
    '"',
    '"quoted" | x',
    "'",
    "as q",
    "parameter w",
    "a constant",
    "an unseen tensor",
    "3[1]",
    "3",
    "×H=8",
    "new 40 KiB",
    "\x1b[31mred\x1b[0m\x07\x00",
    "<script>alert(1)</script> &amp;",
    "one\ntwo\r\n| x | y |\n",
    "\u202eabc\u2066",
    "注意力机制 ｆｕｌｌ 👩‍👩‍👧",
    "\t",
    "",
    " ",
    "x" * 200,
    "(" * 60,
    "#",
    "fails at: x",
    "# | name",
)
TEXT = st.one_of(st.sampled_from(NASTY), st.text(max_size=12), st.text(alphabet='ab"|\\ ,=×[]()', max_size=10))
NUMBERS = st.integers(-(10**18) + 1, 10**18 - 1)
WORDS = ("B L D", "B H L Dk", "B H L L", "B L 3*D", "")


def exactly(one: st.SearchStrategy[Any], count: int) -> st.SearchStrategy[tuple[Any, ...]]:
    """Return tuples of a given length."""
    return st.tuples(*[one] * count)


@st.composite
def anything(draw: st.DrawFn) -> Outline:
    """Draw an outline with arbitrary texts and numbers and valid references, for round trips."""
    counts = draw(st.lists(st.integers(0, 3), max_size=4))
    places = [(step, output) for step, count in enumerate(counts, 1) for output in range(count)]
    inner = [st.builds(lambda one: Reference(step=one[0], output=one[1]), st.sampled_from(places))] if places else []
    uses = st.one_of(*inner, st.builds(lambda name: Reference(input=name), TEXT))
    anywhere = st.one_of(
        uses, st.builds(lambda name: Reference(parameter=name), TEXT), st.just(Reference(constant=True))
    )

    def tensor(given: bool) -> OutlineTensor:
        kind = draw(st.sampled_from(["new", "view", "same", "inplace"]))
        contiguous = draw(st.booleans())
        rank = draw(st.integers(0, 3))
        # sparse tensors have no strides
        strided = draw(st.sampled_from([rank, rank, 0]))
        explained = draw(st.sampled_from([strided, 0]))
        return OutlineTensor(
            name=draw(st.none() | TEXT),
            by_use=False,
            dtype=draw(TEXT),
            signature=draw(TEXT),
            shape=draw(exactly(NUMBERS, rank)),
            stride=draw(exactly(NUMBERS, strided)),
            stride_formulas=draw(exactly(TEXT, explained)),
            contiguous=contiguous,
            kind=kind,
            of=None if kind == "new" else draw(st.none() | anywhere),
            bytes=draw(NUMBERS) if kind == "new" and not given else 0,
        )

    def input_() -> OutlineStep:
        given = tensor(True)
        return OutlineStep(index=0, expression=given.name or "", operation=INPUT, outputs=(given,))

    return Outline(
        target=draw(TEXT),
        sizes=draw(st.dictionaries(TEXT, NUMBERS, max_size=3)),
        inputs=tuple(input_() for _ in range(draw(st.integers(0, 2)))),
        steps=tuple(
            OutlineStep(
                index=index,
                expression=draw(TEXT),
                operation=draw(TEXT),
                uses=draw(st.lists(uses, max_size=3).map(tuple)),
                loops=draw(st.lists(st.builds(OutlineLoop, TEXT, NUMBERS), max_size=2).map(tuple)),
                outputs=tuple(tensor(False) for _ in range(count)),
            )
            for index, count in enumerate(counts, 1)
        ),
        results=tuple(OutlineResult(name, draw(anywhere)) for name in draw(st.lists(TEXT, max_size=3, unique=True))),
        failure=draw(st.none() | TEXT),
    )


@st.composite
def code(draw: st.DrawFn, longest: int = 12) -> Outline:
    """Draw the outline of plausible code: each step reads one or two earlier tensors."""
    steps: list[OutlineStep] = []
    names: dict[int, str] = {0: "x"}
    for index in range(1, draw(st.integers(0, longest)) + 1):
        operation = draw(st.sampled_from(["view", "reshape", "transpose", "matmul", "softmax", "mul"]))
        read = draw(st.lists(st.integers(0, index - 1), min_size=1, max_size=2))
        texts = [names[index] for index in read]
        name = draw(st.none() | st.sampled_from(["q", "k", "v", "scores", "weights"]))
        expression = f"{operation}({', '.join(texts)})"
        names[index] = name or expression
        uses = tuple(Reference(step=index) if index else Reference(input="x") for index in read)
        steps.append(step(index, expression, operation, uses, name, draw(st.sampled_from(WORDS))))
    input_step = OutlineStep(index=0, expression="x", operation=INPUT, outputs=(tensor("x", "B L D"),))
    return Outline(target="code", sizes={"B": 2}, inputs=(input_step,), steps=tuple(steps))


def tensor(name: str | None, signature: str) -> OutlineTensor:
    """Return a new contiguous tensor whose axes are all 2."""
    rank = len(signature.split())
    stride = tuple(2 ** (rank - 1 - place) for place in range(rank))
    return OutlineTensor(
        name=name,
        dtype="float32",
        signature=signature,
        shape=(2,) * rank,
        stride=stride,
        contiguous=True,
        kind="new",
        bytes=4 * 2**rank,
    )


def step(
    index: int, expression: str, operation: str, uses: tuple[Reference, ...], name: str | None, signature: str
) -> OutlineStep:
    """Return a step of one output."""
    return OutlineStep(
        index=index, expression=expression, operation=operation, uses=uses, outputs=(tensor(name, signature),)
    )


def inserted(outline: Outline, places: list[int]) -> Outline:
    """Return an outline with an unused step inserted before each of these numbers."""
    new_index: dict[int, int] = {}
    steps: list[OutlineStep] = []
    for index in range(1, len(outline.steps) + 2):
        for number in range(places.count(index)):
            new = (Reference(input="x"),)
            steps.append(step(len(steps) + 1, f"inserted_{index}_{number}(x)", f"new{index}{number}", new, None, "B"))
        if index <= len(outline.steps):
            new_index[index] = len(steps) + 1
            old_step = outline.steps[index - 1]
            uses = tuple(Reference(step=new_index[use.step]) if use.step else use for use in old_step.uses)
            new_step = OutlineStep(
                index=new_index[index],
                expression=old_step.expression,
                operation=old_step.operation,
                uses=uses,
                outputs=old_step.outputs,
            )
            steps.append(new_step)
    return Outline(target=outline.target, sizes=outline.sizes, inputs=outline.inputs, steps=tuple(steps))
