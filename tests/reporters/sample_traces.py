"""Traces built by hand: realistic ones, and one with every field that can hold a text."""

from __future__ import annotations

from math import prod

from msgspec.structs import replace

from attnshape.model.behaviour import Behaviour, KeyPattern, Property, ResultNumbers, ResultsRun, Statement
from attnshape.model.trace import (
    Argument,
    Avoided,
    Axis,
    Cost,
    Expectation,
    Failure,
    HeldOut,
    Loop,
    NamedTensor,
    Operand,
    Peak,
    Quantity,
    Reference,
    Role,
    Size,
    Source,
    Step,
    Storage,
    StorageKind,
    TargetOutput,
    TensorRecord,
    TotalCost,
    Trace,
)

_DRAWN = 1000
"""Of a larger pattern a page has no picture."""
NUMBERS = {"B": 2, "H": 8, "Lq": 30, "Lk": 50, "D": 512, "Dk": 64}
FILE = "attnshape/targets/builtin/multi_head.py"


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[place + 1 :]) for place in range(len(shape)))


def tensor(
    signature: str,
    storage: StorageKind = "new",
    of: Reference | None = None,
    stride: tuple[int, ...] | None = None,
    strides: str = "",
    numbers: dict[str, int] | None = None,
) -> TensorRecord:
    symbols = signature.split()
    shape = tuple(int(symbol) if symbol.isdecimal() else (numbers or NUMBERS)[symbol] for symbol in symbols)
    actual = stride if stride is not None else row_major(shape)
    return TensorRecord(
        signature=signature,
        dtype="float32",
        device="cpu",
        shape=shape,
        stride=actual,
        offset=0,
        axes=tuple(Axis(symbol, "literal" if symbol.isdecimal() else "verified") for symbol in symbols),
        strides=tuple(strides.split() or map(str, actual)),
        contiguous=actual == row_major(shape),
        bytes=4 * prod(shape),
        checked="inferred",
        storage=Storage(storage, of),
    )


def step(
    index: int,
    expression: str,
    operation: str,
    role: Role | None,
    result: TensorRecord,
    *operands: Reference | int,
    name: str | None = None,
    line: int = 20,
    module: str | None = None,
) -> Step:
    references = tuple(Reference(step=operand) if isinstance(operand, int) else operand for operand in operands)
    return Step(
        index=index,
        expression=expression,
        operation=f"torch.Tensor.{operation}" if operation != "linear" else "torch.nn.functional.linear",
        role=role,
        module=module,
        source=Source(FILE, line, 17, "forward"),
        operands=references,
        outputs=(NamedTensor(name, replace(result, checked="declared") if name else result),),
    )


def trace_of(steps: tuple[Step, ...], inputs: tuple[NamedTensor, ...] = (), **changes: object) -> Trace:
    values: dict[str, object] = {
        "attnshape": "0.1.0",
        "torch": "2.13.0+cpu",
        "python": "3.11.7",
        "target": "multi-head",
        "command": "attnshape trace --batch 2 --heads 8 --d-model 512 --queries 30 --keys 50",
        "device": "cpu",
        "dtype": "float32",
        "seed": 0,
        "sizes": {
            "B": Size(2, "given"),
            "H": Size(8, "given"),
            "Lq": Size(30, "given"),
            "Lk": Size(50, "given"),
            "D": Size(512, "given"),
            "Dk": Size(64, "derived", "D//H"),
        },
        "complete": True,
        "verified_at": 3,
        "inputs": inputs,
        "steps": steps,
    }
    return Trace(**{**values, **changes})  # type: ignore[arg-type]


def _projections() -> tuple[Step, ...]:
    steps: list[Step] = []
    for projection, name, source, length in (
        ("q", "query", "input", "Lq"),
        ("k", "key", "memory", "Lk"),
        ("v", "value", "memory", "Lk"),
    ):
        n = NUMBERS[length]
        first = len(steps) + 1
        base = f"self.W{projection}({source})"
        line = 30 + first // 3
        steps.append(
            step(
                first,
                base,
                "linear",
                "projection",
                tensor(f"B {length} D", strides=f"{length}*D D 1"),
                Reference(input=source),
                Reference(parameter=f"W{projection}.weight"),
                module=f"W{projection}",
                line=line,
            )
        )
        split = tensor(f"B {length} H Dk", "view", Reference(step=first), strides=f"{length}*D D Dk 1")
        steps.append(step(first + 1, f"{base}.view(B, {length}, H, Dk)", "view", "split", split, first, line=line))
        transposed = tensor(
            f"B H {length} Dk", "view", Reference(step=first), (512 * n, 64, 512, 1), f"{length}*D Dk D 1"
        )
        text = f"{base}.view(B, {length}, H, Dk).transpose(1, 2)"
        steps.append(step(first + 2, text, "transpose", "transpose", transposed, first + 1, name=name, line=line))
    return tuple(steps)


def multi_head() -> Trace:
    scores = tensor("B H Lq Lk", strides="H*Lq*Lk Lq*Lk Lk 1")
    joined = "context.transpose(1, 2)"
    key = tensor("B H Dk Lk", "view", Reference(step=4), (25600, 64, 1, 512), "Lk*D Dk 1 D")
    context = tensor("B H Lq Dk", strides="Lq*D Lq*Dk Dk 1")
    transposed = tensor("B Lq H Dk", "view", Reference(step=14), (15360, 64, 1920, 1), "Lq*D Dk Lq*Dk 1")
    rows = tensor("B Lq H Dk", strides="Lq*D D Dk 1")
    concat = tensor("B Lq D", "view", Reference(step=16), strides="Lq*D D 1")
    result = tensor("B Lq D", strides="Lq*D D 1")
    view = f"{joined}.contiguous().view(B, Lq, D)"
    scaled = "query @ key.transpose(-2, -1) / sqrt(Dk)"
    attend = (
        step(10, "key.transpose(-2, -1)", "transpose", "transpose", key, 6, line=33),
        step(11, "query @ key.transpose(-2, -1)", "__matmul__", "scores", scores, 3, 10, line=33),
        step(12, scaled, "__truediv__", "scale", scores, 11, Reference(constant=True), name="scores", line=33),
        step(13, "scores.softmax(-1)", "softmax", "softmax", scores, 12, name="weights", line=34),
        step(14, "weights @ value", "__matmul__", "context", context, 13, 9, name="context", line=35),
        step(15, joined, "transpose", "merge", transposed, 14, line=36),
        step(16, f"{joined}.contiguous()", "contiguous", "merge", rows, 15, line=36),
        step(17, view, "view", "merge", concat, 16, line=36),
        step(
            18,
            f"self.Wo({view})",
            "linear",
            "output",
            result,
            17,
            Reference(parameter="Wo.weight"),
            module="Wo",
            line=36,
        ),
    )
    inputs = (NamedTensor("input", tensor("B Lq D")), NamedTensor("memory", tensor("B Lk D")))
    return trace_of((*_projections(), *attend), inputs, outputs=(TargetOutput("output", Reference(step=18)),))


def verified() -> Trace:
    """The same trace with expectations, a precondition, a note and a default size."""
    whole = multi_head()
    return replace(
        whole,
        sizes={**whole.sizes, "Lk": Size(50, "default")},
        preconditions=("D a multiple of H",),
        notes=("the mask is absent in this run",),
        expectations=(
            Expectation("scores", "B H Lq Lk", True),
            Expectation("output", "B Lk D", False, "its axis 1 is Lq=30, not Lk=50"),
        ),
    )


def fused() -> Trace:
    """One step with three outputs, a composite with children, a mask filled in place, and an inactive dropout."""
    sizes = {"B": 2, "T": 10, "C": 48, "nh": 4, "hs": 12}
    whole = tensor("B T 144", numbers=sizes)
    part = tensor("B T C", "view", Reference(step=1), (1440, 144, 1), numbers=sizes)
    names = (NamedTensor("q", part), NamedTensor("k", part), NamedTensor("v", part))
    split = "self.c_attn(x).split(self.n_embd, dim=2)"
    steps = [
        step(1, "self.c_attn(x)", "linear", "projection", whole, Reference(input="x"), Reference(parameter="c")),
        replace(step(2, split, "split", "split", part, 1), outputs=names),
    ]
    for place, name in enumerate("qkv"):
        origin = Reference(step=2, output=place)
        heads = tensor("B T nh hs", "view", origin, (1440, 144, 12, 1), numbers=sizes)
        transposed = tensor("B nh T hs", "view", origin, (1440, 12, 144, 1), numbers=sizes)
        text = f"{name}.view(B, T, nh, hs)"
        index = 3 + 2 * place
        steps.append(step(index, text, "view", "split", heads, origin))
        steps.append(step(index + 1, f"{text}.transpose(1, 2)", "transpose", "transpose", transposed, index, name=name))
    scores, context = tensor("B nh T T", numbers=sizes), tensor("B nh T hs", numbers=sizes)
    key = tensor("B nh hs T", "view", Reference(step=6), (1440, 12, 1, 144), numbers=sizes)
    filled = replace(scores, storage=Storage("inplace", Reference(step=11)))
    dropped = replace(scores, storage=Storage("same", Reference(step=13)))
    masked = "(q @ k.mT).masked_fill_(mask | causal, -inf)"
    steps += [
        step(9, "attend(\n    q,  # queries\n    k,\n    v,\n)", "attend", None, context, 4, 6, 8, name="y"),
        replace(step(10, "k.mT", "mT.__get__", "transpose", key, 6), parent=9),
        replace(step(11, "q @ k.mT", "matmul", "scores", scores, 4, 10), parent=9),
        replace(step(12, masked, "masked_fill_", "mask", filled, 11), parent=9),
        replace(step(13, "F.softmax(w, dim=-1)", "softmax", "softmax", scores, 12, name="w"), parent=9),
        replace(step(14, "self.drop(w)", "dropout", "dropout", dropped, 13, module="drop"), parent=9),
        replace(step(15, "self.drop(w) @ v", "matmul", "context", context, 14, 8), parent=9),
    ]
    return trace_of(
        tuple(steps),
        (NamedTensor("x", tensor("B T C", numbers=sizes)),),
        target="model.py:CausalSelfAttention",
        command='attnshape trace model.py:CausalSelfAttention --init "D, H" --input "x: B T C"',
        sizes={symbol: Size(number, "given") for symbol, number in sizes.items()},
    )


def failed() -> Trace:
    numbers = {**NUMBERS, "B": 2}
    query, key = tensor("B H Lq Dk", numbers=numbers), tensor("B H Lk Dk", numbers=numbers)
    failure = Failure(
        expression="torch.matmul(query, key)",
        source=Source("model.py", 6, 14, "attention"),
        operation="torch.matmul",
        error="Expected size for first two dimensions of batch2 tensor to be: [16, 64] but got: [16, 50].",
        operands=(Operand("query", query, (3,)), Operand("key", key, (2,))),
        explanation="the axes that matmul contracts differ: last of `query` is Dk=64, second to last of `key` is Lk=50",
        hint="key.transpose(-2, -1) makes it B H Lq Lk (tried)",
    )
    return trace_of(
        (),
        (NamedTensor("query", query), NamedTensor("key", key)),
        target="model.py:attention",
        command='attnshape trace model.py:attention --input "query: B H Lq Dk" --input "key: B H Lk Dk"',
        failure=failure,
        complete=False,
    )


def every_text() -> Trace:
    """A trace that has every field that can hold a text."""
    text = "x"
    reference = Reference(input=text, parameter=text)
    record = replace(
        tensor("B Lq D"),
        axes=tuple(Axis(text, "matched", where=text) for _ in range(3)),
        declared=text,
        layout=text,
        storage=Storage("view", reference, reference),
    )
    source = Source(text, 1, 1, text)
    one = Step(
        index=1,
        expression=text,
        operation=text,
        module=text,
        source=source,
        operands=(reference,),
        arguments=(Argument(text, text, text),),
        outputs=(NamedTensor(text, record),),
        cost=Cost(moved=Quantity(8, text), unknown=(text,)),
        avoided=Avoided(text, 8),
        opaque=text,
    )
    outputs = (NamedTensor(text, record), NamedTensor(None, record))
    return trace_of(
        (one, replace(one, index=2, outputs=outputs, parent=1)),
        (NamedTensor(text, record),),
        sizes={text: Size(2, "derived", text)},
        held_out=HeldOut(sizes={text: 3}, reason=text),
        found=text,
        preconditions=(text,),
        notes=(text,),
        loops=(Loop(1, 2, 3, text, "verified", (text, text)),),
        outputs=(TargetOutput(text, Reference(step=1)),),
        cost=TotalCost(moved=Quantity(8, text), unknown=(text,), parameters=Quantity(8, text)),
        complete=False,
        failure=Failure(
            expression=text,
            source=source,
            operation=text,
            error=text,
            operands=(Operand(text, record, (1, 2)),),
            explanation=text,
            hint=text,
        ),
        expectations=(Expectation(text, text, True), Expectation(text, text, False, text)),
        peak=Peak(bytes=8, known="verified", expression=text, parameters=0, inputs=0),
        behaviour=Behaviour(
            sizes={text: 2},
            properties=(Property(topic="scale", statements=(Statement(text),), unknown=(text,)),),
            visible=(
                KeyPattern(attention=text, part=text, queries=text, keys=text, rows=(text[:_DRAWN], text[:_DRAWN])),
            ),
            parameters={text: (2,)},
            results=(ResultsRun("name", (ResultNumbers(text, (2,), 1.0, (1.0,)),)),),
            unknown=text,
        ),
    )
