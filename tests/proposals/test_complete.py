"""What a target takes is worked out: constructor arguments, inputs and other arguments."""

import json
import shlex
from pathlib import Path

import pytest
import torch
from msgspec import UNSET

import attnshape
from attnshape.errors import AttnshapeError
from attnshape.options.flags import flag_words
from attnshape.options.spec import TargetSpec
from attnshape.proposals.complete import complete
from attnshape.proposals.search import FailedAttempt
from attnshape.proposals.trial_sizes import trial_sizes
from attnshape.targets.imports import import_target
from tests.cli.running import Attnshape

MODELS = str(Path(__file__).parent / "models.py")


def found(name: str, **given: object) -> list[str]:
    """Return the words of the flags that are worked out for a target of models.py."""
    completed = complete(TargetSpec(target=f"{MODELS}:{name}", **given))
    return [word for option in completed.found for word in flag_words(option)]


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("Plain", "--init 'D, H, 0.0' --input 'x: B L D'"),
        ("ByDefault", "--init 'd_model=D, n_heads=H' --input 'x: B L D'"),
        (
            "Grouped",
            "--init 'ModelConfig(width=D, num_heads=H, num_kv_heads=Hkv), 0' --input 'hidden_states: B L D' "
            "--with attention_mask=None",
        ),
        ("Nameless", "--init 'SimpleNamespace(n_embd=D, n_head=H, dropout=0.0, block_size=L)' --input 'x: B L D'"),
        ("LanguageModel", "--init 'V, D, H, N, L' --input 'x: int[V] B L'"),
        (
            "OfMaps",
            "--init 'D, heads=H' --input 'x: B D height width' --dim height=16 --dim width=24",
        ),
        (
            "Hides",
            "--init 'D, H, 0.0' --input 'x: B L D' --with 'mask=torch.ones(L, L).triu(1).bool()'",
        ),
        ("OfWindows", "--init 'D, heads=H' --input 'x: B D height width' --dim height=10 --dim width=15"),
        (
            "OfSquareMaps",
            "--init 'D, height, heads=H' --input 'x: B D height height' --dim height=16",
        ),
        ("Cross", "--init 'D, num_heads=H' --input 'query: B Lq D' --input 'memory: B Lk D'"),
        ("SequenceFirst", "--init 'D, H' --input 'src: L B D'"),
        (
            "Rotated",
            "--init 'D, H' --input 'x: B L D' --with start_pos=0 --with 'freqs_cis=precompute_freqs_cis(Dk, L)' "
            "--with mask=None",
        ),
        ("PassesOn", "--init 'D, H, 0.0' --input 'x: B L D'"),
        ("attention", "--input 'query: B H Lq Dk' --input 'key: B H Lk Dk' --input 'value: B H Lk Dv'"),
        ("of_heads", "--input 'x: B L D' --with num_heads=H"),
        ("OfWindowTokens", "--init 'D, H, W' --input 'x: B W*W D'"),
        (
            "OfMapTokens",
            "--init 'D, H, 0.0' --input 'x: B height*width D' --with H=height --with W=width --dim height=16 "
            "--dim width=24",
        ),
        ("OfSquareTokens", "--init 'D, H, 0.0' --input 'x: B height*height D' --dim height=16"),
        (
            "OfOffsets",
            "--init 'D, H, 0.0' --input 'query: B L D' --input 'key: B L D' --input 'value: B L D' "
            "--input 'pos_enc: B 2*L-1 D'",
        ),
        ("of_one_width", "--input 'q: B H Lq Dk' --input 'k: B H Lk Dk' --input 'v: B H Lk Dk'"),
        ("OfRows", "--init 'D, H, 0.0' --input 'x: height width B D' --dim height=16 --dim width=24"),
        ("Packed", "--init 'D, H, 0.0' --input 'x: L D' --with 'cu_seqlens=torch.tensor([0, L], dtype=torch.int32)'"),
        ("heads_behind_tokens", "--input 'q: B L H Dk' --input 'k: B L H Dk' --input 'v: B L H Dk'"),
    ],
)
def test_arguments_are_found(name, flags):
    assert found(name) == shlex.split(flags)


def test_found_flags_give_the_same_trace():
    words = found("Grouped")
    trace = attnshape.trace(f"{MODELS}:Grouped")
    given = {"init": words[1], "inputs": {"hidden_states": "B L D"}, "arguments": {"attention_mask": "None"}}
    again = attnshape.trace(f"{MODELS}:Grouped", **given)
    assert trace.steps == again.steps
    assert shlex.split(trace.found) == words
    assert again.found is UNSET


def test_attempts_leave_no_state():
    assert found("Remembers") == ["--init", "D, H, 0.0", "--input", "x: B L D"]
    assert import_target(MODELS).MASKS == {}


def test_what_is_given_stays():
    assert found("Plain", init="D, 4, 0.5") == ["--input", "x: B L D"]
    assert found("Plain", inputs={"x": "B 7 D"}) == ["--init", "D, H, 0.0"]
    assert found("Cross", inputs={"query": "B Lq D"}, init="D, num_heads=H") == ["--input", "memory: B L D"]


def test_class_that_is_passed_from_python():
    trace = attnshape.trace(import_target(MODELS).Grouped)
    assert shlex.split(trace.found) == found("Grouped")
    assert trace.complete


def test_nothing_is_tried_where_all_is_given():
    assert found("Raises", init="D", inputs={"x": "B L D"}) == []


def test_parameter_without_a_proposal_is_left_to_the_user(attnshape: Attnshape):
    result = attnshape(f"check {MODELS}:Unknown")
    assert result.status == 2
    assert "Unknown is a class whose constructor needs gadget" in result.err
    assert "--init gadget" in result.err


def test_input_that_is_not_used_is_left_to_check(attnshape: Attnshape):
    assert found("ignores") == ["--input", "query: B H Lq Dk", "--input", "key: B H Lk Dk"]
    result = attnshape(f"check {MODELS}:ignores")
    assert "the result does not depend on the keys, key" in result.out


def test_error_of_the_nearest_attempt_is_text(attnshape: Attnshape):
    result = attnshape(f"trace {MODELS}:Raises")
    assert result.status == 2
    assert "what it takes couldn't be worked out" in result.err
    assert "ValueError: [red]never[/red] |`built`|" in result.err
    assert "hint: add what was tried, to see where it fails, or correct it: --init D" in result.err


def test_attempts_print_nothing(attnshape: Attnshape):
    result = attnshape(f"trace {MODELS}:Prints --format json")
    assert result.status == 0
    assert json.loads(result.out)["found"] == '--init "D, H, 0.0" --input "x: B L D"'
    assert result.err.count("printed by the target") <= 1


@pytest.mark.parametrize(("verb", "format_"), [("trace", "table"), ("trace", "markdown"), ("check", "text")])
def test_flags_are_shown(verb, format_, attnshape: Attnshape):
    result = attnshape(f"{verb} {MODELS}:Plain --format {format_}")
    assert result.status == 0
    assert 'found: --init "D, H, 0.0" --input "x: B L D"' in result.out.replace("`", "")


def test_case_with_names_of_its_own_for_sizes(folder: Path, attnshape: Attnshape):
    text = "import torch\n\n\ndef of_heads(bsz, nhead, seq_len, hs):\n"
    text += "    q, k, v = torch.randn(3, bsz, nhead, seq_len, hs)\n"
    text += "    return torch.nn.functional.scaled_dot_product_attention, (q, k, v)\n\n\n"
    text += "def of_tensors(b, t):\n    return (b @ t.mT).softmax(-1) @ t, (b, t)\n"
    (folder / "own_case.py").write_text(text)
    completed = complete(TargetSpec(target="own_case.py:of_heads"))
    assert completed.spec.sizes == {"bsz": 2, "nhead": 8, "seq_len": 10, "hs": 64}
    result = attnshape("trace own_case.py:of_heads")
    assert result.status == 0
    assert "bsz nhead seq_len hs" in result.out
    assert "--dim bsz=2" in result.out
    assert complete(TargetSpec(target="own_case.py:of_tensors")).spec.inputs.keys() == {"b", "t"}


def test_search_ends(monkeypatch, tmp_path):
    path = tmp_path / "slow.py"
    path.write_text(
        "import time\n\n\nclass Slow:\n    def __init__(self, dim):\n        pass\n\n"
        "    def __call__(self, x, y):\n        time.sleep(60)\n"
    )
    monkeypatch.setattr("attnshape.proposals.search._ONE_ATTEMPT", 0.1)
    monkeypatch.setattr("attnshape.proposals.search._MOST_SECONDS", 0.5)
    with pytest.raises(AttnshapeError, match="it took too long"):
        complete(TargetSpec(target=f"{path}:Slow"))


ROTATED_IN_PAIRS = """
import torch
from torch import nn

def rotate(x, pe):
    pairs = x.reshape(*x.shape[:-1], -1, 1, 2)
    return (pe[..., 0] * pairs[..., 0] + pe[..., 1] * pairs[..., 1]).reshape(*x.shape)

class Attention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x, pe):
        B, L, D = x.shape
        q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        scores = rotate(q, pe) @ rotate(k, pe).mT
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
"""


def test_hint_names_the_input_that_is_not_known(folder: Path, attnshape: Attnshape):
    (folder / "pairs.py").write_text(ROTATED_IN_PAIRS)
    result = attnshape("trace pairs.py:Attention")
    assert "say what pe is, which none of the shapes tried fits in `return (pe[..., 0] * pairs[..., 0]" in result.err
    assert '--init "D, H" --input "x: B L D" --with "pe=…"' in result.err


OF_A_CONFIG = """
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, cfg, device="cuda:0"):
        super().__init__()
        self.heads, self.fused = cfg.n_head, cfg.fused
        self.qkv = nn.Linear(cfg.n_embd, 3 * cfg.n_embd, device=device)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)
"""
CONFIG = """
from dataclasses import dataclass

from of_a_config import Attention

raise RuntimeError("this file isn't imported")


@dataclass
class ModelConfig:
    n_head: int = 8
    n_embd: int = 256
    fused: bool = True
"""


def test_flags_are_those_of_a_configuration_in_a_file_beside(folder: Path):
    (folder / "of_a_config.py").write_text(OF_A_CONFIG)
    (folder / "with_config.py").write_text(CONFIG)
    init = complete(TargetSpec(target="of_a_config.py:Attention")).spec.init
    assert init is not None
    assert "SimpleNamespace(n_head=H, fused=True, n_embd=D)" in init
    assert ("device='cpu'" in init) == (not torch.cuda.is_available())


def test_trial_sizes_are_no_literals_of_the_code(folder: Path):
    (folder / "literals.py").write_text("SIZES = (5, 7, 12, 10)\n")
    module = import_target("literals.py")
    for sizes in trial_sizes(module):
        chosen = [sizes[symbol] for symbol in ("B", "L", "Lq", "Lk", "Lp")]
        assert {1, 2, 5, 7, 10, 12}.isdisjoint(chosen)
        assert len({*chosen}) == len(chosen)


@pytest.mark.parametrize("symbol", ["B", "H", "L", "Lq", "Lk", "Lp", "D", "Dv", "W", "V"])
def test_trial_sizes_differ(symbol: str):
    first, second = trial_sizes()
    assert first[symbol] != second[symbol]
    assert not {first["B"], second["B"]} & {1, 2}


def test_attempt_that_runs_at_one_set_of_sizes_is_not_the_nearest():
    spec = TargetSpec(target="model.py:Attention")
    by_coincidence = FailedAttempt(spec, RuntimeError(), True, (5, 1))
    assert FailedAttempt(spec, RuntimeError(), True, (6, 0)).is_nearer_than(by_coincidence)
    assert by_coincidence.is_nearer_than(FailedAttempt(spec, RuntimeError(), True, (5, 0)))
