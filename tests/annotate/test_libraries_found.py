"""The libraries that the sandbox imports before it runs anything."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from attnshape.annotate.sandbox.verification import libraries_used_by


def test_libraries_imported_directly_or_through_local_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heads_beside.py").write_text("from einops import rearrange\nimport heads_above\nimport math\n")
    (tmp_path / "heads_above.py").write_text(
        "import torch.nn as nn, heads_beside as own, sys\nfrom pathlib import Path\n"
        "NoModule = type('N', (), {'__module__': 5})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("heads_above")
    try:
        import hypothesis  # noqa: F401 - imported in this process, and not by the code

        found = libraries_used_by([str(tmp_path / "heads_above.py"), str(tmp_path / "not_imported.py")])
        assert set(found) == {"torch.nn", "einops.einops"}
        assert set(libraries_used_by([str(tmp_path / "heads_beside.py")])) == set(found)
        assert libraries_used_by([str(tmp_path / "not_imported.py")]) == ()
    finally:
        for name in ("heads_above", "heads_beside"):
            sys.modules.pop(name, None)
