"""Notes about torch's fast path, whose results may differ from the traced ones."""

import pytest
import torch
from torch import nn

import attnshape

NOTE = "by a fast path that can't be seen"


def fast_path_notes(trace: attnshape.Trace) -> list[str]:
    return [note for note in trace.notes if NOTE in note]


def attention(B, L, D, H):
    query = torch.randn(B, L, D)
    return nn.MultiheadAttention(D, H, batch_first=True), (query, query, query), {"need_weights": False}


def padded_layer(B, L, D, H):
    mask = torch.zeros(B, L, dtype=torch.bool)
    mask[:, L - 1] = True
    layer = nn.TransformerEncoderLayer(D, H, D, batch_first=True).eval()
    return nn.TransformerEncoder(layer, 1), (torch.randn(B, L, D),), {"src_key_padding_mask": mask}


def cross(B, Lq, Lk, D, H):
    query, key = torch.randn(B, Lq, D), torch.randn(B, Lk, D)
    return nn.MultiheadAttention(D, H, batch_first=True), (query, key, key)


class Shorter(nn.MultiheadAttention):
    """Returns a shorter result on its fast path, as nested tensors can."""

    def forward(self, x):
        result = super().forward(x, x, x)[0]
        recorded = torch.overrides._get_current_function_mode() is not None
        return result[:, 1:] if torch.backends.mha.get_fastpath_enabled() and not recorded else result


class Unrepeatable(nn.Module):
    """Never returns the same numbers twice, so that the fast path isn't the cause of the difference."""

    calls = 0

    def __init__(self, D, H):
        super().__init__()
        self.inner = nn.MultiheadAttention(D, H, batch_first=True)

    def forward(self, x):
        Unrepeatable.calls += 1
        return self.inner(x, x, x)[0] * Unrepeatable.calls


def test_fast_path_with_other_rounding_is_noted():
    # at these sizes the fused kernel sums in another order
    trace = attnshape.trace(attention, B=2, L=10, D=64, H=4)
    (note,) = fast_path_notes(trace)
    assert "MultiheadAttention" in note
    assert 0 < float(note.rpartition(" ")[2]) < 1e-5


def test_fast_path_that_drops_padding_is_noted():
    # nested tensors return zeros at padded positions, far from the recorded numbers
    (note,) = fast_path_notes(attnshape.trace(padded_layer, B=2, L=10, D=16, H=2))
    assert "TransformerEncoder " in note
    assert float(note.rpartition(" ")[2]) > 0.1


def test_fast_path_with_another_shape_is_noted():
    (note,) = fast_path_notes(attnshape.trace(Shorter, init="D, H", inputs={"x": "B L D"}, B=2, L=10, D=64, H=4))
    assert note.endswith("its output is 2 9 64, not 2 10 64")


def test_no_note_without_a_fast_path():
    assert not fast_path_notes(attnshape.trace(cross, B=2, Lq=5, Lk=7, D=16, H=4))


@pytest.mark.parametrize("how", [{"train": True}, {"device": "meta"}], ids=["training", "meta"])
def test_no_note_in_training_and_on_meta(how):
    assert not fast_path_notes(attnshape.trace(attention, B=2, L=10, D=64, H=4, **how))


def test_disabled_fast_path_stays_disabled():
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        assert not fast_path_notes(attnshape.trace(attention, B=2, L=10, D=64, H=4))
        assert not torch.backends.mha.get_fastpath_enabled()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_nondeterminism_is_not_attributed_to_the_fast_path():
    assert not fast_path_notes(attnshape.trace(Unrepeatable, init="D, H", inputs={"x": "B L D"}, B=2, L=10, D=64, H=4))
    assert torch.backends.mha.get_fastpath_enabled()


def test_modified_inputs_are_not_modified_twice():
    tensor = torch.zeros(2, 3, 16)
    inner = nn.MultiheadAttention(16, 2, batch_first=True).eval()

    def writing(x):
        x += 1
        return inner(x, x, x, need_weights=False)[0]

    assert not fast_path_notes(attnshape.trace(writing, inputs={"x": tensor}, B=2, L=3, D=16))
    assert torch.equal(tensor, torch.ones(2, 3, 16))
