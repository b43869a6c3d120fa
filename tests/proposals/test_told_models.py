"""Arguments that only the body of the code tells, or that nothing does."""

import shlex
from pathlib import Path

import pytest

from attnshape.options.flags import flag_words
from attnshape.options.spec import TargetSpec
from attnshape.proposals.complete import complete
from tests.cli.running import Attnshape

MODELS = str(Path(__file__).parent / "told_models.py")
CONFIG = "Config(hidden_size=D, num_heads=H, max_source_positions=L)"
LAYER, NO_DROPOUT = "torch.nn.Linear(D, D)", "dropout=torch.nn.Identity()"
KEYS = "{'dim_model': D, 'num_heads': H, 'num_blocks': N, 'vocab_size': V}"


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("OfIntervals", "--init 'D, H, 2' --input 'x: B L D' --input 'gaps: int[2] B L L'"),
        ("OfOneLength", "--init 'D, H, seq_len=L' --input 'x: B L D'"),
        ("BeforeProjection", "--init 'D, H' --input 'qkv: B L D'"),
        ("of_transposed_keys", "--input 'q: B H Lq Dk' --input 'k: B H Dk Lk' --input 'v: B H Lk Dv'"),
        ("OfMethod", "--init \"D, H, 'general'\" --input 'x: B L D'"),
        ("OfOtherKind", "--init \"'', D, H\" --input 'x: B L D'"),
        (
            "WithLayersOf",
            f"--init 'SimpleNamespace(num_heads=H, hidden_size=D, query={LAYER}, key={LAYER}, {NO_DROPOUT})' "
            "--input 'x: B L D'",
        ),
        (
            "OfRelativePositions",
            f"--init '{CONFIG}' --input 'x: B L D' "
            f"--with 'position_embeddings=RelativePositionalEncoding({CONFIG})(x)'",
        ),
        ("OfFixedContext", "--init D --input 'x: B Lq D' --input 'context: B Lk 77'"),
        ("OfBank", "--init D --input 'query: B Lq D' --input 'bank: B Lk D'"),
        ("OfKeys", f"--init \"{KEYS}\" --input 'x: B L D'"),
        ("OfTwoWidths", "--init 'D, D' --input 'hidden: B D' --input 'encoder_outputs: B L D*2'"),
        ("KeptUnderAName", "--init 'D, H' --input 'x: B L D'"),
        ("OfListedWidths", "--init '[D, D, 1], 0.0' --input 'x: B L D' --input 'values: B L D'"),
        ("OfInputSize", "--init 'D, H' --input 'x: B L D'"),
        ("OfLengthInCode", "--init 'D, H' --input 'x: B 40 D'"),
        ("OfRepeated", "--init 'D, H, n=L' --input 'x: B L D' --input 'padding_mask: bool B L'"),
        (
            "OfState",
            "--init 'SimpleNamespace(att_hid_size=D, rnn_size=D)' --input 'h: B D' --input 'feats: B L D'",
        ),
        ("OfWiderQueries", "--init D --input 'q: B Lq 2*D' --input 'k: B Lk D'"),
        ("OfStyle", "--init 'D, H' --input 'text_emb: L B D' --input 'style_emb: B D'"),
        ("Deepens", "--init 'D, H, 2' --input 'x: B L D'"),
    ],
)
def test_arguments_are_found(name, flags):
    completed = complete(TargetSpec(target=f"{MODELS}:{name}"))
    assert [word for option in completed.found for word in flag_words(option)] == shlex.split(flags)


BROKEN = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        B, L, D = x.shape
        q, k, v = self.qkv(x).view(B, L, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return (q @ k.mT).softmax(-1) @ v.mT
"""


def test_failure_of_the_code_itself_is_traced(folder: Path, attnshape: Attnshape):
    (folder / "broken.py").write_text(BROKEN)
    result = attnshape("trace broken.py")
    assert result.status == 1
    assert '- found: `--init "D, H" --input "x: B L D"`' in result.out
    assert "what it takes couldn't be worked out for certain: 3 combinations were tried" in result.out
    assert "✗ failed at broken.py:15" in result.out
    assert "couldn't be worked out" in attnshape("check broken.py").err


def test_attempts_that_get_further_by_coincidence_are_not_traced(folder: Path, attnshape: Attnshape):
    text = (
        "import torch\n\ndef attend(x, given):\n    if given.dim() == 2:\n        given = (given + 0) + 0\n"
        "    return torch.cat((x, given), 9)\n"
    )
    (folder / "coincidence.py").write_text(text)
    result = attnshape("trace coincidence.py:attend")
    assert (result.status, result.out) == (2, "")
    assert "couldn't be worked out" in result.err
