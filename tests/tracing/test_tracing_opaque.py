"""Code that can't be traced is one opaque step or a note; other code is traced as usual."""

import threading

import msgspec
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import attnshape

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore::UserWarning:torch")

PAIR = {"query": "B Lq D", "key": "B Lk D"}


@torch.jit.script
def scripted_weights(query, key):
    return (query @ key.mT).softmax(-1)


class Feed(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.up = nn.Linear(D, 2 * D)

    def forward(self, x):
        return self.up(x).relu()


class HoldsScripted(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.feed = torch.jit.script(Feed(D))

    def forward(self, x):
        hidden = self.feed(x)
        return hidden.tanh()


def uses_scripted(query, key):
    weights = scripted_weights(query, key)
    return weights @ key


def scripted(B, L, D):
    return torch.jit.script(Feed(D)), (torch.randn(B, L, D),)


def traced(B, L, D):
    return torch.jit.trace(Feed(D), torch.randn(B, L, D)), (torch.randn(B, L, D),)


def scripted_function(B, Lq, Lk, D):
    return scripted_weights, (torch.randn(B, Lq, D), torch.randn(B, Lk, D))


def signatures(trace):
    return [output.tensor.signature for step in trace.steps for output in step.outputs]


def test_scripted_function_is_one_opaque_step():
    trace = attnshape.trace(uses_scripted, inputs=PAIR)
    first, second = trace.steps
    assert first.opaque == "TorchScript"
    assert [operand.input for operand in first.operands] == ["query", "key"]
    assert first.outputs[0].name == "weights"
    assert signatures(trace) == ["B Lq Lk", "B Lq D"]
    assert second.opaque is msgspec.UNSET
    assert second.operands[0].step == 1


def test_scripted_submodule_is_one_opaque_step():
    trace = attnshape.trace(HoldsScripted, init="D", inputs={"x": "B L D"})
    assert trace.steps[0].opaque == "TorchScript"
    assert len(trace.steps) == 2
    assert trace.steps[0].outputs[0].name == "hidden"
    assert signatures(trace) == ["B L 2*D"] * 2


@pytest.mark.parametrize("case", [scripted, traced, scripted_function])
def test_torchscript_target_is_one_opaque_step(case):
    trace = attnshape.trace(case)
    (step,) = trace.steps
    assert step.opaque == "TorchScript"
    assert len(step.operands) == (2 if case is scripted_function else 1)
    assert trace.complete


def test_torchscript_is_unpatched_afterwards():
    before = [torch._C.ScriptFunction.__call__, torch._C.ScriptMethod.__call__]
    with attnshape.record() as recording:
        scripted_weights(torch.ones(2, 3), torch.ones(2, 3))
    assert recording.trace.steps[-1].opaque == "TorchScript"
    assert [torch._C.ScriptFunction.__call__, torch._C.ScriptMethod.__call__] == before


def test_in_place_write_in_torchscript_is_detected():
    @torch.jit.script
    def add_one(x):
        x += 1
        return x

    def writing(query):
        return add_one(query * 2)

    trace = attnshape.trace(writing, inputs={"query": "B L D"})
    assert trace.steps[1].outputs[0].tensor.storage.kind == "inplace"


def test_axis_hidden_by_vmap_is_noted():
    def mapped(query, key):
        scores = torch.func.vmap(lambda q, k: q @ k.mT)(query, key)
        return scores.softmax(-1)

    trace = attnshape.trace(mapped, inputs=PAIR)
    assert "an axis that vmap maps over is hidden in step 1, step 2" in trace.notes
    assert signatures(trace)[1:] == ["Lq Lk", "B Lq Lk"]
    assert trace.steps[2].operands[0].step == 2


def test_no_vmap_note_without_vmap():
    trace = attnshape.trace(uses_scripted, inputs=PAIR)
    assert not [note for note in trace.notes if "vmap" in note]


def test_writes_inside_vmap_are_steps():
    def one(q):
        out = torch.zeros_like(q)
        out[0] = q[1]
        return out

    def mapped(query):
        return torch.func.vmap(one)(query)

    trace = attnshape.trace(mapped, inputs={"query": "B L D"})
    write = next(step for step in trace.steps if step.operation.endswith("__setitem__"))
    assert write.outputs[0].tensor.storage.kind == "inplace"


class Weights(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key):
        return (query @ key.mT).softmax(-1)


@pytest.mark.parametrize("how", ["custom", "reentrant", "not reentrant"])
def test_custom_functions_and_checkpoints_are_traced(how):
    def attend(query, key):
        if how == "custom":
            weights = Weights.apply(query, key)
        else:
            weights = checkpoint(lambda q, k: (q @ k.mT).softmax(-1), query, key, use_reentrant=how == "reentrant")
        return weights @ key

    trace = attnshape.trace(attend, inputs=PAIR)
    assert trace.complete
    # torch 2.11's checkpoint also creates empty tensors
    outputs = [step.outputs[0] for step in trace.steps if step.outputs[0].tensor.signature != "0"]
    assert [output.tensor.signature for output in outputs] == ["B D Lk", "B Lq Lk", "B Lq Lk", "B Lq D"]
    assert outputs[2].name == "weights"


def in_other_threads(query, key):
    results = []
    for head in range(query.shape[1]):
        thread = threading.Thread(target=lambda head=head: results.append(query[:, head] @ key[:, head].mT))
        thread.start()
        thread.join()
    scores = torch.stack(results, 1)
    return scores.softmax(-1)


def test_result_of_another_thread_is_an_opaque_step():
    trace = attnshape.trace(in_other_threads, inputs={"query": "B H Lq Dk", "key": "B H Lk Dk"}, H=3)
    assert signatures(trace) == ["B Lq Lk", "B H Lq Lk", "B H Lq Lk"]
    assert trace.steps[0].opaque == "it was made in another thread, whose steps can't be seen"
    assert trace.steps[0].source is None
    assert [(loop.first, loop.last, loop.expression) for loop in trace.loops] == [(1, 1, "H")]
    assert [reference.step for reference in trace.steps[1].operands] == [1, 1, 1]
    assert "×H: step 1 is repeated 3 times and shown once" in str(trace)


def returned_from_a_thread(x):
    results = []
    thread = threading.Thread(target=lambda: results.extend((x.mT, x)))
    thread.start()
    thread.join()
    return results


def test_returned_result_of_another_thread_is_an_opaque_step():
    trace = attnshape.trace(returned_from_a_thread, inputs={"x": "B L D"})
    assert signatures(trace) == ["B D L"]
    assert [(output.name, output.of.step, output.of.input) for output in trace.outputs] == [
        ("output[0]", 1, None),
        ("output[1]", None, "x"),
    ]


def test_modules_called_by_other_threads_do_not_mix_with_recorded_ones():
    other, own = nn.Linear(3, 3), nn.Linear(3, 3)
    started, over = threading.Event(), threading.Event()

    def stay(*_):
        # the other thread is inside its module while this one calls its own
        started.set()
        over.wait(5)

    other.register_forward_pre_hook(stay)

    class Threaded(nn.Module):
        def __init__(self):
            super().__init__()
            self.own = own
            self.other = other

        def forward(self, x):
            thread = threading.Thread(target=self.other, args=(x,))
            started.clear()
            over.clear()
            thread.start()
            started.wait(5)
            result = self.own(x)
            over.set()
            thread.join()
            return result * 2

    trace = attnshape.trace(Threaded(), inputs={"x": torch.ones(2, 3)}, B=2, D=3)
    assert [step.module for step in trace.steps] == ["own", None]


@pytest.mark.parametrize("whole", [False, True], ids=["inside", "whole"])
def test_compiled_code_runs_eagerly_with_a_note(whole):
    def weights(query, key):
        return (query @ key.mT).softmax(-1)

    compiled = torch.compile(weights)

    def attend(query, key):
        return compiled(query, key).relu()

    trace = attnshape.trace(compiled if whole else attend, inputs=PAIR)
    assert trace.complete
    assert signatures(trace)[:3] == ["B D Lk", "B Lq Lk", "B Lq Lk"]
    assert [note for note in trace.notes if "torch.compile" in note]


def test_compiled_module_runs_eagerly_with_a_note():
    trace = attnshape.trace(torch.compile(nn.Linear(4, 3)), inputs={"input": "B 4"})
    assert [step.operation for step in trace.steps] == ["torch.nn.functional.linear"]
    assert [note for note in trace.notes if "torch.compile" in note]


def test_no_compile_note_without_compiled_code():
    torch.compile(nn.Identity())  # loads the compiler
    assert not [note for note in attnshape.trace(uses_scripted, inputs=PAIR).notes if "torch.compile" in note]


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_flex_attention_is_one_opaque_step_with_avoided_scores(compiled):
    from torch.nn.attention.flex_attention import flex_attention

    function = torch.compile(flex_attention) if compiled else flex_attention

    def attend(query, key, value):
        context = function(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
        return context.transpose(1, 2)

    inputs = {"query": "B Lq H Dk", "key": "B Lk H Dk", "value": "B Lk H Dv"}
    trace = attnshape.trace(attend, inputs=inputs, B=2, Lq=10, Lk=16, H=4, Dk=8, Dv=12)
    fused = trace.steps[3]
    assert len(trace.steps) == 5
    assert fused.opaque == "its scores are made after all where it is not compiled"
    assert [operand.step for operand in fused.operands] == [1, 2, 3]
    assert [output.tensor.signature for output in fused.outputs] == ["B H Lq Dv"]
    assert fused.avoided.signature == "B H Lq Lk"
    assert fused.avoided.bytes == 2 * 4 * 10 * 16 * 4
    assert any("torch.compile" in note for note in trace.notes) == compiled


def test_flex_attention_with_a_block_mask_has_one_result():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 10, 10, device="cpu")

    def attend(query):
        context = flex_attention(query, query, query, block_mask=mask)
        return context * 2

    trace = attnshape.trace(attend, inputs={"query": torch.randn(2, 4, 10, 8)}, B=2, L=10, H=4, Dk=8)
    fused, doubled = trace.steps
    assert [output.name for output in fused.outputs] == ["context"]
    assert doubled.operands[0].step == 1


def test_flex_attention_returns_the_requested_lse():
    from torch.nn.attention.flex_attention import flex_attention

    def attend(query, key, value, bias):
        def biased(score, b, h, i, j):
            return score + bias[h]

        context, sums = flex_attention(query, key, value, score_mod=biased, return_lse=True)
        return context * sums.unsqueeze(-1)

    inputs = {"query": "B H Lq Dk", "key": "B H Lk Dk", "value": "B H Lk Dv", "bias": "H"}
    trace = attnshape.trace(attend, inputs=inputs, B=2, Lq=10, Lk=16, H=4, Dk=8, Dv=12)
    fused = trace.steps[0]
    assert [operand.input for operand in fused.operands] == ["query", "key", "value"]
    assert [output.name for output in fused.outputs] == ["context", "sums"]
    assert len(trace.steps) == 3
