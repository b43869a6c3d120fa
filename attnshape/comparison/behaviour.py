"""Compares the measured behaviour of two versions, topic by topic."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator

from attnshape.model.behaviour import Behaviour, Property, ResultNumbers, ResultsRun, Topic
from attnshape.model.difference import BehaviourChange, BehaviourDifference, BehaviourUnknown
from attnshape.model.formatting import join_words

_EXACT, _ROUNDED = 1e-7, 1e-3
"""The relative difference up to which the numbers of results count as equal: in float64, and in other dtypes."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_NOTHING = "nothing was found to measure"
SameText = Callable[[str, str], bool]
"""Returns whether a text of the old side says the same as one of the new side, apart from renames."""


def compare_behaviour(old: Behaviour | None, new: Behaviour | None, same_text: SameText) -> BehaviourDifference:
    """Return how the behaviour of two versions differs. What could not be measured in one of them is unknown."""
    reason = _why_not(old, new)
    if old is None or new is None or reason is not None:
        return BehaviourDifference(not_compared=reason)
    common = old.sizes.keys() & new.sizes.keys()
    at_equal_sizes = all(old.sizes[symbol] == new.sizes[symbol] for symbol in common)
    changed: list[BehaviourChange] = []
    same: list[Topic] = []
    unknown: list[BehaviourUnknown] = []
    after = {found.topic: found for found in new.properties}
    for before in old.properties:
        if (other := after.get(before.topic)) is None:
            continue
        found = _property(before, other, same_text, at_equal_sizes)
        if isinstance(found, BehaviourChange):
            changed.append(found)
        elif isinstance(found, BehaviourUnknown):
            unknown.append(found)
        elif before.statements:
            same.append(before.topic)
            if before.topic == "inputs" and before.unknown:  # what neither side was given may differ all the same
                unknown.append(BehaviourUnknown(topic="inputs", old=before.unknown, new=other.unknown))
    results = _results(old, new, at_equal_sizes)
    if isinstance(results, BehaviourChange):
        changed.append(results)
    elif isinstance(results, BehaviourUnknown):
        unknown.append(results)
    else:
        same.append("results")
    return BehaviourDifference(sizes=new.sizes, changed=tuple(changed), same=tuple(same), unknown=tuple(unknown))


def _why_not(old: Behaviour | None, new: Behaviour | None) -> str | None:
    """Return why behaviour can't be compared, None if it can."""
    missing = [name for name, side in (("old", old), ("new", new)) if side is None]
    if missing:
        return "neither side holds it" if len(missing) == 2 else f"the {missing[0]} side doesn't hold it"
    reasons = [
        f"of the {name} side it is unknown: {side.unknown}"
        for name, side in (("old", old), ("new", new))
        if side is not None and side.unknown is not None
    ]
    return "; ".join(reasons) or None


def _property(
    old: Property, new: Property, same_text: SameText, at_equal_sizes: bool
) -> BehaviourChange | BehaviourUnknown | None:
    """Return how a topic differs; None if it doesn't."""

    def alike(one: str, other: str) -> bool:
        # a sentence may have a word that was renamed in the code
        if one == other or same_text(one, other):
            return True
        return not at_equal_sizes and _NUMBER.sub("0", one) == _NUMBER.sub("0", other)

    gone = [one for one in old.statements if not any(alike(one.text, other.text) for other in new.statements)]
    come = [one for one in new.statements if not any(alike(other.text, one.text) for other in old.statements)]
    reasons = BehaviourUnknown(topic=old.topic, old=_why_unknown(old), new=_why_unknown(new))
    both_say_something = bool(old.statements and new.statements)
    if not both_say_something and all(one.verified for one in (*gone, *come)):
        return reasons if reasons.old or reasons.new else None
    if all(one.verified for one in (*gone, *come)):
        # what holds in all code may apply to one version only
        lost = any(one.verified for one in gone) and new.unknown != old.unknown and bool(new.unknown)
        return reasons if (old.unknown or new.unknown) and (lost or old.unknown != new.unknown) else None
    told = (any(not one.verified for one in gone) and (come or not new.unknown)) or (
        any(not one.verified for one in come) and (gone or not old.unknown)
    )
    if not told:
        return reasons
    before, after = [one.text for one in gone], [one.text for one in come]
    if not before or not after:  # what one side says more means little without what both say
        before, after = (_facts(side) for side in (old, new))
    return BehaviourChange(topic=old.topic, old=tuple(before), new=tuple(after))


def _why_unknown(side: Property) -> tuple[str, ...]:
    return side.unknown or (() if side.statements else (_NOTHING,))


def _facts(side: Property) -> list[str]:
    return [one.text for one in side.statements if not one.verified]


def _results(old: Behaviour, new: Behaviour, at_equal_sizes: bool) -> BehaviourChange | BehaviourUnknown | None:
    """Return how the numbers of the results differ, for the same inputs and parameters; None if they don't."""
    reason = None
    if not old.results or not new.results:
        reason = "the results could not be summarised"
    elif not at_equal_sizes:
        reason = "the two sides were measured at other sizes"
    elif sorted(old.parameters.values()) != sorted(new.parameters.values()):
        reason = _other_parameters(old, new)
    if reason is not None:
        return BehaviourUnknown(topic="results", old=(reason,), new=(reason,))
    tolerance = _EXACT if old.exact and new.exact else _ROUNDED
    renamed = old.parameters != new.parameters
    pairs = [(_run(old, "place"), _run(new, "place")), (_run(old, "name"), _run(new, "name"))]
    by_place, by_name = (
        tuple(_other_numbers(one, other, tolerance)) if one is not None and other is not None else None
        for one, other in pairs
    )
    if not renamed and by_name is not None:
        return BehaviourChange(topic="results", old=(), new=by_name) if by_name else None
    if by_place == () and list(old.parameters.values()) == list(new.parameters.values()):
        return None
    reason = "parameters or inputs have other names, so that it isn't known which ones correspond"
    return BehaviourUnknown(topic="results", old=(reason,), new=(reason,))


def _other_parameters(old: Behaviour, new: Behaviour) -> str:
    only = [
        f"only the {side} side has {join_words(names[:3])}{' …' * (len(names) > 3)}"
        for side, names in (
            ("old", [name for name in old.parameters if old.parameters[name] != new.parameters.get(name)]),
            ("new", [name for name in new.parameters if new.parameters[name] != old.parameters.get(name)]),
        )
        if names
    ]
    return f"the parameters or inputs differ: {', '.join(only)}"


def _run(side: Behaviour, filled_by: str) -> ResultsRun | None:
    return next((run for run in side.results if run.filled_by == filled_by), None)


def _other_numbers(old: ResultsRun, new: ResultsRun, tolerance: float) -> Iterator[str]:
    before, after = ({result.name: result for result in run.results} for run in (old, new))
    for name in {**before, **after}:
        one, other = before.get(name), after.get(name)
        if one is None or other is None:
            yield f"only the {'new' if one is None else 'old'} version returns {name}"
        elif one.shape != other.shape:
            yield f"{name} has another shape"
        elif (share := _share(one, other)) > tolerance:
            yield f"the same inputs and parameters give other numbers in {name}, by about {_percent(share)}"


def _share(old: ResultNumbers, new: ResultNumbers) -> float:
    """Return about how large the difference of two results is, relative to their size."""
    size = max(old.size, new.size)
    if size == 0 or len(old.sums) != len(new.sums) or not old.sums:
        return 0.0
    distance = math.dist(old.sums, new.sums)
    return distance / math.sqrt(len(old.sums)) / size


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.2g} %"
