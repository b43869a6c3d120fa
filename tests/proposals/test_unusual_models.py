"""Arguments that the names of the parameters don't tell, and the rest of the code does."""

import shlex
from pathlib import Path

import pytest

from attnshape.errors import AttnshapeError
from attnshape.options.flags import flag_words
from attnshape.options.spec import TargetSpec
from attnshape.proposals.complete import complete
from tests.cli.running import Attnshape

MODELS = str(Path(__file__).parent / "unusual_models.py")


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("OfKind", "--init \"D, H, 'short', Kind.PLAIN\" --input 'x: B L D'"),
        ("Constructed", "--init 'dim=D, heads=H, mystery=7, sparsity=0' --input 'x: B L D'"),
        ("OfWindow", "--init 'D, (W, W), H' --input 'x: B W*W D'"),
        (
            "InWindows",
            "--init 'D, heads=H, window_size=W' --input 'x: B height width W W D' --dim height=14 --dim width=21",
        ),
        ("CutIntoWindows", "--init 'D, H, W' --input 'x: B D 2*W 3*W'"),
        (
            "OfSides",
            "--init 'D, H' --input 'x: B height*width D' --with H=height --with W=width --dim height=16 --dim width=24",
        ),
        (
            "Relative",
            "--init 'D, H' --input 'query: B L D' --input 'key: B L D' --input 'value: B L D' "
            "--input 'pos_embedding: B 2*L-1 D'",
        ),
        (
            "RotatedInThree",
            "--init 'D, H' --input 'x: B L D' --with 'cos=torch.ones(1, L, Dk)' --with 'sin=torch.zeros(1, L, Dk)'",
        ),
        (
            "RotatedByConfig",
            "--init 'Arguments(dim=D, n_heads=H, max_seq_len=L)' --input 'x: B L D' "
            "--with 'freqs_cis=precompute_freqs_cis(Arguments(dim=D, n_heads=H, max_seq_len=L))'",
        ),
        ("OfGraph", "--init 'D, D' --input 'h: L D' --input 'adj: L L'"),
        (
            "OfEdges",
            "--init 'D, D' --input 'x: L D' "
            "--with 'edge_index=torch.stack((torch.arange(L), torch.arange(L).roll(1)))'",
        ),
        ("TakesApart", "--init 'D, D' --with 'data=(torch.randn(L, D), torch.zeros(L, L))'"),
        ("MayTakeApart", "--init 'D, H' --input 'x: B L D'"),
        ("Conditioned", "--init 'D, H' --input 'x: B L D' --input 'c: B D'"),
        ("OfChannels", "--init 'D, H' --input 'x: B D L' --input 'c: B D L'"),
        ("OfChoice", "--init \"D, H, Choice.SOFT, 'left'\" --input 'x: B L D'"),
        ("Inherits", "--init 'D, H' --input 'x: B L D'"),
        ("Activated", "--init 'D, H, act_layer=torch.nn.GELU' --input 'x: B L D'"),
        ("OfLengths", "--init 'D, H' --input 'x: B L D' --with 'x_lens=torch.full((B,), L)'"),
        ("OfResolution", "--init 'D, H, resolution=height' --input 'x: B height*height D' --dim height=16"),
        (
            "OfVideos",
            "--init 'D, H' --input 'x: B D frames height width' --dim height=16 --dim width=24 --dim frames=2",
        ),
        ("OfKernel", "--init 'D, H, 3, padding=1' --input 'x: B D height width' --dim height=16 --dim width=24"),
        (
            "Cached",
            "--init 'D, H' --input 'x: B L D' --with write_indices=torch.arange(L) "
            "--with 'kv_cache=(torch.zeros(B, L, H, Dk), torch.zeros(B, L, H, Dk))'",
        ),
        ("DecoderLayer", "--init 'D, H' --input 'tgt: Lq B D' --input 'memory: Lk B D'"),
        (
            "OfItems",
            "--init 'V, SimpleNamespace(hidden_units=D, num_heads=H, maxlen=L)' --input 'log_seqs: int[V] B L'",
        ),
        ("OfHelpers", "--init 'D, H' --input 'q: B Lq D' --input 'k: B Lk D' --input 'v: B Lk D'"),
        ("OfAgents", "--init 'D, H' --input 'x: B L D' --input 'agent_tokens: B L D'"),
        ("CutsBias", "--init 'D, H, (W, W), False' --input 'x: B W*W D'"),
        ("OfAnyRank", "--init D --input 'x: B height width D' --dim height=16 --dim width=24"),
        ("OfDocumentedRank", "--init D --input 'x: B height width D' --dim height=16 --dim width=24"),
        ("LastOfIds", "--init 'V, D, H' --input 'x: int[V] L B'"),
    ],
)
def test_arguments_are_found(name, flags):
    completed = complete(TargetSpec(target=f"{MODELS}:{name}"))
    assert [word for option in completed.found for word in flag_words(option)] == shlex.split(flags)


def test_sequence_is_not_taken_for_the_batch():
    with pytest.raises(AttnshapeError, match="couldn't be worked out"):
        complete(TargetSpec(target=f"{MODELS}:OfBatches"))


def test_failure_of_the_nearest_attempt_has_its_line(folder: Path, attnshape: Attnshape):
    text = "def attend(q, k, v):\n    assert q.dim() == 9, 'nine'\n    return (q @ k.mT).softmax(-1) @ v\n"
    (folder / "fails_inside.py").write_text(text)
    assert "AssertionError: nine, at fails_inside.py:2" in attnshape("trace fails_inside.py").err
