"""The summary of a whole model, and the headings above its layers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from attnshape.model.trace import Avoided, Loop, Reference, Role, Step, Trace
from attnshape.reporters.model_view import attention_summary, module_headings
from attnshape.reporters.registry import find_renderer
from attnshape.reporters.reporter import Screen
from attnshape.reporters.trace_view import ViewOptions, trace_footer, trace_view
from tests.reporters.sample_traces import step, tensor, trace_of

LAYER: tuple[tuple[str, Role | None], ...] = (
    ("x @ x", "scores"),
    ("scores.masked_fill(mask, 0)", "mask"),
    ("scores.softmax(-1)", "softmax"),
    ("weights @ x", "context"),
)


def layer(first: int, module: str | None, *mask: Reference, line: int = 20) -> list[Step]:
    """Return the steps of a layer, of which the second gets the mask."""
    return [
        step(
            first + place,
            expression,
            "op",
            role,
            tensor("B H Lq Lk" if place < 3 else "B H Lq Dk"),
            *(mask if role == "mask" else ()),
            module=f"{module}.attn" if module else None,
            line=line,
        )
        for place, (expression, role) in enumerate(LAYER)
    ]


def outside(index: int, name: str, module: str | None = None) -> Step:
    return step(index, name, "ones", None, tensor("Lq Lk"), name=name, module=module)


def model(*steps: list[Step], loops: tuple[Loop, ...] = ()) -> Trace:
    return trace_of(tuple(one for part in steps for one in part), loops=loops)


def series(first: int, last: int, count: int, *modules: str) -> Loop:
    return Loop(first, last, count, str(count), "verified", (modules[0], modules[1]))


def alternating() -> Trace:
    """A model of three times two layers with one mask and one with another, then one of the first kind."""
    one, other = Reference(step=1), Reference(step=2)
    return model(
        [outside(1, "local"), outside(2, "full")],
        layer(3, "h.0", one),
        layer(7, "h.2", other),
        layer(11, "h.9", one),
        [outside(15, "norm")],
        loops=(series(3, 10, 3, "h.0", "h.8"), series(3, 6, 2, "h.0", "h.1")),
    )


def test_equal_layers_are_one_line() -> None:
    trace = model(layer(1, "h.0"), loops=(series(1, 4, 32, "h.0", "h.31"),))
    assert list(attention_summary(trace)) == [
        f"attention ×32 in h.0.attn … h.31.attn: scores B H Lq Lk, 94 KiB each ({trace.steps[0].source.file}:20)"  # type: ignore[union-attr]
    ]


def test_attentions_with_other_masks_or_at_other_places_are_distinct() -> None:
    texts = [text.partition(" (attn")[0].partition("each")[::2] for text in attention_summary(alternating())]
    assert texts == [
        ("attention ×7 in h.0.attn … h.9.attn: scores B H Lq Lk, 94 KiB ", ", mask 1 (local)"),
        ("attention ×3 in h.2.attn … h.8.attn: scores B H Lq Lk, 94 KiB ", ", mask 2 (full)"),
    ]
    two = model(layer(1, "encoder.0"), layer(5, "decoder.0", line=30))
    assert [text.partition(":")[0] for text in attention_summary(two)] == [
        "attention in encoder.0.attn",
        "attention in decoder.0.attn",
    ]


def test_a_mask_that_the_layer_cuts_is_from_outside() -> None:
    steps = [outside(1, "local"), *layer(2, "h.0", Reference(step=6))]
    cut = step(6, "local[:, :Lk]", "getitem", None, tensor("Lq Lk", "view", Reference(step=1)), module="h.0.attn")
    trace = model([*steps[:1], *steps[1:], cut, outside(7, "end")], layer(8, "g"))
    assert next(iter(attention_summary(trace))).startswith(
        "attention in h.0.attn: scores B H Lq Lk, 94 KiB each, mask 1 (local)"
    )


def test_many_distinct_attentions_are_counted() -> None:
    trace = model(*(layer(1 + 4 * place, f"h.{place}", line=place + 1) for place in range(11)))
    *lines, last = attention_summary(trace)
    assert (len(lines), last) == (8, "and 3 more distinct attentions")


def test_fused_attention_says_that_its_scores_are_never_made() -> None:
    fused = replace(
        step(
            1,
            "sdpa(x)",
            "sdpa",
            "context",
            tensor("B H Lq Dk"),
            *(Reference(input=name) for name in ("q", "k", "v", "mask")),
            module="h.0.attn",
        ),
        avoided=Avoided("B H Lq Lk", 2048),
    )
    trace = trace_of((fused,), loops=(series(1, 1, 4, "h.0", "h.3"),))
    (line,) = attention_summary(trace)
    assert line.startswith(
        "attention ×4 in h.0.attn … h.3.attn: scores B H Lq Lk, 2 KiB each, never materialized, mask mask"
    )


def test_a_single_attention_has_no_summary() -> None:
    assert list(attention_summary(model(layer(1, "attn")))) == []
    heads = model(layer(1, None), loops=(Loop(1, 4, 8, "H", "verified"),))
    assert list(attention_summary(heads)) == []
    assert trace_view(heads, ViewOptions()).summary == ()


def test_the_summary_is_left_out_of_a_choice_of_steps() -> None:
    assert trace_view(alternating(), ViewOptions(match="softmax")).summary == ()


def test_headings_are_the_layers() -> None:
    assert module_headings(alternating()) == {
        1: "before h.0",
        3: "h.0 … h.8 ×3: h.0 … h.1 ×2",
        7: "h.0 … h.8 ×3: h.2",
        11: "h.9",
        15: "after h.9",
    }


def test_a_heading_never_falls_inside_a_composite() -> None:
    steps = [*layer(1, "h.0"), *layer(5, "h.1")]
    inner = [steps[0], *(replace(one, parent=1) for one in steps[1:5]), *steps[5:]]
    assert module_headings(trace_of(tuple(inner))) == {1: "h.0", 6: "h.1"}


@pytest.mark.parametrize("modules", [["out.0", "out.1"], ["h.0"] * 4, [None, None]])
def test_no_headings_without_several_layers(modules: list[str | None]) -> None:
    steps = [step(place, "x", "op", None, tensor("B"), module=module) for place, module in enumerate(modules, 1)]
    assert module_headings(trace_of(tuple(steps))) == {}


@pytest.mark.parametrize(
    "modules", [("h.0", "h.99999999999"), ("h.0", "g.3"), ("h.a", "h.b"), ("h.3", "h.0"), ("h.0", "h.6"), ("", "")]
)
def test_modules_that_are_no_series_are_not_counted(modules: tuple[str, str]) -> None:
    trace = model(layer(1, "h.0"), layer(5, "g"), loops=(Loop(1, 4, 10**12, "N", "verified", modules),))
    assert [line.partition(":")[0] for line in attention_summary(trace)] == ["attention ×2 in h.0.attn … g.attn"]
    assert Trace.from_json(trace.to_json()) == trace


def test_names_of_modules_are_text() -> None:
    trace = model(layer(1, "\x1b[31m.0"), layer(5, "out"), loops=(series(1, 4, 3, "\x1b[31m.0", "\x1b[31m.2"),))
    view = trace_view(trace, ViewOptions())
    assert view.summary[0].startswith("attention ×4 in \\x1b[31m.0.attn … out.attn")
    assert view.rows[0].heading == "\\x1b[31m.0 … \\x1b[31m.2 ×3"


def test_long_names_are_cut() -> None:
    trace = model(layer(1, f"{'x' * 5000}.0"), layer(5, "out"))
    assert [len(line) for line in attention_summary(trace)] == [1001]


def test_equal_notes_are_shown_once_with_their_steps() -> None:
    fused = [replace(one, avoided=Avoided("B H Lq Lk", 2048), opaque="a kernel") for one in layer(1, "h.0")[:3]]
    trace = trace_of((fused[0], replace(fused[1], opaque="a script"), fused[2]), notes=("same", "same"))
    lines = [line.text for line in trace_footer(trace, 3)]
    assert "steps 1, … and 3 (3 steps) are fused: their scores B H Lq Lk, 2 KiB, are never materialized" in lines
    assert "steps 1 and 3 are opaque: a kernel" in lines
    assert "step 2 is opaque: a script" in lines
    assert lines.count("note: same") == 1


@pytest.mark.parametrize("name", ["table", "markdown"])
def test_every_format_has_the_summary_and_the_headings(name: str) -> None:
    text = find_renderer(name, "trace")(alternating(), ViewOptions(), Screen(100))
    assert (
        text.index("attention ×7 in h.0.attn")
        < text.index("h.0 … h.8 ×3: h.2")
        < text.index("steps 3 to 10 are repeated 3 times")
    )
