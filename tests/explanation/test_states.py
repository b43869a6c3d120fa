"""Reasons of linear attention and the delta rule: where they are given, and their numbers computed again."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from attnshape.model.explanation import Explanation
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.targets.builtin.registry import CATALOG
from attnshape.targets.find import find_target
from tests.explanation.explained import assert_numbers_are_measured, explanation_of, section_of, text_of

OWN = {"linear": ["features", "order"], "gated-delta": ["decay", "correction"]}
EVERY = {topic for topics in OWN.values() for topic in topics}
SIZES = {"N": 6, "M": 9, "E": 8, "F": 5, "T": 7, "K": 4}
QUICK = {"multi-head", "softcap"}


@cache
def explained(name: str) -> Explanation:
    return explanation_of(TargetSpec(name))


def built(name: str) -> tuple[Tensor, ...]:
    """Return the inputs of a mechanism, made again, in float64."""
    target = find_target(TargetSpec(name))
    runnable = target.build(target.sizes.numbers, RunOptions())
    return tuple(tensor.double() for tensor in (*runnable.args, *runnable.kwargs.values()))


def topics(explanation: Explanation) -> list[str]:
    return [section.topic for section in explanation.sections if section.topic in EVERY]


def numbers(name: str, topic: str) -> dict[str, float]:
    section = section_of(explained(name), topic)
    assert section is not None
    return {one.name: one.value for one in section.measurements if one.value is not None}


def assert_numbers(name: str, topic: str, expected: dict[str, float]) -> None:
    found = numbers(name, topic)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert math.isclose(found[key], float(value), rel_tol=2e-4, abs_tol=1e-7), (key, found[key], value)


def from_code(folder: Path, code: str, **inputs: str) -> Explanation:
    (folder / "code.py").write_text(code)
    sizes = {symbol: size for symbol, size in SIZES.items() if symbol in " ".join(inputs.values())}
    return explanation_of(TargetSpec(f"{folder}/code.py:f", inputs=inputs, sizes=sizes))


# where the reasons are given


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in {*OWN, *QUICK} else pytest.mark.slow) for name in CATALOG]
)
def test_only_these_mechanisms_have_states(name: str) -> None:
    assert topics(explained(name)) == OWN.get(name, [])


@pytest.mark.parametrize("name", ["linear", "linear:bidirectional", "gated-delta"])
def test_text_has_no_other_numbers_and_each_step_once(name: str) -> None:
    explanation = explained(name)
    assert_numbers_are_measured(explanation)
    listed = [index for part in explanation.parts for section in part.sections for index in section.steps]
    assert sorted(listed) == [step.index for step in explanation.trace.steps if step.index not in _composites(name)]
    assert not any("No attention" in paragraph.text for part in explanation.parts for paragraph in part.paragraphs)


def _composites(name: str) -> frozenset[int]:
    return frozenset(explained(name).trace.composites)


LINEAR = """
def f(a, b, c):
    a, b = a.relu() + 0.1, b.relu() + 0.1
    s = b.mT @ c
    return a @ s / (a @ b.sum(1, keepdim=True).mT)
"""
LINEAR_INPUTS = {"a": "B N E", "b": "B M E", "c": "B M F"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", ["features", "order"]),
        ("    a, b = a.relu() + 0.1, b.relu() + 0.1\n", "", ["order"]),
        (" / (a @ b.sum(1, keepdim=True).mT)", "", []),
        ("a @ b.sum(1, keepdim=True).mT", "a @ b.mean(1, keepdim=True).mT", []),
        ("a @ s / (", "a @ b.mT @ c / (", []),
        ("a @ s / (a @ b.sum(1, keepdim=True).mT)", "(a @ b.mT).softmax(-1) @ c", []),
    ],
)
def test_linear_attention_is_recognised_by_its_numbers(old: str, new: str, expected: list[str], tmp_path: Path) -> None:
    assert old in LINEAR
    assert topics(from_code(tmp_path, LINEAR.replace(old, new) if old else LINEAR, **LINEAR_INPUTS)) == expected


IN_ONE_CALL = """
from torch import einsum

def f(a, b, c):
    a, b = a.sigmoid(), b.exp()
    s = einsum("nshd,nshm->nhmd", b, c)
    z = 1 / (einsum("nlhd,nhd->nlh", a, b.sum(1)) + 1e-6)
    return einsum("nlhd,nhmd,nlh->nlhm", a, s, z)
"""
IN_ANY_ORDER = """
from torch import einsum

def f(a, b, c):
    a, b = a.sigmoid().transpose(1, 2), b.exp().transpose(1, 2)
    s = einsum("...nd,...ne->...de", b, c.transpose(1, 2))
    return einsum("...de,...nd->...ne", s, a) * (1 / einsum("...nd,...d->...n", a, b.sum(2))).unsqueeze(-1)
"""
DIVIDED_AFTERWARDS = """
from torch import einsum

def f(a, b, c):
    a, b, c = a.sigmoid().transpose(1, 2), b.exp().transpose(1, 2), c.transpose(1, 2)
    return einsum("bhld,bhde->bhle", a, b.mT @ c) / einsum("bhld,bhd->bhl", a, b.sum(2)).unsqueeze(-1)
"""
EQUATION_INPUTS = {"a": "B N H E", "b": "B M H E", "c": "B M H F"}


@pytest.mark.parametrize("code", [IN_ONE_CALL, IN_ANY_ORDER, DIVIDED_AFTERWARDS])
def test_order_of_equations(code: str, tmp_path: Path) -> None:
    explanation = from_code(tmp_path, code, **EQUATION_INPUTS)
    assert_numbers_are_measured(explanation)
    assert topics(explanation) == ["features", "order"]
    order = section_of(explanation, "order")
    sizes = {symbol: size.size for symbol, size in explanation.trace.sizes.items()}
    B, H, N, M, E, F = (sizes[symbol] for symbol in ("B", "H", "N", "M", "E", "F"))
    found = {one.name: one.value for one in order.measurements}
    # a call may multiply by the inverse of the sums too
    scaled = B * H * N * F if code is IN_ONE_CALL else 0
    assert found["FLOPs of the order of the code"] == 2 * B * H * E * F * (N + M) + scaled
    assert found["FLOPs with the scores first"] == 2 * B * H * N * M * (E + F)
    assert found["scores that aren't computed"] == B * H * N * M
    assert f"state of E={E} × F={F} numbers for each of B={B} sequences and H={H} heads" in text_of(order)
    target = find_target(TargetSpec(f"{tmp_path}/code.py:f", inputs=EQUATION_INPUTS, sizes=sizes))
    runnable = target.build(target.sizes.numbers, RunOptions())
    query, key, _ = (*runnable.args, *runnable.kwargs.values())
    query, key = query.double().sigmoid().transpose(1, 2), key.double().exp().transpose(1, 2)
    features = {one.name: one.value for one in section_of(explanation, "features").measurements}
    assert math.isclose(features["least sum"], float((query @ key.mT).sum(-1).min()), rel_tol=1e-4)
    assert math.isclose(features["least feature"], float(min(query.min(), key.min())), rel_tol=1e-4)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("b.sum(1)", "b.mean(1)"),
        ("a, s, z)", "a, s, z.square())"),
        ("nshd,nshm->nhmd", "nshd,nthm->nhmd"),
        ("nlhd,nhmd,nlh->nlhm", "nlhd,nhmd,nlh->nlhd"),
        ("a, s, z)", "a + 1, s, z)"),
    ],
)
def test_equations_of_other_numbers_have_no_order(old: str, new: str, tmp_path: Path) -> None:
    assert old in IN_ONE_CALL
    assert topics(from_code(tmp_path, IN_ONE_CALL.replace(old, new), **EQUATION_INPUTS)) == []


TOKEN_BY_TOKEN = """
from torch import einsum

def f(a, b, c):
    a, b = a.sigmoid(), b.exp()
    s = einsum("blhd,blhm->blhdm", b, c).cumsum(1)
    return einsum("blhd,blhdm->blhm", a, s) / einsum("blhd,blhd->blh", a, b.cumsum(1)).unsqueeze(-1)
"""
OUTER_BY_NUMBERS = """
from torch import einsum

def f(a, b, c):
    a, b = a.sigmoid(), b.exp()
    s = (c[..., None, :] * b[..., None]).cumsum(dim=1)
    z = 1 / ((a * b.cumsum(dim=1)).sum(-1, keepdim=True) + 1e-6)
    return einsum("...dm,...d->...m", s, a) * z
"""
HEADS_FIRST = """
def f(a, b, c):
    a, b, c = a.sigmoid().transpose(1, 2), b.exp().transpose(1, 2), c.transpose(1, 2)
    s = (b.unsqueeze(-1) * c.unsqueeze(-2)).cumsum(-3)
    return ((a.unsqueeze(-2) @ s) / (a.unsqueeze(-2) @ b.cumsum(-2).unsqueeze(-1))).squeeze(-2)
"""
TOKEN_INPUTS = {"a": "B N H E", "b": "B N H E", "c": "B N H F"}


@pytest.mark.parametrize("code", [TOKEN_BY_TOKEN, OUTER_BY_NUMBERS, HEADS_FIRST])
def test_order_of_running_sums(code: str, tmp_path: Path) -> None:
    explanation = from_code(tmp_path, code, **TOKEN_INPUTS)
    assert_numbers_are_measured(explanation)
    assert topics(explanation) == ["features", "order"]
    order = section_of(explanation, "order")
    sizes = {symbol: size.size for symbol, size in explanation.trace.sizes.items()}
    B, H, N, E, F = (sizes[symbol] for symbol in ("B", "H", "N", "E", "F"))
    found = {one.name: one.value for one in order.measurements}
    assert found["FLOPs of the order of the code"] == B * H * N * E * F * (1 + 1 + 2)
    assert found["FLOPs with the scores first"] == 2 * B * H * N * N * (E + F)
    assert f"state of E={E} × F={F} numbers after each of N={N} tokens" in text_of(order)
    assert "sees no later key" in text_of(order)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("b.cumsum(1)", "b"),
        (".cumsum(1)\n", ".cumsum(1).cumsum(1)\n"),
        ("b, c).cumsum(1)", "b, c).flip(1).cumsum(1)"),
        ("a, s)", "a, s.square())"),
        ("blhd,blhdm->blhm", "blhm,blhdm->blhd"),
    ],
)
def test_running_sums_of_other_numbers_have_no_order(old: str, new: str, tmp_path: Path) -> None:
    assert old in TOKEN_BY_TOKEN
    inputs = TOKEN_INPUTS | ({"c": "B N H E"} if "blhm->blhd" in new or "->blhd" in new else {})
    assert topics(from_code(tmp_path, TOKEN_BY_TOKEN.replace(old, new), **inputs)) == []


DELTA = """
def f(k, v, r, g):
    s = k.new_zeros(k.shape[0], k.shape[2], v.shape[2])
    for i in range(k.shape[1]):
        s = s * g[:, i].sigmoid()[:, None, None]
        was = (k[:, i, None] @ s)[:, 0]
        s = s + k[:, i, :, None] * (r[:, i, None] * (v[:, i] - was))[:, None]
    return s
"""
DELTA_INPUTS = {"k": "B T K", "v": "B T E", "r": "B T", "g": "B T"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", ["decay", "correction"]),
        ("        s = s * g[:, i].sigmoid()[:, None, None]\n", "", ["correction"]),
        ("v[:, i] - was", "v[:, i]", []),
        ("v[:, i] - was", "v[:, i] - 2 * was", []),
        ("(k[:, i, None] @ s)", "(v[:, i, None] @ s.mT @ s)", []),
        ("g[:, i].sigmoid()", "g[:, i].exp()", ["correction"]),
    ],
)
def test_delta_rule_is_recognised_by_its_numbers(old: str, new: str, expected: list[str], tmp_path: Path) -> None:
    assert old in DELTA
    assert topics(from_code(tmp_path, DELTA.replace(old, new) if old else DELTA, **DELTA_INPUTS)) == expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(k[:, i, None] @ s)[:, 0]", "(s * k[:, i, :, None]).sum(-2)"),
        ("(k[:, i, None] @ s)[:, 0]", "torch.einsum('bk,bkv->bv', k[:, i], s)"),
        ("(k[:, i, None] @ s)[:, 0]", "torch.einsum('bkv,bk->bv', s, k[:, i])"),
        (
            "k[:, i, :, None] * (r[:, i, None] * (v[:, i] - was))[:, None]",
            "torch.einsum('bk,bv->bkv', k[:, i], r[:, i, None] * (v[:, i] - was))",
        ),
        ("s = s + k", "s = s.clone() + k"),
    ],
)
def test_delta_rule_in_other_words(old: str, new: str, tmp_path: Path) -> None:
    assert old in DELTA
    explanation = from_code(tmp_path, "import torch\n" + DELTA.replace(old, new), **DELTA_INPUTS)
    assert topics(explanation) == ["decay", "correction"]
    assert_numbers_are_measured(explanation)


# their numbers


@pytest.mark.parametrize("name", ["linear", "linear:bidirectional"])
def test_numbers_of_features(name: str) -> None:
    query, key, _ = built(name)
    length = query.shape[-2]
    seen = torch.ones(length, key.shape[-2]).bool()
    seen = seen.tril() if name == "linear" else seen
    made = [functional.elu(one) + 1 for one in (query, key)]
    raw, products = (one @ other.mT * seen for one, other in ((query, key), made))
    assert_numbers(
        name,
        "features",
        {
            "least feature": min(float(one.min()) for one in made),
            "negative products without the features": (raw < 0).sum() / (seen.sum() * raw.shape[0] * raw.shape[1]),
            "sum nearest to 0 without the features": raw.sum(-1).abs().min(),
            "least sum": products.sum(-1).min(),
        },
    )


def test_numbers_of_the_order() -> None:
    B, H, L, Dk, Dv = 2, 8, 10, 64, 96
    # of a token: the outer product, its addition, and a multiplication and an addition for each number of the state
    ordered, pairs = B * H * L * 4 * Dk * Dv, B * H * 2 * L * L * (Dk + Dv)
    assert_numbers(
        "linear",
        "order",
        {
            "FLOPs of the order of the code": ordered,
            "FLOPs with the scores first": pairs,
            "scores that aren't computed": B * H * L * L,
            "length from which the order saves operations": 4 * Dk * Dv / (2 * (Dk + Dv)),
        },
    )
    text = text_of(section_of(explained("linear"), "order"))
    assert "3,932,160 = `4*B*H*L*Dk*Dv`" in text
    assert "512,000 = `2*B*H*L*L*Dk+2*B*H*L*L*Dv`" in text
    assert "From about L = 77 on" in text
    Lq, Lk = 10, 16
    assert_numbers(
        "linear:bidirectional",
        "order",
        {
            "FLOPs of the order of the code": 2 * B * H * (Lk + Lq) * Dk * Dv,
            "FLOPs with the scores first": 2 * B * H * Lq * Lk * (Dk + Dv),
            "scores that aren't computed": B * H * Lq * Lk,
        },
    )


def test_numbers_of_decay_and_correction() -> None:
    _, key, value, decay, rate = built("gated-delta")
    key = key / key.norm(dim=-1, keepdim=True)

    def write(state: Tensor, token: int, *, correct: bool = True) -> Tensor:
        k, v = key[:, :, token], value[:, :, token]
        old = torch.einsum("bhk,bhkv->bhv", k, state) if correct else 0
        return state + torch.einsum("bhk,bhv->bhkv", k, rate[:, :, token, None] * (v - old))

    def after_all(factors: Tensor) -> Tensor:
        state = torch.zeros(2, 8, 64, 96, dtype=torch.float64)
        for token in range(10):
            state = write(factors[:, :, token, None, None] * state, token)
        return state

    def distance(*, correct: bool) -> Tensor:
        state = after_all(decay)
        for _ in range(10):
            state = write(state, 9, correct=correct)
        last = value[:, :, 9]
        return (torch.einsum("bhk,bhkv->bhv", key[:, :, 9], state) - last).norm() / last.norm()

    later = decay[:, :, 1:]
    assert_numbers(
        "gated-delta",
        "decay",
        {
            "least factor of the state": later.min(),
            "largest factor of the state": later.max(),
            "tokens": 10,
            "share of the first token that is left": later.prod(-1).mean(),
            "norm of the last state": after_all(decay).norm(),
            "norm of the last state without the factors": after_all(torch.ones_like(decay)).norm(),
        },
    )
    assert_numbers(
        "gated-delta",
        "correction",
        {
            "mean square length of a key": 1,
            "mean rate": rate.mean(),
            "distance after writing again": distance(correct=True),
            "distance after writing again without the subtraction": distance(correct=False),
        },
    )
    assert numbers("gated-delta", "correction")["distance after writing again"] < 1
