"""A replay counts calls as the recorder does, so that each call is found again at its line."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.checks.subjects import bench_of

TOKENS = {"x": "B L D"}
THREE = {"query": "B L D", "key": "B L D", "value": "B L D"}


def plain(q, k, v):
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def fused(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def composites(q, k, v):
    weights = F.dropout(F.softmax(torch.einsum("bhid,bhjd->bhij", F.normalize(q, dim=-1), k), dim=-1), 0.0)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def in_place(x):
    total = torch.zeros_like(x)
    half = x.shape[0] // 2
    total[half:] = x[half:].mul(2)
    total.add_(x).clamp_(-1, 1)
    total /= 2
    total.mT.copy_(x.mT)
    return total


def attributes(x):
    rows, _, _ = x.shape
    assert x.dtype.is_floating_point
    assert x.grad is None
    assert not x.requires_grad
    return x.mT.real + x.size(0) + rows


def several_outputs(x):
    low, high = x.min(dim=-1), x.max(dim=-1, keepdim=True)
    first, *_ = x.unbind(0)
    return low.values + high.indices.squeeze(-1) + first.sum() + torch.stack(x.split(1, dim=1)).mean()


class Wrapped(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.attention = nn.MultiheadAttention(D, H, batch_first=True)
        self.mixed = nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.Dropout(0.1))

    def forward(self, x):
        x = self.norm(x)
        out, _ = self.attention(x, x, x, need_weights=False)
        with torch.no_grad():
            return self.mixed(out) + x


def updated(x):
    total = torch.zeros_like(x)
    total[:2] += x[:2]
    total[1:] *= x[1:] + 1
    return total.softmax(-1)


HEADS = {"q": "B H Lq Dk", "k": "B H Lk Dk", "v": "B H Lk Dv"}
TARGETS = [
    (plain, HEADS, None),
    (fused, HEADS, None),
    (composites, HEADS, None),
    (in_place, {"x": "B L D"}, None),
    (attributes, {"x": "B L D"}, None),
    (several_outputs, {"x": "B L D"}, None),
    (nn.MultiheadAttention, THREE, "D, H, batch_first=True"),
    (nn.TransformerEncoderLayer, {"src": "B L D"}, "D, H, 32, batch_first=True"),
    (Wrapped, TOKENS, "D, H"),
]


RECORDED_AS_WHAT_CALLS_IT = {"norm": "linalg_vector_norm"}
"""A composite of one step is that step, by the composite's name."""


@pytest.mark.parametrize(("target", "inputs", "init"), TARGETS, ids=lambda one: getattr(one, "__name__", None))
def test_calls_are_numbered_as_the_recorder_numbers_them(target, inputs, init):
    bench = bench_of(target, inputs, init)
    assert bench.base.error is None
    replayed = {event.order: event.name for event in bench.base.events}
    recorded = {order: step.operation.rpartition(".")[2] for order, step in bench.steps.items()}
    recorded = {order: RECORDED_AS_WHAT_CALLS_IT.get(name, name) for order, name in recorded.items()}
    assert replayed == recorded
    assert list(replayed) == list(range(1, len(replayed) + 1))


@pytest.mark.parametrize(("target", "inputs", "init"), TARGETS, ids=lambda one: getattr(one, "__name__", None))
def test_what_a_call_makes_has_the_shapes_that_were_recorded(target, inputs, init):
    bench = bench_of(target, inputs, init)
    for event in bench.base.events:
        recorded = [output.tensor.shape for output in bench.steps[event.order].outputs]
        assert [tuple(value.shape) for value in event.values] == recorded
        assert [tuple(output.shape) for output in event.outputs] == recorded


def test_an_update_is_three_calls_and_one_recorded_step():
    bench = bench_of(updated, TOKENS)
    parts = ["__getitem__", "__getitem__", "add_", "__setitem__", "__getitem__", "__getitem__", "add", "mul_"]
    assert [event.name for event in bench.base.events] == ["zeros_like", *parts, "__setitem__", "softmax"]
    recorded = {order: step.operation.rpartition(".")[2] for order, step in bench.steps.items()}
    updates = {5: "add_", 10: "mul_"}
    assert recorded == {1: "zeros_like", 3: "__getitem__", 7: "__getitem__", 8: "add", 11: "softmax", **updates}


def test_a_call_knows_where_the_traced_code_was():
    events = bench_of(plain, HEADS).base.events
    lines = {moment.f_code.co_name for event in events for moment in event.calls}
    assert lines == {"plain"}
    assert all(len(event.calls) == 1 for event in events)
