"""Where the package runs Python that isn't its own: only what users give as Python by design, and their modules."""

from __future__ import annotations

import ast
from pathlib import Path

import attnshape

PACKAGE = Path(attnshape.__file__).parent
RUNS_CODE = frozenset(
    {
        *("eval", "exec", "compile", "literal_eval", "__import__", "import_module", "exec_module", "load_module"),
        *("runpy", "run_path", "pickle", "marshal", "shelve", "system", "popen"),
    }
)
BY_DESIGN = {
    "__init__.py": {"import_module"},  # its own modules
    "annotate/sandbox/attempt.py": {"exec_module"},  # the annotated source of a target
    "cli/batch.py": {"pickle"},  # results that a worker hands on to the next, never a file
    "proposals/masks.py": {"literal_eval"},  # numbers in a target's source
    "programs/activation.py": {"exec", "exec_module"},  # imports that a program makes; this package, in its children
    "programs/launch.py": {"runpy", "exec", "compile"},  # the program of `attnshape run`
    "explanation/sentences.py": {"literal_eval"},  # integers of recorded expressions
    "reporters/notebook.py": {"literal_eval"},  # arguments of the call that a notebook repeats
    "targets/builtin/registry.py": {"import_module", "literal_eval"},  # a mechanism of the catalog; names in it
    "targets/evaluation.py": {"eval", "compile"},  # init, arguments, and paths to targets
    "targets/imports.py": {"exec_module", "import_module"},  # the target's file or module
    "targets/scripts.py": {"exec", "compile"},  # definitions of the target's file
    "tracing/source_locations.py": {"compile"},  # source that ran already; the code object isn't run
}


def names_that_run_code(path: Path) -> set[str]:
    """Return the names of a module that run code or load it, except `re.compile` and its like."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Attribute(value=ast.Name(id="re" | "torch"), attr="compile"):
                pass
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in RUNS_CODE:
                found.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                found |= {word for alias in names for word in (alias.name, *modules)} & RUNS_CODE
    return found


def test_code_runs_only_where_python_is_taken_by_design() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix(): names
        for path in PACKAGE.rglob("*.py")
        if (names := names_that_run_code(path))
    }
    assert found == BY_DESIGN


def test_every_way_to_run_code_is_found(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    for line in ("eval('1')", "builtins.exec(x)", "run = compile", "import pickle", "from runpy import run_path"):
        module.write_text(line)
        assert names_that_run_code(module), line
    module.write_text("re.compile('x'); torch.compile(f)")
    assert not names_that_run_code(module)
