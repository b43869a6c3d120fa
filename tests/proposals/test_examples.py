"""How code uses a class tells how to construct and call it: which axis of an example's tensors has which size."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from attnshape.options.flags import flag_words
from attnshape.options.spec import TargetSpec
from attnshape.proposals.complete import complete

CLASS = '''
import torch
from torch import nn


class Mixer(nn.Module):
    """Attention whose parameters have names that say nothing, between positions of a map in a row."""

    def __init__(self, one, two, kind="plain"):
        super().__init__()
        assert kind == "plain" or two == 3
        self.parts = two
        self.project = nn.Conv1d(one, 3 * one, 1)

    def forward(self, first, scale=None, mask=None):
        b, _, n = first.size()
        q, k, v = self.project(first).view(b, 3, self.parts, -1, n).unbind(1)
        weights = (q.mT @ k * (scale or 1)).softmax(-1)
        return (v @ weights.mT).flatten(1, 2)
'''


def found(folder: Path, code: str, **given: object) -> str:
    """Return the flags that are worked out for the class, in a file that has this code too."""
    (folder / "mixer.py").write_text(CLASS + code)
    return " ".join(word for option in completed(folder, **given) for word in flag_words(option))


def completed(folder: Path, **given: object):
    try:
        return complete(TargetSpec(target=f"{folder / 'mixer.py'}:Mixer", **given)).found
    finally:
        sys.modules.pop("mixer", None)


EXAMPLES = {
    "main block": """
if __name__ == "__main__":
    x = torch.randn(2, 64, 49)
    layer = Mixer(64, 4)
    print(layer(x).shape)
""",
    "arithmetic and devices": """
def main():
    dim, heads = 8 * 8, 4
    device = torch.device("cpu")
    layer = Mixer(dim, two=heads).to(device).eval()
    with torch.no_grad():
        for _ in range(2):
            out = layer(torch.rand((2, dim, 7 * 7), dtype=torch.float32).to(device))
""",
    "forward, and axes that are moved": """
def test_shape():
    layer = Mixer(64, 4)
    assert layer.forward(first=torch.zeros(2, 49, 64).transpose(1, 2)).shape == (2, 64, 49)
""",
}


@pytest.mark.parametrize("code", EXAMPLES.values(), ids=EXAMPLES)
def test_numbers_of_the_constructor_are_widths_of_the_inputs(tmp_path: Path, code: str) -> None:
    # the names of the parameters say nothing, so that their numbers stay
    assert found(tmp_path, code) == "--init 64, 4 --input first: B 64 L"


def test_numbers_become_symbols_where_names_say_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "mixer.py").write_text(
        re.sub(r"\bone\b", "dim", re.sub(r"\btwo\b", "heads", CLASS))
        + "if __name__ == '__main__':\n    Mixer(heads=4, dim=64)(torch.randn(2, 64, 49), scale=0.5, mask=None)\n"
    )
    words = [word for option in completed(tmp_path) for word in flag_words(option)]
    assert words == ["--init", "D, H", "--input", "first: B D L", "--with", "scale=0.5"]


@pytest.mark.parametrize("code", ["self.it, 4", "64, 4"])
def test_code_that_the_module_does_not_run_is_no_example(tmp_path: Path, code: str) -> None:
    other = f"""
class Other(nn.Module):
    def forward(self, x):
        return Mixer({code})(torch.randn(2, 64, 49))
"""
    if code == "64, 4":  # the width of the input is that of the layer which is constructed
        assert found(tmp_path, other) == "--init one=64, two=4 --input first: B 64 L"
    else:
        assert found(tmp_path, other) == "--init D, 2 --input first: B D L"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("README.md", "Use\n```python\nfrom mixer import Mixer\nMixer(64, 4)(torch.randn(2, 64, 49))\n```\n"),
        ("test_mixer.py", "import mixer\nmixer.Mixer(64, 4)(torch.randn(2, 64, 49))\n"),
        ("train.py", "from mixer import *\n\nif __name__ == '__main__':\n    Mixer(64, 4)(torch.randn(2, 64, 49))\n"),
    ],
)
def test_other_files_of_the_project_are_read(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert found(tmp_path, "") == "--init 64, 4 --input first: B 64 L"


def test_a_class_of_the_same_name_is_another(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("from other import Mixer\nMixer(64, 4)(torch.randn(2, 64, 49))\n")
    assert found(tmp_path, "") == "--init D, 2 --input first: B D L"


def test_nothing_of_an_example_runs(tmp_path: Path) -> None:
    code = f"""
if __name__ == "__main__":
    open({str(tmp_path / "made")!r}, "w").close()
    Mixer(64, 4)(torch.randn(2, 64, 49))
"""
    assert found(tmp_path, code)
    assert not (tmp_path / "made").exists()


def test_what_the_user_gives_stays(tmp_path: Path) -> None:
    assert found(tmp_path, EXAMPLES["main block"], init="64, 4", inputs={}) == "--input first: B 64 L"


def test_parameters_that_are_only_keywords(folder: Path):
    text = CLASS.replace("def __init__(self, one, two, kind", "def __init__(self, *, one, two, kind")
    (folder / "mixer.py").write_text(f"{text}\n\ndef main():\n    Mixer(one=64, two=4)(torch.randn(2, 64, 49))\n")
    words = [word for option in completed(folder) for word in flag_words(option)]
    assert words == ["--init", "one=64, two=4", "--input", "first: B 64 L"]
