"""Arguments that are found by reading more of the code, or by changing several of them in turn."""

import shlex
from pathlib import Path

import pytest

from attnshape.options.flags import flag_words
from attnshape.options.spec import TargetSpec
from attnshape.proposals.complete import complete

ROTARY = "SimpleNamespace(rotary_theta=10000.0, width=D, heads=H)"
MODELS = str(Path(__file__).parent / "searched_models.py")


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        (
            "OfOnePart",
            "--init 'SimpleNamespace(dec_scaling=1.0, dec_hidden_dim=D, dec_n_heads=H)' --input 'x: B L D'",
        ),
        (
            "OfParts",
            "--init \"SimpleNamespace(width=D, attention=SimpleNamespace(heads=H), rates={'dropout': 0.0})\" "
            "--input 'x: B L D'",
        ),
        (
            "RotatedByPositions",
            f"--init '{ROTARY}' --input 'x: B L D' "
            f"--with 'cos=RotaryAngles({ROTARY})(torch.arange(L)[None])[0]' "
            f"--with 'sin=RotaryAngles({ROTARY})(torch.arange(L)[None])[1]'",
        ),
        ("OfSquare", "--init 'D, height' --input 'x: B D height height' --dim height=16"),
        ("Tested", "--init 'D, H, False' --input 'x: B L D'"),
        ("WithoutEdges", "--init 'D, H' --input 'nodes: B L D' --with edges=None"),
        (
            "OneStep",
            "--init 'D, D' --input 'enc_states: B L D' --input 'dec_states: B D' --with 'enc_len=torch.full((B,), L)'",
        ),
        ("EmptyByDefault", "--init 'D, H' --input 'x: B L D' --input 'pos_emb: B L D'"),
        ("ByInitials", "--init 'D, Dk, Dv, H' --input 'x: B L D'"),
        ("InChunks", "--init 'D, H, chunk_size=W' --input 'x: B W*W D'"),
        (
            "BatchIsFirst",
            "--input 'queries: B Lq H Dk' --input 'keys: B Lk H Dk' --input 'values: B Lk H Dv'",
        ),
        (
            "InTurn",
            "--init 'D, H, None' --input 'queries: B L D' --input 'keys: B L D' --input 'gaps: B L L D' "
            "--input 'places: B L D' --with 'padding_mask=torch.ones(B, L).bool()' "
            "--with 'order_mask=torch.ones(L, L).bool()'",
        ),
        ("BatchOfMaps", "--init 'D, H' --input 'x: B D height width' --dim height=16 --dim width=24"),
        (
            "BesideMap",
            "--init 'D, H' --input 'x: B D height width' --input 'saliency: B 1 height width' "
            "--dim height=16 --dim width=24",
        ),
        ("OfPairs", "--init 'D, H' --input 'nodes: B L D' --input 'edges: B L L D'"),
        ("OnlyIfAsked", "--init 'D, H, use_attention=True' --input 'x: B L D'"),
        ("OfFields", "--init D --with 'fields=[torch.randn(B, L, D) for _ in range(3)]'"),
        (
            "OfActors",
            "--init '[(D, D)] * 3' --with 'actors=[(torch.randn(B, D), torch.randn(B, D)) for _ in range(3)]'",
        ),
        ("OfDistances", "--init 'D, H' --input 'x: B L D' --input 'pos: B 2*L-1 D'"),
        (
            "OfObjects",
            "--input 'queries: B H Lq Dk' --input 'keys: B H Lk Dk' --input 'values: B H Lk Dv' "
            "--with 'hidden=SimpleNamespace(is_trivial=True, added=None)'",
        ),
        (
            "OfMemory",
            "--init 'D, D, H' --input 'x: L B D' --input 'memory: L B D' --input 'u: H D' --input 'v: H D' "
            "--input 'places: 2*L 1 D'",
        ),
    ],
)
def test_arguments_are_found(name, flags):
    completed = complete(TargetSpec(target=f"{MODELS}:{name}"))
    assert [word for option in completed.found for word in flag_words(option)] == shlex.split(flags)
