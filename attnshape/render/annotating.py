"""What was annotated, what was left out, and why, in words for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnshape.paths import display_path

if TYPE_CHECKING:  # it imports the parser
    from attnshape.annotate.outcome import Annotated

_WORDS = {
    "argument": ("argument", "arguments"),
    "result": ("result", "results"),
    "local": ("local variable", "local variables"),
}


def summary(made: Annotated, written: bool) -> Iterator[str]:
    """Yield what is said of an annotation, line by line."""
    name = display_path(str(made.source.path))
    if made.files:
        verb = "annotated" if written else "to annotate"
        yield f"{name}: {_counted(made)} {verb}"
    else:
        yield f"{name}: nothing to change"
    if made.proved_at:
        bits = " and gives the same bits" if made.same_bits else ""
        yield f"proved: runs{',' if bits else ' and'} passes its checks{bits} at {'; '.join(made.proved_at)}"
    for finding in made.findings:
        line = f":{finding.source.line}" if finding.source is not None else ""
        yield f"{name}{line}: {finding.message}; {finding.evidence}"
        yield f"  hint: {finding.hint}"
    if made.unpacked:
        by_function: dict[str, list[str]] = {}
        for place in made.unpacked:
            by_function.setdefault(place.function, []).append(place.name)
        listed = "; ".join(
            f"{', '.join(dict.fromkeys(names))} in {function}" for function, names in by_function.items()
        )
        yield f"left out, since unpacking takes no annotation: {listed}"
    for left in made.left_out:
        yield f"left out: {left.what}: {left.why}"
    for one in made.numbers:
        yield f"note: {one}"
    hook = made.rewritten.hook
    if hook is not None and hook.package is None and made.files:
        yield f"note: beartype checks local variables only where these lines run before {hook.module} is imported:"
        yield from (f"  {line}" for line in hook.lines)
        yield "attnshape trace checks them anyway"


def _counted(made: Annotated) -> str:
    counts: Counter[str] = Counter(change.place.kind for change in made.changes)
    parts = [f"{counts[kind]} {words[counts[kind] != 1]}" for kind, words in _WORDS.items() if counts[kind]]
    if not parts:
        return "decorators"
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]
