"""The options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Format = Annotated[str, typer.Option("--format", metavar="NAME", help="auto, table, markdown or json.")]
Output = Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Write to a file.")]
OutputOrFolder = Annotated[
    str | None,
    typer.Option("--output", metavar="PATH", help="Write to a file; for several traces as json also into a FOLDER/."),
]
All = Annotated[bool, typer.Option("--all", help="Every target that pyproject.toml names.")]
Columns = Annotated[
    str | None, typer.Option("--columns", metavar="LIST", help="Columns, such as step,signature,strides,storage.")
]
Match = Annotated[
    str | None,
    typer.Option("--match", metavar="LIST", help="Only these roles, operations or modules: scores,view,attn.*"),
]
Depth = Annotated[
    int | None,
    typer.Option("--depth", metavar="N", help="Fold what lies deeper than N inside composites; 0 folds all."),
]
Explain = Annotated[bool, typer.Option("--explain", help="Say in one sentence a step what it does and why.")]
