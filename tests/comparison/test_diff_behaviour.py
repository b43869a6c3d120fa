"""Ten pull requests: each change of behaviour is seen and named, and a refactoring has none."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

import attnshape
from attnshape import Difference, Trace
from attnshape.comparison.behaviour import compare_behaviour
from attnshape.comparison.compare import compare
from attnshape.comparison.outline import outline
from attnshape.comparison.snapshot import read_snapshot, snapshot_of, write_snapshot
from attnshape.model.behaviour import Behaviour, Property, ResultNumbers, ResultsRun, Statement
from attnshape.reporters.registry import find_renderer
from attnshape.reporters.reporter import Screen

BASE = Path(__file__).with_name("pull_request_base.py")
EINSUM = (
    """        scores = query @ key.transpose(-2, -1) * self.scale
        scores = scores.masked_fill(~self.causal[:L, :L], -math.inf)
        weights = self.dropout(scores.softmax(dim=-1))
        context = weights @ value
""",
    """        logits = torch.einsum("bhqd,bhkd->bhqk", query * self.scale, key)
        hidden = ~self.causal[:L, :L]
        logits = logits.masked_fill(hidden, float("-inf"))
        attention = self.dropout(torch.softmax(logits, -1))
        context = torch.matmul(attention, value)
""",
)
CAUSAL = "        scores = scores.masked_fill(~self.causal[:L, :L], -math.inf)\n"
CASES: dict[str, tuple[str, tuple[str, str], dict[str, str]]] = {
    "not causal": ("Fused", ("is_causal=True", "is_causal=False"), {"visible keys": "every query sees every key"}),
    "scale": ("Plain", ("self.Dk**-0.5", "d_model**-0.5"), {"scale": "1/sqrt(D)"}),
    "exchanged": (
        "Plain",
        ("query @ key.transpose(-2, -1)", "key @ query.transpose(-2, -1)"),
        {"results": "other numbers in output"},
    ),
    "softmax": ("Plain", ("scores.softmax(dim=-1)", "scores.softmax(dim=-2)"), {"weights": "runs over axis 2"}),
    "polarity": ("Masked", ("mask[:, None] == 0", "mask[:, None] != 0"), {"visible keys": "where mask is True"}),
    "no dropout": (
        "Plain",
        ("self.dropout(scores.softmax(dim=-1))", "scores.softmax(dim=-1)"),
        {"randomness": "in training mode the result isn't random"},
    ),
    "tiled": (
        "Grouped",
        ("key = key.repeat_interleave(G, dim=1)", "key = key.repeat(1, G, 1, 1)"),
        {"heads": "key heads are repeated", "results": "other numbers"},
    ),
    "no mask": ("Plain", (CAUSAL, ""), {"visible keys": "every query sees every key"}),
    "base": ("Rotary", ("10000.0", "500000.0"), {"positions": "base 500000", "results": "other numbers"}),
    "refactored": ("Plain", EINSUM, {}),
}


def traced(path: Path, name: str) -> Trace:
    init = "D, H, Hkv" if name == "Grouped" else "D, H"
    inputs = {"x": "B L D", **({"mask": "bool B L L"} if name == "Masked" else {})}
    return attnshape.trace(f"{path}:{name}", init=init, inputs=inputs, behaviour=True)


@cache
def before(name: str) -> Trace:
    return traced(BASE, name)


@cache
def difference_of(case: str, folder: Path) -> Difference:
    name, (old, new), _ = CASES[case]
    source = BASE.read_text()
    assert old in source
    path = folder / f"{case.replace(' ', '_')}.py"
    path.write_text(source.replace(old, new))
    return attnshape.diff(before(name), traced(path, name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("versions")


@pytest.mark.parametrize("case", CASES)
def test_pull_request(case: str, folder: Path) -> None:
    difference, expected = difference_of(case, folder), CASES[case][2]
    changed = {change.topic: "; ".join(change.new) for change in difference.behaviour.changed}
    assert expected.keys() <= changed.keys()
    assert not changed or "steps" in difference.kinds
    for topic, text in expected.items():
        assert text in changed[topic]  # type: ignore[index]
    assert ("behaviour" in difference.kinds) == bool(expected)
    if not expected:
        assert not changed
        assert {"visible keys", "scale", "results", "randomness"} <= set(difference.behaviour.same)


def test_integers_are_tokens_beside_a_mask() -> None:
    inputs = {"ids": "int[V] B L", "mask": "bool B L"}
    trace = attnshape.trace(f"{BASE}:Tokens", init="V, D", inputs=inputs, behaviour=True)
    assert trace.behaviour
    (visible,) = (one for one in trace.behaviour.properties if one.topic == "visible keys")
    assert (visible.statements, visible.unknown) == ((Statement("keys are hidden where mask is False"),), ())


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("case", ["not causal", "polarity", "base"])
def test_changes_are_readable_at_every_width(case: str, width: int, folder: Path) -> None:
    difference = difference_of(case, folder)
    text = " ".join(find_renderer("table", "difference")(difference, "", Screen(width, False)).split())
    markdown = find_renderer("markdown", "difference")(difference, "", Screen(width, False))
    for shown in (text, markdown):
        assert f"{', '.join(difference.kinds[:-1]) or 'steps'} and behaviour" in shown
        for change in difference.behaviour.changed:
            assert f"{change.topic}: {'; '.join(change.old)}"[:60] in shown or change.topic == "results"


def test_behaviour_is_saved() -> None:
    trace = before("Fused")
    assert Trace.from_json(trace.to_json()) == trace
    assert attnshape.diff(trace, trace).behaviour.changed == ()
    assert "same behaviour: visible keys" in str(attnshape.diff(trace, trace))


def test_traces_without_behaviour_say_so() -> None:
    trace = before("Fused")
    without = replace(trace, behaviour=attnshape.trace("scaled-dot-product").behaviour)
    difference = attnshape.diff(without, trace)
    assert "behaviour" not in difference.kinds
    assert difference.behaviour.not_compared == "the old side doesn't hold it"
    assert "no difference in sizes, tensors and steps" in str(difference)
    assert "behaviour not compared: the old side doesn't hold it" in str(difference)


def test_snapshots_keep_behaviour(folder: Path) -> None:
    name, (old, new), _ = CASES["not causal"]
    text = write_snapshot(snapshot_of(before(name)))
    assert "visible keys: attends causally" in text
    path = folder / "snapshot_version.py"
    path.write_text(BASE.read_text().replace(old, new))
    kept = read_snapshot(text)
    assert compare(kept, outline(before(name), inner=False)).behaviour.changed == ()
    changed = compare(kept, snapshot_of(traced(path, name))).behaviour.changed
    assert changed[0].topic == "visible keys"


def of(*texts: str, unknown: tuple[str, ...] = (), verified: bool = False, size: int = 3, **given: object) -> Behaviour:
    statements = tuple(Statement(text, verified) for text in texts)
    return Behaviour(
        sizes={"L": size}, properties=(Property(topic="scale", statements=statements, unknown=unknown),), **given
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (of("a"), of("a"), "same"),
        (of("a"), of("b"), "changed"),
        (of("a"), of(), "changed"),
        (of("a"), of(unknown=("the time limit was reached",)), "unknown"),
        (of(unknown=("why",)), of("a"), "unknown"),
        (of("a"), of("b", unknown=("why",)), "changed"),
        (of(unknown=("why",)), of(unknown=("why",)), "unknown"),
        (of(), of(), "unknown"),
        # what holds in all code may only not apply to the other side
        (of("a", verified=True), of(), "unknown"),
        (of("a", "b", verified=True), of("a", verified=True), "same"),
        (of("a", verified=True), of("b"), "changed"),
        (of("a 3"), of("a 4", size=4), "same"),
        (of("a 3"), of("a 4"), "changed"),
    ],
)
def test_topics(old: Behaviour, new: Behaviour, verdict: str) -> None:
    found = compare_behaviour(old, new, lambda one, other: one == other)
    assert ("scale" in found.same) == (verdict == "same")
    assert any(change.topic == "scale" for change in found.changed) == (verdict == "changed")
    assert any(unknown.topic == "scale" for unknown in found.unknown) == (verdict == "unknown")


W = {"w": (2,)}


def numbers(*sums: float, by_place: tuple[float, ...] = ()) -> tuple[ResultsRun, ...]:
    return (
        ResultsRun("name", (ResultNumbers("output", (2,), 1.0, sums),)),
        ResultsRun("place", (ResultNumbers("output", (2,), 1.0, by_place or sums),)),
    )


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (
            {"parameters": {"w": (2,)}, "results": numbers(1.0)},
            {"parameters": {"w": (2,)}, "results": numbers(1.0)},
            "same",
        ),
        (
            {"parameters": {"w": (2,)}, "results": numbers(1.0)},
            {"parameters": {"w": (2,)}, "results": numbers(1.1)},
            "changed",
        ),
        # renamed parameters: only the run by place can show that nothing changed
        (
            {"parameters": W, "results": numbers(1.0, by_place=(3.0,))},
            {"parameters": {"v": (2,)}, "results": numbers(2.0, by_place=(3.0,))},
            "same",
        ),
        (
            {"parameters": W, "results": numbers(1.0, by_place=(3.0,))},
            {"parameters": {"v": (2,)}, "results": numbers(2.0, by_place=(4.0,))},
            "unknown",
        ),
        (
            {"parameters": {"w": (2,)}, "results": numbers(1.0)},
            {"parameters": {"w": (3,)}, "results": numbers(1.0)},
            "unknown",
        ),
        ({"results": numbers(1.0)}, {}, "unknown"),
    ],
)
def test_results(old: dict[str, object], new: dict[str, object], verdict: str) -> None:
    sides = (Behaviour(sizes={"L": 3}, exact=True, **given) for given in (old, new))  # type: ignore[arg-type]
    found = compare_behaviour(*sides, lambda one, other: one == other)
    assert ("results" in found.same) == (verdict == "same")
    assert bool(found.changed) == (verdict == "changed")
    assert any(unknown.topic == "results" for unknown in found.unknown) == (verdict == "unknown")
