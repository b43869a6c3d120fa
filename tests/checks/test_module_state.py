"""What Python modules keep from call to call is restored, and what registers itself is not."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from attnshape.checks.interventions.module_state import ModuleState
from attnshape.targets.imports import import_target

SOURCE = """
import functools
import torch

TABLES, PARTS, LAYERS = {"kept": torch.zeros(3)}, [], {}
LAST, SEEN, READY = None, 0, False
REGISTRY = set()

class Shared:
    known = {}
    mask = None

shared = Shared()

@functools.lru_cache
def table(n):
    return torch.arange(n)

@functools.lru_cache
def registered(name):
    REGISTRY.add(name)
    return name

def defaults(n, memo={}):
    memo[n] = torch.ones(n)

def counter():
    last = 0
    def count():
        nonlocal last
        last += 1
        return last
    return count

count = counter()

def call():
    global LAST, SEEN, READY
    TABLES[3], LAST, SEEN, READY = torch.ones(3), torch.ones(3), SEEN + 1, True
    TABLES["kept"] += 1
    PARTS.append((torch.ones(1), 2))
    LAYERS["linear"] = torch.nn.Linear
    Shared.known[3], Shared.mask, shared.mask = torch.ones(3), torch.ones(3), torch.ones(3)
    table(3), registered("op"), defaults(3), count()
"""


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    path = tmp_path / "keeps_tables.py"
    path.write_text(SOURCE, encoding="utf-8")
    before = set(sys.modules)
    yield import_target(str(path))
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_tensors_and_numbers_are_restored(module: ModuleType) -> None:
    state = ModuleState(module)
    for _ in range(2):
        module.call()
        state.restore()
        assert list(module.TABLES) == ["kept"]
        assert torch.equal(module.TABLES["kept"], torch.zeros(3))
        assert (module.LAST, module.SEEN, module.PARTS) == (None, 0, [])
        assert (module.Shared.known, module.Shared.mask, vars(module.shared)) == ({}, None, {})
        assert module.table.cache_info().currsize == 0
        assert module.defaults.__defaults__ == ({},)
        assert module.count() == 1
        state.restore()


def test_what_registers_itself_once_is_left_alone(module: ModuleType) -> None:
    state = ModuleState(module)
    module.call()
    state.restore()
    assert module.READY
    assert list(module.REGISTRY) == ["op"]
    assert list(module.LAYERS) == ["linear"]
    assert module.registered.cache_info().currsize == 1


def test_a_mechanism_of_the_catalog_has_no_module() -> None:
    ModuleState(None).restore()


class Lazy(ModuleType):
    """A module that is imported when an attribute of it is read, which fails."""

    def __getattr__(self, name: str) -> object:
        raise ImportError(name)


def test_lazy_modules_are_left_alone(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = Lazy("of_the_project")
    monkeypatch.setitem(sys.modules, "of_the_project", lazy)
    vars(module)["lazy"] = lazy
    ModuleState(module).restore()
