"""Masks and biases whose axes are written in the claim: what the sizes alone don't tell is judged."""

import pytest
import torch

import attnshape
from attnshape.errors import AttnshapeError
from attnshape.model.report import Report
from attnshape.options.claims import parse_claims

SIZES = {"B": 3, "H": 5, "L": 11, "Dk": 4}


def folded(q, k, v, hidden):
    """All are folded, (B H)."""
    scores = torch.bmm(q, k.transpose(1, 2)) / q.shape[-1] ** 0.5
    return torch.bmm(scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


def as_it_is(q, k, v, mask):
    return folded(q, k, v, mask)


def heads_inside(q, k, v, mask, heads):
    return folded(q, k, v, mask.unflatten(0, (heads, -1)).transpose(0, 1).flatten(0, 1))


def folded_case(attention, axes, batch_outside):
    def case(B, H, L, Dk):
        q, k, v = (torch.randn(B * H, L, Dk) for _ in range(3))
        hidden = torch.rand(B, H, L, L) < 0.4
        hidden[..., 0] = False
        mask = (hidden if batch_outside else hidden.transpose(0, 1)).flatten(0, 1)
        more = (H,) if attention is heads_inside else ()
        return attention, (q, k, v, mask, *more), {}, [f"mask=drop: {axes}"]

    return case


def four_axes(q, k, v, scores_of):
    weights = scores_of(q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    return weights @ v


def keys_first(q, k, v, keep):
    return four_axes(q, k, v, lambda scores: scores.masked_fill(~keep.mT[:, None], -torch.inf))


def queries_first(q, k, v, keep):
    return four_axes(q, k, v, lambda scores: scores.masked_fill(~keep[:, None], -torch.inf))


def transposed_case(attention, axes):
    def case(B, H, L, Dk):
        q, k, v = (torch.randn(B, H, L, Dk) for _ in range(3))
        keep = torch.rand(B, L, L) < 0.6
        keep = keep | torch.eye(L, dtype=torch.bool)
        return attention, (q, k, v, keep), {}, [f"keep=keep: {axes}"]

    return case


def bias_as_it_is(q, k, v, bias):
    scores = q @ k.mT / q.shape[-1] ** 0.5 + bias
    return scores.softmax(-1) @ v


def bias_turned(q, k, v, bias):
    scores = q @ k.mT / q.shape[-1] ** 0.5 + bias.mT
    return scores.softmax(-1) @ v


def bias_case(attention, axes, *, is_folded):
    def case(B, H, L, Dk):
        shape = (B * H,) if is_folded else (B, H)
        q, k, v = (torch.randn(*shape, L, Dk) for _ in range(3))
        return attention, (q, k, v, torch.randn(*shape, L, L)), {}, [f"bias=bias: {axes}"]

    return case


def checked(case) -> Report:
    return attnshape.check(case, **SIZES)


@pytest.mark.parametrize(
    ("wrong", "right", "code", "sentence"),
    [
        (
            folded_case(as_it_is, "(H B) L L", False),
            folded_case(heads_inside, "(H B) L L", False),
            "AS403",
            "mask hides exactly the keys that it should",
        ),
        (
            folded_case(heads_inside, "(B H) L L", True),
            folded_case(as_it_is, "B*H L L", True),
            "AS403",
            "mask hides exactly the keys that it should",
        ),
        (
            transposed_case(queries_first, "B Lk Lq"),
            transposed_case(keys_first, "B Lk Lq"),
            "AS402",
            "keep hides exactly the keys that it should",
        ),
        (
            bias_case(bias_as_it_is, "B H Lk Lq", is_folded=False),
            bias_case(bias_turned, "B H Lk Lq", is_folded=False),
            "AS706",
            "bias is added along the right axes",
        ),
        (
            bias_case(bias_as_it_is, "(H B) L L", is_folded=True),
            bias_case(bias_as_it_is, "(B H) L L", is_folded=True),
            "AS707",
            "bias is added along the right axes",
        ),
    ],
    ids=["heads outside", "heads inside", "mask transposed", "bias transposed", "bias folded"],
)
def test_written_axes_tell_right_from_wrong(wrong, right, code, sentence):
    report = checked(wrong)
    assert [finding.code for finding in report.findings if finding.level == "error"] == [code]
    assert sentence not in report.verified
    report = checked(right)
    assert [finding for finding in report.findings if finding.level == "error"] == []
    assert report.undecided == ()
    assert sentence in report.verified


@pytest.mark.parametrize(
    ("axes", "roles"),
    [
        ("B H Lq Lk", ["b", "h", "q", "k"]),
        ("(B H) Lq Lk", ["bh", "q", "k"]),
        ("(H B) 1 L", ["hb", "", "k"]),
        ("L L", ["q", "k"]),
        ("L Lq", ["k", "q"]),
        ("B Lp+L", ["b", "k"]),
        ("H T T", ["h", "q", "k"]),
        ("H*B Lk", ["hb", "k"]),
    ],
)
def test_roles_of_written_axes(axes, roles):
    assert [axis.role for axis in parse_claims([f"m=keep: {axes}"]).axes["m"]] == roles


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m=keep:", "no axes are written"),
        ("m=keep: L L L", "more axes of lengths than queries and keys"),
        ("m=keep: B B L", "two axes for the same"),
        ("m=keep: (B H) H L", "two axes for the same"),
        ("m=keep: (B L) L", "(B L) is no axis of a mask or a bias"),
        ("m=keep: 2 L", "2 is no axis of a mask or a bias"),
        ("m=keep: (B H L", "'(' isn't expected in axes"),
        ("m=keep: L.T", "isn't an axis expression"),
        ("m=kept: B L", "isn't what an argument can be"),
    ],
)
def test_invalid_axes_are_refused(text, message):
    with pytest.raises(AttnshapeError) as raised:
        parse_claims([text])
    assert message in raised.value.message


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ("B H Lq Lk", "mask has 3 axes, and 4 are written: B H Lq Lk"),
        ("H L L", "mask has 15 indices along axis 0, and H is 5"),
    ],
)
def test_axes_that_the_argument_lacks_are_refused(axes, message):
    with pytest.raises(AttnshapeError) as raised:
        checked(folded_case(as_it_is, axes, True))
    assert message in raised.value.message
