"""`attnshape targets`, and files and folders as targets of other verbs."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from attnshape.cli.targets import target_names
from tests.cli.running import Attnshape

MODEL = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT * (d // self.heads) ** -0.5).softmax(-1)
        return (weights @ v).transpose(1, 2).reshape(b, n, d)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attn = Attention(dim, heads)

    def forward(self, x):
        return x + self.attn(x)
"""
WRONG = MODEL.replace("d // self.heads) ** -0.5", "d) ** -0.5").replace("(d) **", "d **")


@pytest.fixture
def project(folder: Path) -> Path:
    """Return a folder with a model, a wrong one, a test, a file that isn't Python, and what isn't the project's own."""
    path = folder / "project"
    (path / "tests").mkdir(parents=True)
    (path / "model.py").write_text(MODEL)
    (path / "wrong.py").write_text(WRONG)
    (path / "tests" / "test_model.py").write_text(MODEL)
    for other in (".hidden", "build", "venv"):
        (path / other).mkdir()
        (path / other / "copy.py").write_text(MODEL)
    (path / "venv" / "pyvenv.cfg").write_text("")
    return path


def test_list_of_a_folder(project: Path, attnshape: Attnshape):
    result = attnshape("targets project --format text")
    assert result.status == 0
    assert result.out.splitlines() == [
        "project/model.py",
        "     6  Attention  module              softmax() at line 15",
        "    19  Block      contains attention  Attention() at line 22",
        "project/wrong.py",
        "     6  Attention  module              softmax() at line 15",
        "    19  Block      contains attention  Attention() at line 22",
        "2 modules and 0 functions with attention in 2 files",
        "1 file of tests left out: name them to have them read",
        "to see one: attnshape trace project/model.py:Attention",
    ]


def test_json_has_what_the_list_has(project: Path, attnshape: Attnshape):
    content = json.loads(attnshape("targets project --format json").out)
    assert content["schema"] == "attnshape/targets/1"
    assert [one["target"] for one in content["targets"]] == [
        f"project/{file}:{name}" for file in ("model.py", "wrong.py") for name in ("Attention", "Block")
    ]
    assert content["targets"][0]["line"] == 6


def test_markdown_is_a_table(project: Path, attnshape: Attnshape):
    lines = attnshape("targets project/model.py").out.splitlines()
    assert lines[0].split() == ["|", "target", "|", "line", "|", "kind", "|", "shown", "by", "|"]
    assert "`project/model.py:Attention`" in lines[2]


def test_tests_are_read_where_they_are_named(project: Path, attnshape: Attnshape):
    assert "tests/test_model.py:Attention" in attnshape("targets project/tests/test_model.py").out


def test_file_that_is_no_python_is_reported(project: Path, attnshape: Attnshape):
    (project / "broken.py").write_text("def f(:\n")
    result = attnshape("targets project --format text")
    assert result.status == 2
    assert "not read: project/broken.py: invalid syntax, at line 1" in result.out
    assert "project/model.py" in result.out


def test_what_git_ignores_is_left_out(project: Path, attnshape: Attnshape):
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    (project / ".gitignore").write_text("wrong.py\n")
    assert "wrong.py" not in attnshape("targets project").out


def test_missing_place(attnshape: Attnshape):
    result = attnshape("targets nowhere")
    assert (result.status, result.out) == (2, "")
    assert "there is no file or folder 'nowhere'" in result.err


def test_nothing_is_imported(folder: Path, attnshape: Attnshape):
    (folder / "explodes.py").write_text("raise SystemExit(7)\n\n" + MODEL)
    assert "explodes.py:Attention" in attnshape("targets explodes.py").out


def test_list_needs_no_torch(project: Path):
    code = (
        "import sys; from attnshape.cli.app import run; status = run(['targets', 'model.py']); "
        "assert status == 0; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=project, check=True, stdout=subprocess.DEVNULL)


def test_write_adds_what_is_missing(project: Path, attnshape: Attnshape, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(project)
    (project / "pyproject.toml").write_text('# ours\n[tool.attnshape.targets.mine]\ntarget = "./model.py:Attention"\n')
    result = attnshape("targets --write --format text")
    assert result.status == 0
    assert result.err == "added to pyproject.toml: attention; pyproject.toml names 1 target already\n"
    text = (project / "pyproject.toml").read_text()
    assert text.startswith("# ours\n")
    assert tomllib.loads(text)["tool"]["attnshape"]["targets"]["attention"] == {"target": "wrong.py:Attention"}
    assert "pyproject.toml names 2 targets already" in attnshape("targets --write").err
    assert (project / "pyproject.toml").read_text() == text


def test_written_targets_run(project: Path, attnshape: Attnshape, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(project)
    assert attnshape("targets model.py --write").status == 0
    with (project / "pyproject.toml").open("a") as file:
        file.write("\n[tool.attnshape.defaults]\nbatch = 3\n")
    assert "B=3" in attnshape("trace attention").out
    assert "B=3" in attnshape("trace model.py").out


def test_write_refuses_a_broken_file(project: Path, attnshape: Attnshape, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(project)
    (project / "pyproject.toml").write_text("[tool")
    result = attnshape("targets --write")
    assert (result.status, result.out) == (2, "")
    assert "pyproject.toml can't be read" in result.err


def test_names_tell_targets_apart():
    files = ["a/vit.py:Attention", "b/vit.py:Attention", "c.py:Attention", "c.py:attention", "c.py:average"]
    assert target_names(files, ["average", "c-attention"]) == [
        "a-vit-attention",
        "b-vit-attention",
        "c-attention-2",
        "c-attention-3",
        "c-average",
    ]


def test_trace_of_a_file(project: Path, attnshape: Attnshape):
    result = attnshape("trace project/model.py --batch 3")
    assert result.status == 0
    assert "found in project/model.py: Attention" in result.err
    assert "B=3" in result.out
    assert 'found: `--init "D, H" --input "x: B L D"`' in result.out


def test_check_of_a_folder(project: Path, attnshape: Attnshape):
    result = attnshape("check project")
    assert result.status == 1
    assert "AS201" in result.out
    assert "project/model.py:Attention" in result.out
    assert "1 fine" in result.out


def test_check_of_several_files(project: Path, attnshape: Attnshape):
    result = attnshape("check project/model.py project/wrong.py project/model.py --no-cache")
    assert result.status == 1
    assert [line for line in result.out.splitlines() if line.startswith("## ")] == [
        "## project/model.py:Attention",
        "## project/wrong.py:Attention",
        "## Summary",
    ]


def test_quiet_check_prints_findings_only(project: Path, attnshape: Attnshape):
    result = attnshape("check project --quiet --no-cache --format text")
    assert result.status == 1
    assert result.err == ""
    assert re.match(r"project/wrong.py:15:\d+: error AS201 ", result.out)
    assert "model.py:Attention" not in result.out
    assert "Summary" not in result.out
    assert attnshape("check project/model.py --quiet --format text").out == ""


def test_a_reason_that_several_targets_share_is_printed_once(project: Path, attnshape: Attnshape):
    (project / "again.py").write_text(MODEL)
    result = attnshape("check project/model.py project/again.py --no-cache --format text -v")
    assert result.out.count("no causal mask is claimed") <= 1
    assert result.out.count("no findings: this means no more than what was verified") == 1
    broken = "from nowhere import nothing\nassert nothing\n" + MODEL
    (project / "model.py").write_text(broken)
    (project / "again.py").write_text(broken)
    assert "2 that can't be carried out" in attnshape("check project/model.py project/again.py").out


def test_attention_in_imported_files(project: Path, attnshape: Attnshape):
    operator = "def attend(q, k, v):\n    return (q @ k.mT).softmax(-1) @ v\n"
    module = MODEL.partition("class Block")[0].replace(
        "weights = (q", "context = attend(q, k, v)\n        weights = (q"
    )
    module = module.replace(".softmax(-1)", "").replace("(weights @ v)", "context")
    for folder, imports in (
        ("beside", "from .operators import attend"),
        ("rooted/inner", "from rooted_parts.operators import attend"),
        ("through", "from .parts import attend"),
    ):
        (project / folder).mkdir(parents=True)
        (project / folder / "layers.py").write_text(f"{imports}\n{module}")
    (project / "rooted" / "rooted_parts").mkdir()
    (project / "rooted" / "rooted_parts" / "operators.py").write_text(operator)
    (project / "beside" / "operators.py").write_text(operator)
    (project / "through" / "operators.py").write_text(operator)
    (project / "through" / "parts").mkdir()
    (project / "through" / "parts" / "__init__.py").write_text("from ..operators import attend\n")
    for folder in ("beside", "rooted/inner", "through"):
        listed = attnshape(f"targets project/{folder}/layers.py --format text").out
        assert re.search(r"Attention +module +attend\(\) at line \d+\n1 module and 0 functions", listed), listed


def test_imports_that_cannot_be_read_are_passed_over(project: Path, attnshape: Attnshape):
    (project / "broken_part.py").write_text("def (:\n")
    (project / "importing.py").write_text(f"import broken_part\nfrom . import importing, nothing\n{MODEL}")
    assert "1 module and 0 functions" in attnshape("targets project/importing.py --format text").out


def test_containers_of_others_are_left_out(project: Path, attnshape: Attnshape):
    text = """
from torch import nn


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x):
        return self.attn(x, x, x)[0]


class Model(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.layer = Layer(dim, heads)

    def forward(self, x):
        return self.layer(x)
"""
    (project / "layers.py").write_text(text)
    assert "found in project/layers.py: Layer\n" in attnshape("trace project/layers.py").err


def test_quiet_and_verbose_contradict(project: Path, attnshape: Attnshape):
    result = attnshape("check project -q -v")
    assert (result.status, result.out) == (2, "")
    assert "--quiet leaves out what --verbose lists" in result.err


def test_all_with_files_adds_what_the_project_does_not_name(
    project: Path, attnshape: Attnshape, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(project)
    (project / "pyproject.toml").write_text('[tool.attnshape.targets.mine]\ntarget = "model.py:Attention"\n')
    result = attnshape("check --all --no-cache model.py wrong.py --format text")
    assert result.status == 1
    titles = [line for line in result.out.splitlines() if line in ("mine", "model.py:Attention", "wrong.py:Attention")]
    assert titles == ["mine", "wrong.py:Attention"]
    (project / "plain.py").write_text("x = 1\n")
    (project / "pyproject.toml").write_text("")
    assert attnshape("check --all plain.py").status == 0


def test_annotate_of_a_file(project: Path, attnshape: Attnshape):
    result = attnshape("annotate project/model.py")
    assert result.status == 0
    assert "Float[torch.Tensor, " in result.out
    assert 'note: found: --init "D, H" --input "x: B L D"' in result.err


def test_file_without_attention_is_asked_for_a_name(folder: Path, attnshape: Attnshape):
    (folder / "plain.py").write_text("def double(x):\n    return x * 2\n")
    result = attnshape("trace plain.py")
    assert result.status == 2
    assert "no attention was found in plain.py, by its source" in result.err
    assert "write plain.py:double; it defines double" in result.err


def test_file_without_attention_names_what_has_a_softmax(folder: Path, attnshape: Attnshape):
    layer = "class Layer:\n    def forward(self, x):\n        return Mixer(x)\n"
    mixer = "class Mixer:\n    def forward(self, x):\n        return self.masked_softmax(x) * x\n"
    (folder / "plain.py").write_text(f"{layer}\n\n{mixer}")
    result = attnshape("trace plain.py")
    assert "write plain.py:Mixer; it defines Layer, Mixer" in result.err


def test_catalog_name_wins_over_a_folder(folder: Path, attnshape: Attnshape):
    (folder / "average").mkdir()
    assert attnshape("trace average").out.startswith("`attnshape trace average`")


def test_folder_without_attention(folder: Path, attnshape: Attnshape):
    (folder / "empty").mkdir()
    (folder / "empty" / "plain.py").write_text("def double(x):\n    return x * 2\n")
    result = attnshape("check empty")
    assert result.status == 2
    assert "no attention was found in empty, in 1 Python file" in result.err
