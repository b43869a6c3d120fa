"""The sentences of `--explain`, and the facts they omit if the trace doesn't have them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from attnshape.explanation.sentences import OPERATIONS, REASONS, explain
from attnshape.model.trace import Reference, Role, Step, TensorRecord, Trace
from tests.reporters.sample_traces import fused, multi_head, step, tensor, trace_of


def sentence(
    expression: str, operation: str, result: str | TensorRecord, *operands: str, role: Role | None = None
) -> str:
    records = [*map(tensor, operands), result if isinstance(result, TensorRecord) else tensor(result)]
    first: list[Step] = [step(index, "x", "zeros", None, record) for index, record in enumerate(records[:-1], 1)]
    last = step(len(records), expression, operation, role, records[-1], *range(1, len(records)))
    return explain(trace_of((*first, last)), last)


@pytest.mark.parametrize(
    ("number", "expected"),
    {
        2: "Splits the last axis, D=512, into H=8 heads of Dk=64 features each; no data is copied: a view of step 1.",
        10: "Swaps the last two axes, Lk=50 and Dk=64, so that the product for the scores can contract Dk=64; "
        "only the strides change, to 25600 64 1 512: a view of step 4.",
        11: "Contracts Dk=64: 24,000 scores (B=2 × H=8 × Lq=30 × Lk=50), each the dot product of a query and a key; "
        "new storage of 94 KiB.",
        12: "Divides each of 24,000 scores by sqrt(Dk)=8, so that their variance doesn't grow with Dk; "
        "new storage of 94 KiB.",
        13: "Normalizes 480 vectors of Lk=50 scores, along the last axis, into weights that sum to 1; "
        "new storage of 94 KiB.",
        14: "Contracts Lk=50: each of 480 vectors of Dk=64 features is a weighted sum of 50 values; "
        "new storage of 120 KiB.",
        17: "Joins the axes H=8 and Dk=64 into one of D=512, placing the results of the heads side by side (concat); "
        "no data is copied: a view of step 16.",
    }.items(),
)
def test_explanations_of_multi_head(number: int, expected: str) -> None:
    trace = multi_head()
    assert explain(trace, trace.step(number)) == expected


def test_transposed_query_is_explained_by_the_heads() -> None:
    trace = multi_head()
    assert "each head has its own matrix, Lq=30 × Dk=64" in explain(trace, trace.step(3))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s.softmax(-1)", "along the last axis"),
        ("s.softmax(2)", "along the second-to-last axis"),
        ("F.softmax(s / sqrt(Dk), dim=-2)", "along the second-to-last axis"),
        ("torch.softmax(s, dim = 1)", "along axis 1"),
        ("s.softmax(dim=-1, dtype=torch.float32)", "along the last axis"),
    ],
)
def test_softmax_axis(text: str, expected: str) -> None:
    assert expected in sentence(text, "softmax", "B H Lq Lk", "B H Lq Lk", role="softmax")


@pytest.mark.parametrize(
    "text", ["self.softmax(s)", "F.softmax(s, axis)", "f(s.softmax(-1), other)", "F.softmax(x.sum(dim=-1), d)"]
)
def test_unknown_softmax_axis(text: str) -> None:
    explanation = sentence(text, "softmax", "B H Lq Lk", "B H Lq Lk", role="softmax")
    assert explanation.startswith("Normalizes scores into weights that sum to 1;")


def test_scaling_by_another_number_has_no_reason() -> None:
    assert "by sqrt(D); new" in sentence("s / math.sqrt(D)", "div", "B H Lq Lk", "B H Lq Lk", role="scale")
    assert "by sqrt(d_k); new" in sentence("s / math.sqrt(d_k)", "div", "B H Lq Lk", "B H Lq Lk", role="scale")
    assert "scores by a number; new" in sentence("s / self.scale", "div", "B H Lq Lk", "B H Lq Lk", role="scale")
    assert sentence("s / n", "div", "B Lq", "B Lq", "B Lq") == "div gives B Lq; new storage of 240 B."


@pytest.mark.parametrize(
    ("expression", "operation", "result", "operands", "expected"),
    [
        ("x.unsqueeze(1)", "unsqueeze", "B 1 Lk", ("B Lk",), "Adds an axis of size 1: B Lk becomes B 1 Lk"),
        ("x.squeeze(1)", "squeeze", "B Lk", ("B 1 Lk",), "Drops an axis of size 1: B 1 Lk becomes B Lk"),
        (
            "x.reshape(H, B, Dk)",
            "reshape",
            "H B Dk",
            ("B H Dk",),
            "Arranges the same elements in other axes: B H Dk becomes H B Dk; new storage of",
        ),
        (
            "x.view(H, B, Dk)",
            "view",
            tensor("H B Dk", "view", Reference(step=1)),
            ("B H Dk",),
            "Views the same elements with other axes: B H Dk becomes H B Dk; no data is copied",
        ),
        ("cat([a, b])", "cat", "B D", ("B Dk",) * 8, "Concatenates 8 tensors of Dk=64 along the last axis into D=512"),
        (
            "a + b",
            "add",
            "B H Lq Lk",
            ("B H Lq Lk", "B 1 1 Lk"),
            "Adds B H Lq Lk and B 1 1 Lk, broadcasting the smaller",
        ),
        ("a + a", "add", "B D", ("B D", "B D"), "Adds B D and B D, element by element"),
        ("f(a)", "relu", "B D", ("B D",), "Applies relu to each of 1,024 elements; new storage of 4 KiB."),
        ("x[:, 0]", "getitem", "B D", ("B H D",), "Takes a part: B H D becomes B D; "),
        ("x[:]", "getitem", "B D", ("B D",), "getitem gives B D; "),
        ("norm(x)", "rms_norm", "B D", ("B D",), "Normalizes B D (rms_norm); "),
        ("x.sum(1)", "sum", "B D", ("B H D",), "Sums over H=8: B H D becomes B D; "),
        ("x.view(H, Dk, B)", "view", "H Dk B", ("D B",), "Splits the first axis, D=512, into H=8 × Dk=64; "),
        (
            "x.expand(B, H, D)",
            "expand",
            "B H D",
            ("B 1 D",),
            "Repeats axes of size 1 without a copy: B 1 D becomes B H D",
        ),
        ("a @ b", "matmul", "B Lq Lk", ("B Lq D", "B D Lk"), "Contracts D=512: B Lq D and B D Lk become B Lq Lk"),
        ("einsum(e, a, b)", "einsum", "B Lq Lk", ("B Lq D", "B Lk D"), "Contracts D=512: "),
        ("einsum(e, a, b)", "einsum", "Lq Lk", ("B Lq D", "B Lk D"), "einsum gives Lq Lk; "),
        ("x.sum()", "sum", "", ("B D",), "Sums over B=2 and D=512: B D becomes a scalar; new storage of 4 B."),
    ],
)
def test_explanations_of_operations(
    expression: str, operation: str, result: str, operands: tuple[str, ...], expected: str
) -> None:
    assert sentence(expression, operation, result, *operands).startswith(expected)


def test_root_of_an_axis_that_is_not_contracted_has_no_reason() -> None:
    trace = multi_head()
    other = replace(trace.step(12), expression="query @ key.transpose(-2, -1) / math.sqrt(D)")
    assert explain(trace, other) == "Divides each of 24,000 scores by sqrt(D); new storage of 94 KiB."


def test_mask_without_infinity_has_no_reason() -> None:
    assert "no weight" in sentence("s.masked_fill(m, -torch.inf)", "masked_fill", "B Lq", "B Lq", "Lq", role="mask")
    assert "no weight" not in sentence("s.masked_fill(m, 0)", "masked_fill", "B Lq", "B Lq", "Lq", role="mask")
    assert "no weight" not in sentence("s.masked_fill(m, finfo.min)", "masked_fill", "B Lq", "B Lq", role="mask")


def test_ambiguous_permutations_name_no_axes() -> None:
    square = replace(tensor("Lq Lq", "view"), stride=(30, 30))
    assert sentence("x.T", "T", square, "Lq Lq").startswith("Reorders the axes: Lq Lq becomes Lq Lq")


@pytest.mark.parametrize("trace", [multi_head(), fused()], ids=["multi_head", "fused"])
def test_every_step_is_one_sentence(trace: Trace) -> None:
    for explained in trace.steps:
        explanation = explain(trace, explained)
        assert explanation.endswith(".")
        assert "None" not in explanation
        assert ". " not in explanation


@pytest.mark.parametrize("operation", [*sorted(OPERATIONS), "unknown"])
@pytest.mark.parametrize("role", [*REASONS, None])
def test_step_with_unknown_operands_is_explained(operation: str, role: Role | None) -> None:
    for signature in ("", "B", "B H Lq Lk"):
        one = step(1, "f()", operation, role, tensor(signature), Reference(constant=True), Reference(step=99))
        assert explain(trace_of((one,)), one).endswith(".")
