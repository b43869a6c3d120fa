"""What every format for people shows of a list of targets: words for their kinds, and the lines below the list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnshape.model.formatting import pluralize

if TYPE_CHECKING:
    from attnshape.model.targets import FoundTargets

KINDS = {"module": "module", "function": "function", "helper": "called by a module", "container": "contains attention"}


def summary(found: FoundTargets) -> list[str]:
    """Return the lines below the list: how many targets there are, what was left out, and what to type next.

    The texts are raw; each format escapes them.
    """
    counts = [pluralize(sum(one.kind == kind for one in found.targets), kind) for kind in ("module", "function")]
    lines = [f"{' and '.join(counts)} with attention in {pluralize(found.files, 'file')}"]
    if found.tests:
        lines.append(f"{pluralize(found.tests, 'file')} of tests left out: name them to have them read")
    lines += [f"not read: {one.file}: {one.why}" for one in found.unread]
    if found.to_run:
        lines.append(f"to see one: attnshape trace {found.to_run[0].target}")
    return lines
