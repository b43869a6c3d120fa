"""Every local variable of a mechanism is annotated, and a wrong annotation fails at its line."""

import ast
import importlib
import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from beartype.roar import BeartypeDoorHintViolation

import attnshape.targets.builtin.registry
from attnshape.dims.symbols import SYMBOLS_BY_NAME
from attnshape.targets.builtin.mechanisms.canary import annotations_are_checked
from attnshape.targets.builtin.registry import CATALOG, MECHANISMS, describe

SIZES = {"B": 2, "H": 6, "Hkv": 3, "Lp": 4, "L": 5, "Lq": 7, "Lk": 11, "D": 84, "Dk": 14, "Dv": 17, "W": 3}
SIZES |= {"Nh": 5, "Nw": 7, "Lz": 13, "Ls": 4, "Hi": 9, "Di": 19, "Din": 23, "Dout": 29, "Dr": 12, "Dc": 31, "Dcq": 37}
SIZES |= {"Ns": 4, "Nb": 20}


def computing_functions(tree):
    """Return all functions but cases and constructors."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name != "__init__"]
    return [f for f in functions if not (isinstance(f.returns, ast.Name) and f.returns.id == "Case")]


def annotated_lines(module):
    """Return the line and the dims string of every annotated local variable of a mechanism's file."""
    tree = ast.parse((MECHANISMS / f"{module}.py").read_text())
    return [
        (node.lineno, node.annotation.slice.elts[1].value)
        for function in computing_functions(tree)
        for node in ast.walk(function)
        if isinstance(node, ast.AnnAssign)
    ]


@pytest.mark.parametrize("module", CATALOG.values())
def test_every_local_variable_has_a_signature(module):
    functions = computing_functions(ast.parse((MECHANISMS / f"{module}.py").read_text()))
    assert functions
    for function in functions:
        assert [ast.unparse(d) for d in function.decorator_list] == ["jaxtyped(typechecker=beartype)"]
        assert all(a.annotation for a in [*function.args.args, *function.args.kwonlyargs] if a.arg != "self")
        stored = [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        inside = {
            n.id
            for comprehension in ast.walk(function)
            if isinstance(comprehension, ast.comprehension)
            for n in ast.walk(comprehension.target)
            if isinstance(n, ast.Name)
        }
        annotated = [n.target.id for n in ast.walk(function) if isinstance(n, ast.AnnAssign)]
        sizes = set(SYMBOLS_BY_NAME)
        assert annotated
        assert len(stored) == len(set(stored)), "a name is bound twice"
        assert set(stored) - set(annotated) - inside <= sizes


def plant(folder, module, line, dims, monkeypatch):
    """Copy a mechanism's file into a package under the same import hook, with one signature wrong.

    Its first two axes are swapped, or it has an axis too many where that would change nothing.
    """
    axes = dims.split()
    swapped = [*reversed(axes[:2]), *axes[2:]]
    wrong = " ".join(swapped if swapped != axes else [*axes, "1"])
    lines = (MECHANISMS / f"{module}.py").read_text().splitlines(keepends=True)
    assert lines[line - 1].count(f'"{dims}"') == 1
    lines[line - 1] = lines[line - 1].replace(f'"{dims}"', f'"{wrong}"')
    package = folder / f"planted_{module}_{line}"
    package.mkdir()
    (package / "__init__.py").write_text((MECHANISMS / "__init__.py").read_text())
    copy = package / f"{module}.py"
    copy.write_text("".join(lines))
    monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module(f"{package.name}.{module}"), copy


def run_every_case(name, module):
    for case in describe(name).cases:
        target, args, *kwargs = getattr(module, case.name)(*(SIZES[symbol] for symbol in case.sizes))
        target(*args, **(kwargs[0] if kwargs else {}))


@pytest.mark.parametrize(
    ("name", "line", "dims"),
    [(name, line, dims) for name, module in CATALOG.items() for line, dims in annotated_lines(module)],
)
def test_wrong_signature_fails_at_its_line(name, line, dims, tmp_path, monkeypatch):
    module, copy = plant(tmp_path, CATALOG[name], line, dims, monkeypatch)
    with pytest.raises(BeartypeDoorHintViolation) as caught:
        run_every_case(name, module)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [frame.lineno for frame in frames if frame.filename == str(copy)][-1] == line


def test_right_signatures_pass(tmp_path, monkeypatch):
    for name in CATALOG:
        run_every_case(name, importlib.import_module(f"attnshape.targets.builtin.mechanisms.{CATALOG[name]}"))


def test_annotations_are_checked():
    assert annotations_are_checked()


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "environment"), [(["-O"], {}), ([], {"JAXTYPING_DISABLE": "1"})])
def test_canary_notices_disabled_checks(flags, environment):
    root = Path(attnshape.targets.builtin.registry.__file__).parents[2]
    canary = "attnshape.targets.builtin.mechanisms.canary"
    code = f"from {canary} import annotations_are_checked; print(annotations_are_checked())"
    run = subprocess.run(
        [sys.executable, *flags, "-c", code],
        cwd=root,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "False"


@pytest.mark.parametrize("missing", ["beartype_this_package()", "@jaxtyped(typechecker=beartype)"])
def test_canary_needs_the_hook_and_the_context(missing, tmp_path, monkeypatch):
    package = tmp_path / f"canary_without_{len(missing)}"
    package.mkdir()
    hook = "from beartype.claw import beartype_this_package\nbeartype_this_package()\n"
    (package / "__init__.py").write_text(hook.replace(missing, ""))
    (package / "canary.py").write_text((MECHANISMS / "canary.py").read_text().replace(missing, ""))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module(f"{package.name}.canary").bind_two_sizes()
