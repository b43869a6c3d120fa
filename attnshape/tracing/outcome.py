"""Runs what a call only returned to be run: the body of a generator, of a coroutine."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from types import GeneratorType
from typing import Any

MOST_VALUES = 1000
"""A generator may never end."""


def run_to_its_end(result: Any) -> tuple[Any, str | None]:
    """Return a call's result, where that is a generator the list of its values, where a coroutine what it returns.

    The second is a note on what was left out, or None.
    """
    if inspect.iscoroutine(result):
        return run_to_its_end(_awaited(result))
    if isinstance(result, (GeneratorType, map, filter, zip)):
        return _listed(list(itertools.islice(_and_its_result(result), MOST_VALUES)))
    if inspect.isasyncgen(result):
        return _listed(_awaited(_collected(result)))
    return result, None


def _listed(values: list[Any]) -> tuple[list[Any], str | None]:
    note = f"the generator was stopped after {MOST_VALUES} values" if len(values) == MOST_VALUES else None
    return values, note


def _and_its_result(values: Iterable[Any]) -> Iterator[Any]:
    """Yield a generator's values, then what it returns."""
    returned: Any = yield from values  # type: ignore[func-returns-value]  # a generator may return something
    if returned is not None:
        yield returned


async def _collected(values: AsyncIterator[Any]) -> list[Any]:
    found = []
    async for value in values:
        found.append(value)
        if len(found) == MOST_VALUES:
            break
    return found


def _awaited(coroutine: Coroutine[Any, Any, Any]) -> Any:
    import asyncio  # only where it is needed

    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)  # a notebook has one, in which nothing else can be run to its end
    try:
        return asyncio.run(coroutine)
    finally:
        asyncio._set_running_loop(running)
