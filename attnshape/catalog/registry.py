"""Which mechanisms there are: each one's name, and its file in `mechanisms/`."""

from __future__ import annotations

import difflib

from attnshape.errors import AttnshapeError

CATALOG: dict[str, str] = {
    "multi-head": "multi_head",
    "scaled-dot-product": "scaled_dot_product",
    "single-head": "single_head",
    "multi-head-concat": "multi_head_concat",
    "average": "average",
    "dot-product": "dot_product",
    "additive": "additive",
    "multiplicative": "multiplicative",
}
DEFAULT = "multi-head"


def module_name(name: str) -> str:
    """Return the name of a mechanism's module.

    Raises AttnshapeError, which names the nearest mechanism, where there is none of that name.

    >>> module_name("multi-head-concat")
    'multi_head_concat'
    """
    if name in CATALOG:
        return CATALOG[name]
    near = difflib.get_close_matches(name.lower().replace("_", "-"), CATALOG, n=1)
    suggestion = f"did you mean {near[0]}? " if near else ""
    raise AttnshapeError(
        f"the catalog has no mechanism called {name!r}", hint=f"{suggestion}the catalog has {', '.join(CATALOG)}"
    )
