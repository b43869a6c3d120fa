"""Files whose imports aren't installed: what doesn't use them is traced, what does names the package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from attnshape.targets.imports import import_target, notes_on
from attnshape.targets.missing import NotInstalledError, missing_package
from tests.cli.running import Attnshape

ATTENTION = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads=8):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        B, L, D = x.shape
        q, k, v = self.to_qkv(x).view(B, L, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).reshape(B, L, D)
"""


@pytest.fixture
def write(folder: Path):
    """Return a function that writes a file of a project, and the empty packages around it."""

    def write_file(name: str, text: str) -> str:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for parent in path.relative_to(folder).parents[:-1]:
            (folder / parent / "__init__.py").touch()
        path.write_text(text)
        return name

    return write_file


def test_package_that_nothing_uses_is_noted(write, attnshape: Attnshape):
    write("absent_one/attention.py", ATTENTION)
    write("absent_one/__init__.py", "from absent_one import training\n")
    training = """
import nowhere_to_be_found
import nowhere_to_be_found.vision as vision
from elsewhere_lost import transform

assert nowhere_to_be_found.__version__ >= "2.0"
"""
    write("absent_one/training.py", training)
    result = attnshape("trace absent_one/attention.py")
    assert result.status == 0, result.err
    assert "note: not installed, and not needed by what ran: elsewhere_lost, nowhere_to_be_found" in result.out


def test_what_an_import_makes_of_a_package_may_be_changed(write, attnshape: Attnshape):
    changes = "from nowhere_to_be_found import Settings\nsettings = Settings()\nsettings.patches.size = 16\n"
    changes += "del settings.patches.size\nsettings['depth'] = 3\ndel settings['depth']\n"
    result = attnshape(f"trace {write('absent_fourteen.py', changes + ATTENTION)}")
    assert result.status == 0, result.err


def test_use_at_run_time_names_the_package(write, attnshape: Attnshape):
    uses = ATTENTION.replace("        self.heads", "        initialise(self)\n        self.heads", 1)
    file = write("absent_two.py", f"from nowhere_to_be_found import initialise\n{uses}")
    result = attnshape(f"trace {file}")
    assert result.status == 2
    assert "nowhere_to_be_found.initialise is needed, and the package nowhere_to_be_found isn't installed" in result.err
    assert "pip install nowhere_to_be_found" in result.err


def test_use_of_a_module_at_run_time_names_the_package(write, attnshape: Attnshape):
    uses = ATTENTION.replace("        self.heads", "        lost.initialise(self)\n        self.heads", 1)
    file = write("absent_three.py", f"import nowhere_to_be_found.init as lost\n{uses}")
    result = attnshape(f"trace {file}")
    assert result.status == 2
    assert "nowhere_to_be_found.init.initialise is needed" in result.err


def test_use_during_the_import_names_every_package(write, attnshape: Attnshape):
    imports = "import nowhere_to_be_found\nimport elsewhere_lost\nnowhere_to_be_found.value + 1\n"
    result = attnshape(f"trace {write('absent_four.py', imports + ATTENTION)}")
    assert result.status == 2
    assert "No module named 'nowhere_to_be_found', at absent_four.py:1" in result.err
    assert "pip install elsewhere_lost nowhere_to_be_found" in result.err


def test_package_whose_code_does_not_run_is_left_out(write, attnshape: Attnshape):
    write("absent_five/attention.py", f"from .scaling import scale\n{ATTENTION}")
    write("absent_five/scaling.py", "def scale(x):\n    return x\n")
    write("absent_five/__init__.py", "import nowhere_to_be_found\nnowhere_to_be_found.value + 1\n")
    result = attnshape("trace absent_five/attention.py")
    assert result.status == 0, result.err
    assert "note: the package absent_five itself doesn't import, so that only its file was imported" in result.out


def test_package_that_fails_otherwise_is_left_out_too(write, attnshape: Attnshape):
    write("absent_twelve/attention.py", ATTENTION)
    write("absent_twelve/__init__.py", "open('no_such_file_at_all')\n")
    result = attnshape("trace absent_twelve/attention.py")
    assert result.status == 0, result.err
    assert "note: the package absent_twelve itself doesn't import" in result.out


def test_failure_of_a_file_follows_that_of_its_package(write, attnshape: Attnshape):
    write("absent_fifteen/attention.py", f"from .tables import table\n{ATTENTION}")
    write("absent_fifteen/tables.py", "table = open('/no/such/folder/table.txt')\n")
    write("absent_fifteen/__init__.py", "from .built import version\n")
    result = attnshape("trace absent_fifteen/attention.py")
    assert result.status == 2
    assert "FileNotFoundError" in result.err
    assert "pip install" not in result.err
    assert "hint: restore /no/such/folder/table.txt, which it reads when it is imported" in result.err


def test_file_that_fails_itself_runs_once(write, attnshape: Attnshape):
    write("absent_thirteen/attention.py", f"print('it ran')\nraise ValueError('its own')\n{ATTENTION}")
    result = attnshape("trace absent_thirteen/attention.py")
    assert "ValueError: its own" in result.err
    assert result.err.count("it ran") == 1


def test_failures_that_the_code_catches_stay_failures(write):
    guarded = """
import contextlib
import importlib.util
import never_there
from guarded_by_another import inner

try:
    import nowhere_to_be_found
except ImportError:
    nowhere_to_be_found = None
with contextlib.suppress(ImportError):
    import elsewhere_lost
try:
    import unguarded_inside
except (OSError, ModuleNotFoundError):
    unguarded_inside = None
KNOWN = importlib.util.find_spec("asked_for_only")
"""
    write("guarded_by_another.py", "inner = 1\n")
    write("unguarded_inside.py", "import lost_inside\n")
    module = import_target(write("absent_six.py", guarded))
    assert module.nowhere_to_be_found is None
    assert not hasattr(module, "elsewhere_lost")
    assert module.unguarded_inside is None
    assert module.KNOWN is None
    assert notes_on(module) == ("not installed, and not needed by what ran: never_there",)
    assert not {"never_there", "lost_inside"} & sys.modules.keys()


def test_failure_that_the_code_raises_again_is_not_caught(write):
    guarded = """
try:
    import nowhere_to_be_found
except ImportError:
    print("install nowhere_to_be_found")
    raise
try:
    import elsewhere_lost
except ModuleNotFoundError as error:
    raise ImportError("install elsewhere_lost") from error
"""
    module = import_target(write("absent_fourteen.py", guarded))
    assert notes_on(module) == ("not installed, and not needed by what ran: elsewhere_lost, nowhere_to_be_found",)


def test_placeholders_pass_an_import_and_fail_afterwards(write):
    text = """
import importlib
from nowhere_to_be_found import Base, decorate, register
dynamic = importlib.import_module("also_nowhere")

class Child(Base):
    pass

@register.module(name="a")
def decorated(x: Base | None = None):
    return x

table = decorate[int]
"""
    module = import_target(write("absent_seven.py", text))
    for use in (
        lambda: module.Child(),
        lambda: module.decorated(1),
        lambda: module.table[0],
        lambda: bool(module.Base),
        lambda: list(module.Base),
        lambda: module.dynamic.part,
    ):
        with pytest.raises((NotInstalledError, AttributeError)) as raised:
            use()
        assert missing_package(raised.value) in ("nowhere_to_be_found", "also_nowhere")
    assert not isinstance(1, module.Base)
    assert not hasattr(module.Base, "dim_str")


def test_modules_of_the_project_win(write):
    write("around_project/rooted_util.py", "value = 7\n")
    (Path("around_project") / "__init__.py").unlink()
    file = write("around_project/inner/absent_eight.py", "import nowhere_to_be_found\nimport rooted_util\n")
    (Path("around_project") / "inner" / "__init__.py").unlink()
    (Path("around_project") / "__init__.py").unlink()
    assert import_target(file).rooted_util.value == 7


def test_installed_package_does_not_hide_a_folder_of_the_project(write):
    (Path("shadowed") / "msgspec").mkdir(parents=True)
    (Path("shadowed") / "msgspec" / "own_constants.py").write_text("value = 7\n")
    Path("shadowed/absent_eleven.py").write_text("from msgspec.own_constants import value\n")
    assert import_target("shadowed/absent_eleven.py").value == 7
    del sys.modules["msgspec.own_constants"]


def test_file_without_the_files_beside_it(write, attnshape: Attnshape):
    file = write("copied_alone.py", f"from .layers.norms import Norm\nfrom . import training\n{ATTENTION}")
    result = attnshape(f"trace {file}")
    assert result.status == 0, result.err
    assert "note: not found, and not needed by what ran: .layers, .training" in result.out


def test_use_of_a_file_that_is_not_beside_it(write, attnshape: Attnshape):
    uses = ATTENTION.replace("        self.heads", "        self.norm = Norm(dim)\n        self.heads", 1)
    result = attnshape(f"trace {write('copied_too.py', f'from .layers import Norm{chr(10)}{uses}')}")
    assert result.status == 2
    assert ".layers.Norm is needed, and there is no layers.py beside the file" in result.err
    assert "copy layers.py beside it, or name the file in a checkout of its project" in result.err


def test_use_of_such_a_file_during_the_import(write, attnshape: Attnshape):
    result = attnshape(f"trace {write('copied_third.py', f'from .layers import N{chr(10)}N + 1{chr(10)}{ATTENTION}')}")
    assert "there is no module .layers, which it imports relatively, at copied_third.py:1" in result.err
    assert "copy layers.py beside it" in result.err


def test_import_from_above_a_single_file(write, attnshape: Attnshape):
    result = attnshape(f"trace {write('copied_fourth.py', f'from ..layers import Norm{chr(10)}{ATTENTION}')}")
    assert "name the file in a checkout of its project" in result.err


def test_original_failure_is_reported_where_nothing_helps(write, attnshape: Attnshape):
    file = write("absent_nine.py", f"import nowhere_to_be_found\nraise RuntimeError('broken')\n{ATTENTION}")
    result = attnshape(f"trace {file}")
    assert result.status == 2
    assert "No module named 'nowhere_to_be_found'" in result.err


def test_package_of_another_name_is_installed_by_its_own(write, attnshape: Attnshape):
    text = f"import skimage\nskimage.value + 1\n{ATTENTION}"
    assert "pip install scikit-image" in attnshape(f"trace {write('absent_ten.py', text)}").err


def test_module_that_another_release_of_an_installed_package_has(write, attnshape: Attnshape):
    imports = "from torch._six import container_abcs\nfrom torch.nn.modules.linear import _LinearWithBias\n"
    result = attnshape(f"trace {write('absent_sixteen.py', imports + ATTENTION)} --format table")
    assert result.status == 0, result.err
    missing = "not found, and not needed by what ran: torch._six, torch.nn.modules.linear._LinearWithBias"
    assert missing in " ".join(result.out.split())
    assert not hasattr(sys.modules["torch.nn.modules.linear"], "_LinearWithBias")
    assert not hasattr(sys.modules["torch"], "_six")


def test_use_of_a_name_that_an_installed_package_does_not_have(write, attnshape: Attnshape):
    uses = ATTENTION.replace("nn.Linear", "_LinearWithBias")
    result = attnshape(f"trace {write('absent_17.py', f'from torch.nn import _LinearWithBias{chr(10)}{uses}')}")
    assert result.status == 2
    assert "torch.nn._LinearWithBias is needed, and the package torch that Python finds doesn't have it" in result.err
    assert "install a release of torch that has torch.nn._LinearWithBias" in result.err


def test_name_that_a_file_of_the_project_lacks_stays_a_mistake(write, attnshape: Attnshape):
    write("lacking_it.py", "value = 1\n")
    result = attnshape(f"trace {write('absent_18.py', f'from lacking_it import other{chr(10)}{ATTENTION}')}")
    assert result.status == 2
    assert "cannot import name 'other' from 'lacking_it'" in result.err


def test_name_that_a_missing_module_may_define(write, attnshape: Attnshape):
    uses = ATTENTION.replace("3 * dim", "factor * dim")
    result = attnshape(f"trace {write('absent_19.py', f'from nowhere_to_be_found import *{chr(10)}{uses}')}")
    assert result.status == 2
    assert "name 'factor' is not defined" in result.err
    assert "nowhere_to_be_found may define it" in result.err
    assert "name the file in a checkout of its project" in result.err
