"""The composites that are running, and to which of them a call belongs."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from attnshape.tracing.call import Call
from attnshape.tracing.composites import Invocation
from attnshape.tracing.frames import Frames, Site
from attnshape.tracing.storage import Before


@dataclass(slots=True)
class Scope:
    """One composite that is running."""

    position: int
    barrier: int
    """The id of the frame under which its body runs; it stays that frame's as long as the composite runs."""
    call: Call
    before: Before
    own: bool
    """Whether the traced code itself called it."""
    node: ast.AST | None
    """The node that is the composite's call, where that is certain and was looked up."""


@dataclass
class Scopes:
    """The running composites, innermost last."""

    frames: Frames
    stop: FrameType | None
    running: list[Scope] = field(default_factory=list)

    def site(self, frame: FrameType | None) -> Site | None:
        """Return where a call comes from."""
        return self.frames.site(frame, self.stop, self.running[-1].barrier if self.running else None)

    def parent(self, site: Site | None) -> int | None:
        """Return the position of the composite that a call from there is part of, where that one has begun."""
        if site is not None and site.library is not None:
            mark: Any = site.library.f_trace
            return mark.position if isinstance(mark, Invocation) else None
        return self.running[-1].position if self.running else None

    def is_body(self, site: Site | None) -> bool:
        """Say whether a call stands in the innermost composite's own source, which may be the target's file too."""
        if site is None or not self.running:
            return False
        return site.frame.f_code is getattr(self.running[-1].call.func, "__code__", None)

    def end(self, scope: Scope) -> None:
        """End a composite, and what still seems to run inside of it."""
        if scope in self.running:
            del self.running[self.running.index(scope) :]

    def close(self) -> None:
        """Let go of every frame."""
        self.running.clear()
        self.stop = None  # a frame keeps its variables alive, the result among them
