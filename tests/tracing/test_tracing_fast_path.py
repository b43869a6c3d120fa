"""What torch's fast path returns where nothing watches, next to what was traced."""

import pytest
import torch
from torch import nn

import attnshape

SAID = "by a fast path that can't be seen"


def said(trace: attnshape.Trace) -> list[str]:
    return [note for note in trace.notes if SAID in note]


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
    """Returns less where its fast path is on and nothing watches, as nested tensors can."""

    def forward(self, x):
        result = super().forward(x, x, x)[0]
        watched = torch.overrides._get_current_function_mode() is not None
        return result[:, 1:] if torch.backends.mha.get_fastpath_enabled() and not watched else result


class Unrepeatable(nn.Module):
    """Never returns the same numbers twice, so the fast path can't be what they differ by."""

    turn = 0

    def __init__(self, D, H):
        super().__init__()
        self.inner = nn.MultiheadAttention(D, H, batch_first=True)

    def forward(self, x):
        Unrepeatable.turn += 1
        return self.inner(x, x, x)[0] * Unrepeatable.turn


def test_a_fast_path_that_rounds_otherwise_is_told():
    # at these sizes the fused kernel's sums run in another order
    trace = attnshape.trace(attention, B=2, L=10, D=64, H=4)
    (note,) = said(trace)
    assert "MultiheadAttention" in note
    assert 0 < float(note.rpartition(" ")[2]) < 1e-5


def test_a_fast_path_that_drops_padding_is_told():
    # what was padded comes back as zeros from nested tensors, far from the numbers of the watched run
    (note,) = said(attnshape.trace(padded_layer, B=2, L=10, D=16, H=2))
    assert "TransformerEncoder " in note
    assert float(note.rpartition(" ")[2]) > 0.1


def test_a_fast_path_whose_result_has_another_shape_is_told():
    (note,) = said(attnshape.trace(Shorter, init="D, H", inputs={"x": "B L D"}, B=2, L=10, D=64, H=4))
    assert note.endswith("its output is 2 9 64, not 2 10 64")


def test_what_takes_no_fast_path_has_no_note():
    assert not said(attnshape.trace(cross, B=2, Lq=5, Lk=7, D=16, H=4))


@pytest.mark.parametrize("how", [{"train": True}, {"device": "meta"}], ids=["training", "meta"])
def test_no_fast_path_is_looked_for_where_none_is_taken(how):
    assert not said(attnshape.trace(attention, B=2, L=10, D=64, H=4, **how))


def test_a_fast_path_that_is_switched_off_stays_so():
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        assert not said(attnshape.trace(attention, B=2, L=10, D=64, H=4))
        assert not torch.backends.mha.get_fastpath_enabled()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_other_causes_of_other_numbers_are_not_put_down_to_it():
    assert not said(attnshape.trace(Unrepeatable, init="D, H", inputs={"x": "B L D"}, B=2, L=10, D=64, H=4))
    assert torch.backends.mha.get_fastpath_enabled()


def test_given_tensors_that_the_code_writes_to_are_not_written_to_again():
    given = torch.zeros(2, 3, 16)
    inner = nn.MultiheadAttention(16, 2, batch_first=True).eval()

    def writing(x):
        x += 1
        return inner(x, x, x, need_weights=False)[0]

    assert not said(attnshape.trace(writing, inputs={"x": given}, B=2, L=3, D=16))
    assert torch.equal(given, torch.ones(2, 3, 16))
