"""More cases of a target's code, asked for beside it."""

from __future__ import annotations

from dataclasses import replace

from attnshape.catalog.registry import CATALOG
from attnshape.dims import BY_LETTER
from attnshape.target.locate import import_target
from attnshape.target.request import Request
from attnshape.target.user import is_case


def as_case(request: Request) -> Request:
    """Return the request without what is typed for a class or a function, where it names a case: it takes none of that.

    Raises AttnshapeError where its module doesn't import.
    """
    where, _, path = (part.strip() for part in request.target.partition(":"))
    if where in CATALOG or not path.isidentifier():
        return request
    plain = replace(request, init=None, inputs=(), arguments={})
    function = getattr(import_target(where), path, None)
    return plain if is_case(function, path, plain, {*BY_LETTER, *request.own}) else request
