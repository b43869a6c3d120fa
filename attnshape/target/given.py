"""Targets that Python code gives as they are: a case, a function, a class, or a module that is built already."""

from __future__ import annotations

import copy
import sys
from types import ModuleType
from typing import Any

from attnshape.errors import AttnshapeError
from attnshape.target.locate import reason
from attnshape.target.request import Request, Target
from attnshape.target.user import target_in
from attnshape.tracing.modules import module_of


class Surroundings(ModuleType):
    """The module that a callable is from, with the callable itself under the name that it is asked for.

    What is defined within a function can't be reached by a path from its module.
    """

    def __init__(self, name: str, value: Any) -> None:
        super().__init__(getattr(value, "__module__", None) or type(value).__module__)
        self._module = sys.modules.get(self.__name__)
        self._globals = getattr(value, "__globals__", {})
        setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_module", "_globals"):
            raise AttributeError(name)
        if name in self._globals:
            return self._globals[name]
        return getattr(self._module, name)


def callable_target(request: Request) -> Target:
    """Return the target of `request.callable`, which itself is neither moved nor changed.

    Raises AttnshapeError where it can't be one.
    """
    value = request.callable
    if module_of(value) is not None:
        try:
            value = copy.deepcopy(value)
        except Exception as error:
            raise AttnshapeError(
                f"{request.target} can't be copied, so that runs would change it: {type(error).__name__}: "
                f"{reason(error)}",
                "give its class with init=…, or watch your own call: with attnshape.record(sizes=…) as recording",
            ) from error
    name = getattr(value, "__name__", "")
    name = name if isinstance(value, type) and name.isidentifier() else "target"
    return target_in(request, Surroundings(name, value), name)
