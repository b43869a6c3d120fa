"""Random command lines either run or fail with one error line and a hint."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.robust.output_parsers import assert_drawn, assert_refused, attnshape

HOSTILE = (
    "",
    " ",
    "-",
    "--",
    ":",
    "a:b:c",
    "[bold red]x[/]",
    "a|b`c`",
    "\x1b[31mred",
    "<script>",
    "one\ntwo",
    "\u202eabc",
    "注意 👩‍👩‍👧",
    "x" * 3000,
    "(" * 300,
    "-1",
    "0",
    "1e3",
    "9" * 40,
    "٣",
    "\udcff",
    "../..",
    "/dev/null",
    ".",
    "~",
    "%s %n {}",
    "None",
    "__import__",
    "lambda: 0",
    "x: B L D",
)
SIZES = ("--batch", "--heads", "--kv-heads", "--group", "--past", "--length", "--queries", "--keys", "--d-model")
FLAGS = {
    **dict.fromkeys((*SIZES, "--d-head", "--d-value", "--window"), ("1", "2", "3", "7", "8")),
    "--init": ("D, H", "D", "", "n=H", "*range(3)", "1/0", "D; H"),
    "--input": ("x: B L D", "x: bool B L", "x: int[7] L", "y: D", "x: B*0 L", "x: L-9", "x: *B", "x"),
    "--with": ("y=1", "y=torch.ones(L)", "y=undefined", "y=exit()", "y=[].pop()", "torch=3"),
    "--expect": ("scores: B H L L", "output: B", "nosuch: B", "y: 1 2 3", "output:"),
    "--dim": ("T=4", "nh=H*2", "torch=3", "_call=3", "T=T", "B=3", "x=1", "T=2**99", "T=-1", "T=L//0", "len=3"),
    "--mask-value": ("-inf", "-1e9", "nan", "3"),
    "--dropout": ("0.1", "1", "nan"),
    "--device": ("cpu", "meta", "gpu"),
    "--dtype": ("float64", "bfloat16", "float", "int8"),
    "--seed": ("0", "1", "-1", str(2**63)),
    "--format": ("table", "markdown", "json", "auto", "html"),
    "--columns": ("step,shape", "all", "step,step", ","),
    "--match": ("scores", "softmax,*", "[", "nosuch", ","),
    "--causal": (),
    "--padding": (),
    "--no-bias": (),
    "--train": (),
    "--explain": (),
    "--help": (),
}
TARGETS = (
    "multi-head",
    "average",
    "scaled-dot-product:causal",
    "code.py:f",
    "code.py:A",
    "code.py:case",
    "code.py:nosuch",
    "code.py:f.g[0](1)",
    "code.py:f(",
    "code.py",
    "code:f",
    "nosuch.py:f",
    "named",
    "torch.nn:Linear",
)
CODE = """
from torch import nn

class A(nn.Module):
    def __init__(self, D, H=1):
        super().__init__()
        self.linear = nn.Linear(D, D)
    def forward(self, x, y=None):
        return self.linear(x)

def f(x, y=1):
    return x * y

def case(B, L):
    return f, (A(L).linear.weight,)
"""


def option(data: st.DataObject) -> list[str]:
    """Draw a flag with a plausible or a hostile value."""
    flag = data.draw(st.sampled_from(list(FLAGS)))
    values = FLAGS[flag]
    if not values:
        return [flag]
    value = data.draw(st.sampled_from(values) if data.draw(st.integers(0, 4)) else st.sampled_from(HOSTILE))
    return data.draw(st.sampled_from([[flag, value], [f"{flag}={value}"]]))


def line(data: st.DataObject) -> list[str]:
    """Draw a command line that is mostly almost valid."""
    verb = data.draw(st.sampled_from(["trace"] * 40 + ["show", "catalog", "glossary", "", "--help", "nosuch", "tracé"]))
    words = [verb] if verb else []
    if data.draw(st.integers(0, 9)):
        words.append(
            data.draw(st.sampled_from(TARGETS)) if data.draw(st.integers(0, 5)) else data.draw(st.sampled_from(HOSTILE))
        )
    if words[-1:] in (["code.py:f"], ["code.py:A"]) and data.draw(st.booleans()):
        words += ["--init", "D", "--input", "x: B L D"]
    for _ in range(data.draw(st.integers(0, 4))):
        words += option(data)
    if not data.draw(st.integers(0, 7)):
        words.insert(data.draw(st.integers(0, len(words))), data.draw(st.sampled_from(HOSTILE)))
    return words


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with code and a named target."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "code.py").write_text(CODE)
    (folder / "pyproject.toml").write_text("[tool.attnshape.targets.named]\ntarget = 'code.py:f'\ninput = ['x: B L']\n")
    return folder


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_random_command_line(data: st.DataObject, project: Path):
    words = line(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        patch.setenv("COLUMNS", "100")
        done = attnshape(*words)
    if done.status == 2:
        # without a verb, the help is printed instead
        if words:
            assert_refused(done)
        return
    assert done.status in (0, 1), (words, done)
    formats = {text for flag, text in itertools.pairwise(words) if flag == "--format"}
    formats |= {word.removeprefix("--format=") for word in words if word.startswith("--format=")}
    is_trace = words[0] == "trace" and not {"--help"} & {*words} and done.out
    if is_trace and len(formats) < 2:
        format_ = next(iter(formats), "markdown")
        assert_drawn("markdown" if format_ == "auto" else format_, done.out, 100, "--explain" in words)
