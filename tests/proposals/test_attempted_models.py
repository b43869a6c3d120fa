"""Arguments that are found by what the code does with them, and errors that say what stands in the way."""

import shlex
from pathlib import Path

import pytest

from attnshape.errors import AttnshapeError
from attnshape.options.flags import flag_words
from attnshape.options.spec import TargetSpec
from attnshape.proposals.complete import complete
from tests.cli.running import Attnshape

MODELS = str(Path(__file__).parent / "attempted_models.py")


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("FromMapping", "--init \"{'hidden_size': D, 'num_heads': H}\" --input 'x: B L D'"),
        ("Shifted", "--init 'D, H' --input 'x: B L D' --input 'shift: H Dk'"),
        ("Commented", "--init 'D, H' --input 'x: B L D' --input 'shift: H 1 Dk' --input 'lift: H 1 1'"),
        ("BesideParameter", "--init 'D, H' --input 'x: B L D' --input 'lift: H 1 1'"),
        ("NeedsMask", "--init 'D, H' --input 'x: B L D' --with 'mask=torch.zeros(B, L, L).bool()'"),
        ("NeedsPadding", "--init 'D, H' --input 'x: B L D' --with 'mask=torch.ones(B, L)'"),
        ("OfNeighbours", "--init 'D, 2' --input 'features: B L D' --input 'xyz: B L 3'"),
        ("OfPlaces", "--init D --input 'x: B L D' --input 'pos: B L 3'"),
        (
            "RotatedBehindTokens",
            "--init 'D, H' --input 'x: B L D' --with 'position_embeddings=(torch.ones(L, Dk), torch.zeros(L, Dk))'",
        ),
        ("OfRoads", "--init 'None, D, L, frames' --input 'x: B L D frames' --dim frames=2"),
        ("OfTwoKinds", "--init 'D, D, D, H' --input 'sound: B L D' --input 'picture: B L D'"),
        (
            "WidthFirst",
            "--init 'D, H, width=width, height=height' --input 'x: B D width height' --dim height=16 --dim width=24",
        ),
        ("Described", "--init D --input 'hidden: Lq B D' --input 'encoder_outputs: Lk B D*2'"),
        ("OfOneAndMany", "--init hidden_dim=D --input 'one: B D' --input 'many: B L D' --input 'many_mask: bool B L'"),
        (
            "FromSettings",
            "--init \"Settings(per_part=L, parts=2, kind='within', order='first', width=D, heads=H, decay=0.0)\" "
            "--input 'x: B L D'",
        ),
        (
            "FromNamespace",
            "--init \"SimpleNamespace(width=D, heads=H, device='cpu', extent=L, spread='even')\" --input 'x: B L D'",
        ),
        ("AddsMask", "--init 'D, H' --input 'x: B L D' --with 'mask=torch.full((L, L), -1e9).triu(1)'"),
        ("OfHeadWidth", "--init 'D, Dk, H' --input 'x: B L D'"),
        ("OfEdges", "--init 'D, Dk, heads=H, edge_dim=D' --input 'x: B L D' --input 'edges: B L L D'"),
        (
            "OfArrays",
            "--init 'V, D, H' --input 'users: int[V] B L' --with 'log_seqs=torch.randint(V, (B, L)).numpy()'",
        ),
        ("LengthFirst", "--init 'D, H' --input 'x: L B D' --input 'places: L D'"),
        ("FromAnyName", "--init 'SimpleNamespace(n_emb=D, n_head=H)' --input 'x: B L D'"),
        ("OfItems", "--init 'V, D, H' --input 'seq: int[V] B L'"),
        ("OfBase", "--init 'D, D' --input 'x: B L D'"),
        ("Annotated", "--init 'D, H' --input 'x: B L D' --input 'c: B D'"),
        ("OfGraph", "--init 'D, H' --input 'x: B L D' --with 'adj_mask=torch.ones(L, L).bool()'"),
        ("BesideQuery", "--init 'D, H' --input 'x: B Lk D' --input 'q: B Lq D'"),
        ("WithContext", "--init 'D, heads=H' --input 'x: B Lq D' --input 'context: B Lk D'"),
        ("FromAlias", "--init 'SimpleNamespace(n_emb=D, n_head=H)' --input 'x: B L D'"),
        ("LargeByDefault", "--init 'config=LargeConfig(dim=D, heads=H, layers=N)' --input 'x: B L D'"),
        ("OfProduct", "--init 'D, Dk, H' --input 'x: B L D'"),
        ("OfInputs", "--init 'D, H' --input 'inputs_kv: B Lk D' --input 'inputs_q: B Lq D'"),
        ("CrossAttention", "--init 'D, H' --input 'x: B Lq D' --input 'y: B Lk D'"),
    ],
)
def test_arguments_are_found(name, flags):
    completed = complete(TargetSpec(target=f"{MODELS}:{name}"))
    assert [word for option in completed.found for word in flag_words(option)] == shlex.split(flags)


def error_of(name: str) -> AttnshapeError:
    with pytest.raises(AttnshapeError) as caught:
        complete(TargetSpec(target=f"{MODELS}:{name}"))
    return caught.value


def test_class_that_constructs_the_target_is_named(attnshape: Attnshape):
    error = error_of("Part")
    assert "Part is a class whose constructor needs gadget" in error.message
    assert error.hint == f"name Whole, which constructs it and runs: {MODELS}:Whole"
    assert attnshape(f"trace {MODELS}:Whole").status == 0


def test_parameters_without_a_proposal_stand_among_those_that_have_one():
    error = error_of("Lonely")
    assert error.hint is not None
    assert 'replace gadget by Python expressions: init="D, gadget"' in error.hint


def test_code_that_needs_cuda():
    error = error_of("OnlyOnCuda")
    assert "it needs CUDA, which torch doesn't find here, at" in error.message
    assert "attempted_models.py" in error.message


def test_name_that_nothing_defines():
    error = error_of("Undefined")
    assert "can't run: NameError: name 'maths' is not defined" in error.message
    assert error.hint == "define that name, or import it"


def test_attempt_that_got_furthest_is_the_nearest():
    error = error_of("NeverRuns")
    assert "ValueError: last" in error.message
    assert error.hint is not None
    assert 'inputs={"x": "L D"}' in error.hint


def test_file_that_is_read_at_the_import(folder: Path, attnshape: Attnshape):
    text = "class Table:\n    numbers = open('numbers/table.txt')\n"
    text += "def attend(q, k, v):\n    return (q @ k.mT).softmax(-1) @ v\n"
    (folder / "reads.py").write_text(text)
    assert "hint: run in a folder that has numbers/table.txt" in attnshape("trace reads.py:attend").err


def test_attempt_that_would_allocate_much_ends_at_once():
    error = error_of("AlwaysLarge")
    assert "its tensors have more than 100000000 elements even at small sizes" in error.message


def test_descriptions_are_reported_as_they_are_tried():
    reported: list[str] = []
    complete(TargetSpec(target=f"{MODELS}:FromAlias"), reported.append)
    assert reported == ['--init "SimpleNamespace(n_emb=D, n_head=H)" --input "x: B L D"']
