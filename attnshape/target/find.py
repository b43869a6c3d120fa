"""Finds the target that a request names: a mechanism, the user's code, or a name from pyproject.toml."""

from __future__ import annotations

from pathlib import Path

from attnshape.catalog.registry import CATALOG, DEFAULT
from attnshape.errors import AttnshapeError
from attnshape.hints import nearest
from attnshape.target.builtin import builtin_target
from attnshape.target.entry import FILE
from attnshape.target.given import callable_target
from attnshape.target.locate import names_in
from attnshape.target.project import project_targets
from attnshape.target.request import Request, Target
from attnshape.target.user import user_target


def find_target(request: Request) -> Target:
    """Return the target of a request. Raises AttnshapeError where there is none of that name."""
    if request.callable is not None:
        return callable_target(request)
    where, colon, path = (request.target or DEFAULT).partition(":")
    where, path = where.strip(), path.strip()
    if where in CATALOG:
        if colon and not path:
            raise AttnshapeError(f"{request.target!r} names no case", f"its cases: attnshape catalog {where}")
        return builtin_target(request, where, path)
    if request.options:
        flag = next(iter(request.options)).replace("_", "-")
        raise AttnshapeError(
            f"--{flag} is for built-in mechanisms, {request.target} isn't one",
            f"the built-in ones: {', '.join(CATALOG)}; your own target takes its arguments with --init and --with",
        )
    if not colon or not path:
        raise _incomplete(where)
    return user_target(request, where, path)


def _incomplete(where: str) -> AttnshapeError:
    try:
        is_file = Path(where).is_file()
    except (OSError, ValueError):
        is_file = False
    if is_file:
        names = names_in(where)
        example = names[0] if names else "Name"
        return AttnshapeError(
            f"{where} is a file; which of its functions or classes?",
            f"write {where}:{example}" + (f"; it defines {', '.join(names)}" if names else ""),
        )
    ours = list(project_targets())
    return AttnshapeError(
        f"there is no mechanism {where!r} in the catalog" + (f", nor a target in {FILE}" if ours else ""),
        f"{nearest(where, [*ours, *CATALOG])} (your own code is named path/to/file.py:Name)",
    )
