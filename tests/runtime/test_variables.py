"""Reading the variables of a running function changes nothing for it, and keeps nothing alive."""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any

from attnshape.runtime.variables import read_variables


class Held:
    """Something that a weak reference can be to."""


def caller() -> FrameType:
    return sys._getframe(2)


def read(*names: str) -> dict[str, Any]:
    return read_variables(caller(), names)


def test_only_variables_that_hold_something_are_read() -> None:
    value, later = 1, None
    del later
    assert read("value", "later", "unknown") == {"value": value}


def test_what_a_variable_held_is_freed_when_it_is_bound_anew() -> None:
    value = Held()
    old = weakref.ref(value)
    assert read("value") == {"value": value}
    value = Held()
    assert old() is None
    inner = lambda: value  # noqa: E731 - a cell
    old = weakref.ref(inner())
    assert list(read("value")) == ["value"]
    value = Held()
    assert old() is None


def test_the_result_of_locals_is_left_as_it_is() -> None:
    value = 1
    own = locals()
    read("value")
    assert own["value"] == value


def test_what_exec_bound_is_left_as_it_is() -> None:
    exec("made = 3")
    read("made")
    assert sys.version_info >= (3, 13) or locals()["made"] == 3


def test_variables_of_a_module_are_read_and_stay() -> None:
    namespace: dict[str, Any] = {"read": read}
    exec("one = 1\nfound = read('one', 'two')", namespace)
    assert namespace["found"] == {"one": 1}
    assert namespace["one"] == 1
