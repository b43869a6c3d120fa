"""What a case function returns, which is also how case functions are told from the others in a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Case: TypeAlias = (
    tuple[Callable[..., Any], tuple[Any, ...]] | tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
)
"""Something to call, its arguments, and keyword arguments where it has any."""
