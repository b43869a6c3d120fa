from __future__ import annotations

import pytest
from msgspec.structs import replace

from attnshape.errors import AttnshapeError
from attnshape.model.trace import Axis, Cost, NamedTensor, Quantity, TotalCost
from attnshape.reporters.columns import (
    COLUMNS,
    COSTS,
    DEFAULT,
    RowSubject,
    default_columns,
    parse_columns,
    wide_columns,
)
from tests.reporters.sample_traces import fused, multi_head, step, tensor, trace_of


def cell(name: str, number: int) -> str:
    trace = multi_head()
    one = trace.step(number)
    return COLUMNS[name].text(RowSubject(trace, "label", one, one.outputs[0].tensor))


CELLS = {
    "step": "label",
    "expression": "self.Wq(input).view(B, Lq, H, Dk).transpose(1, 2)",
    "op": "transpose",
    "role": "transpose",
    "signature": "B H Lq Dk",
    "shape": "2 8 30 64",
    "stride": "15360 64 512 1 ≁",
    "strides": "Lq*D Dk D 1",
    "storage": "view of 1",
    "contiguous": "no",
    "dtype": "float32",
    "device": "cpu",
    "bytes": "122,880",
    "flops": "",
    "moved": "",
    "temporary": "",
    "saved": "",
    "intensity": "",
    "module": "",
    "source": "attnshape/targets/builtin/multi_head.py:30",
    "known": "verified",
}


@pytest.mark.parametrize(("name", "expected"), CELLS.items())
def test_cell(name: str, expected: str) -> None:
    assert cell(name, 3) == expected


def test_every_column_is_tested() -> None:
    assert set(CELLS) == set(COLUMNS)


@pytest.mark.parametrize(
    ("name", "number", "expected"),
    [
        ("op", 11, "matmul"),
        ("op", 1, "linear"),
        ("module", 1, "Wq"),
        ("storage", 1, "new 120 KiB"),
        ("stride", 1, "15360 512 1"),
    ],
)
def test_other_cells(name: str, number: int, expected: str) -> None:
    assert cell(name, number) == expected


def test_storage_text() -> None:
    trace = fused()
    found = [
        COLUMNS["storage"].text(RowSubject(trace, "", one, one.outputs[0].tensor))
        for one in (trace.step(5), *trace.steps[11:14])
    ]
    assert found == ["view of 2 (k)", "writes 11", "new 3.1 KiB", "same as 13"]


COST = Cost(flops=Quantity(10_485_760, "2*B*L*D*D"), moved=Quantity(1_132_544), temporary=Quantity(0, "0"), saved=None)


def test_cells_of_costs() -> None:
    one = replace(multi_head().step(1), cost=COST)
    trace = replace(multi_head(), cost=TotalCost(parameters=Quantity(3)))
    found = {name: COLUMNS[name].text(RowSubject(trace, "", one)) for name in (column.name for column in COSTS[2:])}
    assert found == {
        "flops": "10.5 M = 2*B*L*D*D",
        "moved": "1.1 MiB",
        "temporary": "0",
        "saved": "unknown",
        "intensity": "9.3",
    }


def test_cost_of_a_step_that_was_not_counted_is_unknown_where_others_were() -> None:
    trace = replace(multi_head(), cost=TotalCost(parameters=Quantity(3)))
    assert COLUMNS["flops"].text(RowSubject(trace, "", trace.step(1))) == "unknown"
    assert default_columns(trace) == COSTS
    assert default_columns(multi_head()) == DEFAULT
    assert wide_columns(trace) == (*DEFAULT, *COSTS[2:])
    assert wide_columns(multi_head()) == DEFAULT


def test_scalar_cells() -> None:
    subject = RowSubject(trace_of(()), "", None, tensor(""))
    assert [COLUMNS[name].text(subject) for name in ("signature", "shape", "stride", "known")] == [
        "scalar",
        "()",
        "()",
        "",
    ]


def test_known_column_names_unverified_axes() -> None:
    axes = (Axis("B", "verified"), Axis("Lk", "matched"), Axis("3", "literal"))
    record = replace(tensor("B Lk 3"), axes=axes)
    subject = RowSubject(trace_of(()), "", None, record)
    assert COLUMNS["known"].text(subject) == "Lk matched"
    assert COLUMNS["known"].text(RowSubject(trace_of(()), "", None, replace(record, axes=axes[2:]))) == "constant"


def test_input_without_storage() -> None:
    named = NamedTensor("x", tensor("B Lq D"))
    trace = trace_of((step(1, "x", "view", None, named.tensor),), (named,))
    assert COLUMNS["storage"].text(RowSubject(trace, "", None, named.tensor, given=True)) == ""
    assert COLUMNS["storage"].text(RowSubject(trace, "", None, named.tensor)) == "new 120 KiB"


def test_parse_keeps_the_order() -> None:
    assert [column.name for column in parse_columns(" shape,step ,known")] == ["shape", "step", "known"]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("step,sigature", "there is no column 'sigature'", "did you mean 'signature'? the columns are step, "),
        ("Shape", "there is no column 'Shape'", "did you mean 'shape'? "),
        ("\x1b[31m", "there is no column '\\\\x1b[31m'", "the columns are "),
        ("step,step", "the column 'step' is named twice", "once"),
        (" , ", "no column is named", "the columns are "),
    ],
)
def test_bad_columns(text: str, message: str, hint: str) -> None:
    with pytest.raises(AttnshapeError) as caught:
        parse_columns(text)
    assert caught.value.message == message
    assert caught.value.hint is not None
    assert hint in caught.value.hint
