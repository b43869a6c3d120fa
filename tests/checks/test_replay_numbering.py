"""A replay numbers calls as the recorder does, so that the line of each call is known."""

import einops
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnshape.runtime.isolation import isolated
from attnshape.tracing.function_mode import CallMode
from attnshape.tracing.opaque import force_eager
from attnshape.tracing.step_log import StepLog
from tests.checks.subjects import experiment_of

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


@torch.jit.script
def scripted(x):
    return (x * 2).softmax(-1)


def with_torchscript(x):
    return scripted(x + 1) - scripted(x)


def with_einops(x):
    heads = einops.rearrange(x, "b l (h d) -> b h l d", h=1)
    return einops.reduce(heads, "b h l d -> b l", "mean") + einops.repeat(x[..., 0], "b l -> b l r", r=2).sum(-1)


def with_vmap(x):
    return torch.func.vmap(lambda row: row.softmax(-1) @ row.mT)(x)


def with_output_argument(x):
    out = torch.empty_like(x)
    torch.mul(x, 2, out=out)
    F.relu(out, inplace=True)
    return torch.relu_(out) + out.data


def with_caught_failures(x):
    for weight in (x.new_ones(99, 99), x.new_ones(x.shape[-1], x.shape[-1])):
        try:
            x = F.linear(x, weight)
        except RuntimeError:
            x = F.normalize(x, dim=-1)
    try:
        F.multi_head_attention_forward(x, x, x, 8, 3, None, None, None, None, False, 0.0, x, None)
    except (AssertionError, RuntimeError):
        return x + 1
    return x


def with_text(x):
    text = f"{x.sum():.2f} {x[0]}" + repr(x.mean(0))
    return x * len(text)


def with_inference_mode(x):
    with torch.inference_mode():
        doubled = x * 2
        doubled.add_(1)
        doubled[0] = 0
        return doubled.unflatten(-1, (1, -1)).mT


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
UNSEEN = [
    (with_torchscript, TOKENS, None),
    (with_einops, TOKENS, None),
    (with_vmap, TOKENS, None),
    (with_output_argument, TOKENS, None),
    (with_caught_failures, TOKENS, None),
    (with_text, TOKENS, None),
    (with_inference_mode, TOKENS, None),
]
"""Code in which not every call is a separate step."""


RECORDED_AS_WHAT_CALLS_IT = {"norm": "linalg_vector_norm"}
"""A composite of one step becomes that step, under the composite's name."""


class Counter(CallMode):
    """The base class that recording and replay share, alone."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def after_call(self, call, frame, outputs, written, result, before):
        self.operations.append(call.name)
        return result


@pytest.mark.parametrize(("target", "inputs", "init"), TARGETS + UNSEEN, ids=lambda one: getattr(one, "__name__", None))
def test_recorder_and_replay_number_the_same_calls(target, inputs, init):
    experiment = experiment_of(target, inputs, init)
    assert experiment.base.error is None
    recorder = {}

    class Kept(StepLog):
        def add(self, call, number, *rest):
            recorder[number] = call.name
            super().add(call, number, *rest)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("attnshape.tracing.recorder.StepLog", Kept)
        assert experiment.raw.broken is None
    counter = Counter()
    with isolated(), torch.no_grad(), force_eager():
        runnable = experiment._build()
        with counter:
            runnable.call()
    replayed = {event.order: event.operation for event in experiment.base.events}
    assert replayed == recorder == dict(enumerate(counter.operations, 1))
    assert replayed


@pytest.mark.parametrize(("target", "inputs", "init"), TARGETS, ids=lambda one: getattr(one, "__name__", None))
def test_call_numbers_match_the_recorded_steps(target, inputs, init):
    experiment = experiment_of(target, inputs, init)
    assert experiment.base.error is None
    replayed = {event.order: event.operation.rpartition(".")[2] for event in experiment.base.events}
    recorded = {order: step.operation.rpartition(".")[2] for order, step in experiment.steps.items()}
    recorded = {order: RECORDED_AS_WHAT_CALLS_IT.get(name, name) for order, name in recorded.items()}
    assert replayed == recorded
    assert list(replayed) == list(range(1, len(replayed) + 1))


@pytest.mark.parametrize(("target", "inputs", "init"), TARGETS, ids=lambda one: getattr(one, "__name__", None))
def test_replayed_results_have_the_recorded_shapes(target, inputs, init):
    experiment = experiment_of(target, inputs, init)
    for event in experiment.base.events:
        recorded = [output.tensor.shape for output in experiment.steps[event.order].outputs]
        assert [tuple(value.shape) for value in event.values] == recorded
        assert [tuple(output.shape) for output in event.outputs] == recorded


def test_indexed_update_is_three_calls_and_one_step():
    experiment = experiment_of(updated, TOKENS)
    parts = ["__getitem__", "__getitem__", "add_", "__setitem__", "__getitem__", "__getitem__", "add", "mul_"]
    assert [event.operation.rpartition(".")[2] for event in experiment.base.events] == [
        "zeros_like",
        *parts,
        "__setitem__",
        "softmax",
    ]
    recorded = {order: step.operation.rpartition(".")[2] for order, step in experiment.steps.items()}
    updates = {5: "add_", 10: "mul_"}
    assert recorded == {1: "zeros_like", 3: "__getitem__", 7: "__getitem__", 8: "add", 11: "softmax", **updates}


def test_calls_have_the_frame_of_the_traced_code():
    events = experiment_of(plain, HEADS).base.events
    lines = {moment.f_code.co_name for event in events for moment in event.calls}
    assert lines == {"plain"}
    assert all(len(event.calls) == 1 for event in events)
