"""Watches attention modules as a program constructs and calls them, without a trace in the program.

`nn.Module.__init__` is wrapped to see which classes are constructed. In a class that computes attention, `forward`
becomes a descriptor: nn.Module looks `forward` up for each call, and the descriptor sees the call's arguments in the
frame that does so. It returns the same method as before. So no frame is added to tracebacks, no hook to modules, whose
copies and saved files stay the same, and torch's fast paths, TorchScript and torch.compile see the original function.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attnshape.model.program import (
    CapturedAttention,
    CapturedTensor,
    ProcessCaptures,
    SizesSeen,
    UncalledAttention,
    Value,
)
from attnshape.programs.attention import AttentionClasses, AttentionSource, is_installed
from attnshape.programs.values import describe_call, describe_constructor, without_side_effects

_MOST_SIZES = 8
"""How many sets of shapes of one attention are counted apart."""
_MOST_ATTENTIONS = 200
_MOST_FRAMES = 30
_MOST_PROBLEMS = 5
_SECONDS_BETWEEN = 5.0
_PLAIN_TENSORS = (Tensor, nn.Parameter)
_CALL_CODE = nn.Module._call_impl.__code__
_WITH_AUTOCAST = ("cpu", "cuda", "mps", "xpu")
_MISSING = object()
_COPIED = (-1, None)
"""What stands for the constructor of a module that is a copy, or was loaded."""


class _Calls:
    """The calls of one attention with arguments of the same shapes."""

    __slots__ = ("attention", "modules", "recomputed", "seen")

    def __init__(self, attention: CapturedAttention | None, seen: SizesSeen | None, modules: set[int]) -> None:
        self.attention = attention
        self.seen = seen
        self.modules = modules
        self.recomputed = 0


class _Forward:
    """Takes the place of `forward` in a class with attention, and returns it as if it were still there."""

    def __init__(self, function: Any, watch: Watch, owner: type) -> None:
        self.function = function
        self._watch = watch
        self._owner = owner

    def __get__(self, module: Any, owner: type | None = None) -> Any:
        if module is None or torch.compiler.is_compiling():
            return self.function.__get__(module, owner)
        if self._watch.is_active:
            frame = sys._getframe(1)
            if frame.f_code is _CALL_CODE:  # neither `super().forward(…)`, nor a look without a call
                self._watch.called(module, self._owner, frame)
        return self.function.__get__(module, owner)


class Watch:
    """What one process sees of its attention."""

    current: ClassVar[Watch | None] = None
    """The one that is installed."""

    def __init__(self, on_capture: Callable[[], object] = lambda: None) -> None:
        """`on_capture` is called after each attention that is captured, and now and then while there are calls."""
        self.is_active = False
        self._on_capture = on_capture
        self._classes = AttentionClasses()
        self._sources: dict[type, AttentionSource | None] = {}
        self._replaced: list[tuple[type, object]] = []
        self._constructed: dict[type, list[tuple[int, dict[str, Value] | None, tuple[str, ...]]]] = {}
        self._counts: dict[type, int] = {}
        self._calls: dict[Any, _Calls] = {}
        self._attentions: dict[Any, CapturedAttention] = {}
        self._constructor_of: dict[int, tuple[int, weakref.ref[nn.Module]]] = {}
        self._problems: list[str] = []
        self._rank: tuple[int | None, int | None] = None, None
        self._save_at = 0.0
        """When to save next, in case the process is killed."""
        self._init: Any = None
        self._setstate: Any = None

    # installing

    def install(self) -> None:
        """Watch what is constructed and called from now on."""
        self._init, self._setstate = nn.Module.__init__, nn.Module.__setstate__
        init, setstate, watch = self._init, self._setstate, self

        @functools.wraps(init)
        def watched_init(module: nn.Module, /, *args: Any, **kwargs: Any) -> None:
            init(module, *args, **kwargs)
            if watch.is_active and not torch.compiler.is_compiling():
                watch._constructing(module, sys._getframe(1))

        @functools.wraps(setstate)
        def watched_setstate(module: nn.Module, state: Any) -> None:
            setstate(module, state)
            if watch.is_active:
                watch._restored(type(module))

        nn.Module.__init__ = watched_init  # type: ignore[method-assign, assignment]
        nn.Module.__setstate__ = watched_setstate  # type: ignore[method-assign]
        self.is_active = True
        Watch.current = self
        for kind, source in self._sources.items():  # where it has been installed before
            if source is not None:
                self._replace_forward(kind)

    def watch_loaded_classes(self) -> None:
        """Watch also the classes that exist already, whose modules may have been constructed before."""
        waiting: list[type[Any]] = [nn.Module]
        seen = {*waiting}
        while waiting:
            for kind in type.__subclasses__(waiting.pop()):
                if kind not in seen:
                    seen.add(kind)
                    waiting.append(kind)
                    self._restored(kind)

    def uninstall(self) -> None:
        """Put everything back."""
        self.is_active = False
        Watch.current = None
        if self._init is not None:
            nn.Module.__init__, nn.Module.__setstate__ = self._init, self._setstate  # type: ignore[method-assign]
            self._init = self._setstate = None
        for kind, own in reversed(self._replaced):
            if isinstance(vars(kind).get("forward"), _Forward):
                if own is _MISSING:
                    type.__delattr__(kind, "forward")
                else:
                    type.__setattr__(kind, "forward", own)
        self._replaced.clear()

    def forget(self) -> None:
        """Start again with nothing seen, as in a child process."""
        self._calls.clear()
        self._attentions.clear()
        self._problems.clear()

    # construction

    def _constructing(self, module: nn.Module, frame: FrameType) -> None:
        try:
            kind = type(module)
            if self._source_of(kind) is None:
                return
            self._counts[kind] = self._counts.get(kind, 0) + 1
            given = _constructor_arguments(kind, module, frame)
            described: dict[str, Value] | None = None
            positional: tuple[str, ...] = ()
            if given is not None:
                with without_side_effects():
                    described, positional = describe_constructor(kind, given)
            known = self._constructed.setdefault(kind, [])
            number = next((place for place, one in enumerate(known) if one[1:] == (described, positional)), len(known))
            if number == len(known):
                known.append((number, described, positional))
            of, key = self._constructor_of, id(module)
            of[key] = number, weakref.ref(module, lambda _: of.pop(key, None))
        except Exception as error:  # noqa: BLE001 - the program goes on whatever happens here
            self._problem(error)

    def _restored(self, kind: type) -> None:
        try:
            self._source_of(kind)
        except Exception as error:  # noqa: BLE001 - likewise
            self._problem(error)

    def _source_of(self, kind: type) -> AttentionSource | None:
        if kind not in self._sources:
            self._sources[kind] = None
            source = self._classes.source_of(kind)
            self._sources[kind] = source
            if source is not None:
                self._replace_forward(kind)
        return self._sources[kind]

    def _replace_forward(self, kind: type) -> None:
        own = vars(kind).get("forward", _MISSING)
        function = getattr(kind, "forward", None)
        if callable(function) and not isinstance(own, staticmethod | classmethod):
            type.__setattr__(kind, "forward", _Forward(function, self, kind))
            self._replaced.append((kind, own))

    # calls

    def called(self, module: Any, kind: type[Any], frame: FrameType) -> None:
        """Count a call, whose arguments are in the frame; describe the first of its kind.

        Args:
            module: The module that is called.
            kind: Its class, or a base of that where libraries derive classes for single modules, as FSDP does.
            frame: The frame that calls it.
        """
        try:
            found = frame.f_locals
            args, kwargs = found["args"], found["kwargs"]
            constructor = self._constructor_of.get(id(module), _COPIED)[0]
            if constructor < 0 and len(self._constructed.get(kind, ())) == 1:
                constructor = 0  # what it is a copy of had the arguments that all others had
            key = (kind, constructor, _shapes(args, kwargs))
            calls = self._calls.get(key)
            if calls is None:
                self._calls[key] = _Calls(None, None, set())  # if describing it fails, that isn't tried again
                calls = self._calls[key] = self._first_call(module, args, kwargs, key)
            calls.modules.add(id(module))
            if torch._C._current_graph_task_id() != -1:
                calls.recomputed += 1
            elif calls.seen is not None:
                calls.seen.calls += 1
            if (now := time.monotonic()) >= self._save_at:
                self._save_at = now + _SECONDS_BETWEEN
                self._on_capture()
        except Exception as error:  # noqa: BLE001 - the program goes on whatever happens here
            self._problem(error)

    def _first_call(self, module: nn.Module, args: Any, kwargs: Any, key: Any) -> _Calls:
        kind, constructor, shapes = key
        structure = (kind, constructor, tuple(_without_sizes(one) for one in shapes))
        attention = self._attentions.get(structure)
        with without_side_effects():
            if attention is None:
                if len(self._attentions) >= _MOST_ATTENTIONS:
                    return _Calls(None, None, set())
                attention = self._capture(module, kind, constructor, args, kwargs)
                self._attentions[structure] = attention
                new = True
            else:
                new = False
            described = attention.arguments if new else describe_call(kind.forward, kind, args, kwargs)
        shown = {name: one.shape for name, one in described.items() if isinstance(one, CapturedTensor)}
        seen: SizesSeen | None = next((one for one in attention.sizes if one.shapes == shown), None)
        if seen is None and len(attention.sizes) < _MOST_SIZES:
            seen = SizesSeen(shown)
            attention.sizes.append(seen)
        elif seen is None:
            attention.more_sizes += 1
        if new:
            self._save_at = 0.0
        return _Calls(attention, seen, set())

    def _capture(
        self, module: nn.Module, kind: type[Any], constructor: int, args: Any, kwargs: Any
    ) -> CapturedAttention:
        source = self._sources[kind]
        assert source is not None
        known = self._constructed.get(kind, [])
        chosen = known[constructor] if constructor >= 0 else None
        forward = vars(kind)["forward"].function
        device = next((one.device.type for one in (*args, *kwargs.values()) if isinstance(one, Tensor)), "cpu")
        is_autocast = device in _WITH_AUTOCAST and torch.is_autocast_enabled(device)
        autocast = str(torch.get_autocast_dtype(device)) if is_autocast else ""
        return CapturedAttention(
            file=source.file,
            line=source.line,
            module=kind.__module__,
            name=kind.__qualname__,
            is_main=kind.__module__ in ("__main__", "__mp_main__"),
            is_library=is_installed(source.file),
            constructor=chosen[1] if chosen is not None else None,
            positional=chosen[2] if chosen is not None else (),
            attributes={name: value for name, value in vars(module).items() if type(value) is int}
            if chosen is None
            else {},
            arguments=describe_call(forward, kind, args, kwargs),
            is_sequence_first=getattr(module, "batch_first", None) is False,
            is_training=module.training,
            autocast=autocast.removeprefix("torch."),
        )

    # results

    def captures(self) -> ProcessCaptures:
        """Return what was seen until now."""
        modules: dict[int, set[int]] = {}
        recomputed: dict[int, int] = {}
        for calls in list(self._calls.values()):
            if calls.attention is not None:
                modules.setdefault(id(calls.attention), set()).update(calls.modules)
                recomputed[id(calls.attention)] = recomputed.get(id(calls.attention), 0) + calls.recomputed
        attentions = list(self._attentions.values())
        for one in attentions:
            one.modules = len(modules.get(id(one), ()))
            one.recomputed = recomputed.get(id(one), 0)
            one.calls = sum(seen.calls for seen in one.sizes)
        called = {key[0] for key in self._calls}
        uncalled = [
            UncalledAttention(source.file, source.line, kind.__qualname__, self._counts[kind])
            for kind, source in self._sources.items()
            if source is not None and kind not in called and kind in self._counts
        ]
        self._find_rank()
        dynamo = sys.modules.get("torch._dynamo.utils")
        return ProcessCaptures(
            process=os.getpid(),
            rank=self._rank[0],
            world=self._rank[1],
            attentions=attentions,
            uncalled=uncalled,
            is_compiled=bool(dynamo is not None and dynamo.counters.get("stats")),
            problems=self._problems,
        )

    def _find_rank(self) -> None:
        """Find the rank of this process and the number of ranks; they stay known when the group of processes ends."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            self._rank = int(distributed.get_rank()), int(distributed.get_world_size())
        elif self._rank[0] is None:
            rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
            self._rank = (int(rank) if rank.isdecimal() else None), (int(world) if world.isdecimal() else None)

    def _problem(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"[:200]
        if text not in self._problems and len(self._problems) < _MOST_PROBLEMS:
            self._problems.append(text)


def _constructor_arguments(kind: type, module: nn.Module, frame: FrameType | None) -> dict[str, object] | None:
    """Return the arguments of the constructor of a class, from the frame of it that is running."""
    init = kind.__init__  # type: ignore[misc]
    while hasattr(init, "__wrapped__"):
        init = init.__wrapped__
    code = getattr(init, "__code__", None)
    for _ in range(_MOST_FRAMES):
        if frame is None or code is None:
            return None
        if frame.f_code is code:
            names = code.co_varnames[
                : code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
            ]
            values = frame.f_locals
            if names and values.get(names[0]) is module:
                return {name: values[name] for name in names[1:] if name in values}
        frame = frame.f_back
    return None


def _shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return what tells calls apart: shapes and dtypes of tensors, plain values, and the types of all else."""
    with torch._C.DisableTorchFunction():
        parts = [_shape(value) for value in args]
        for name, value in kwargs.items():
            parts += (name, _shape(value))
    return tuple(parts)


def _shape(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN_TENSORS:
        return value.shape, value.dtype
    return value if value is None or kind is bool else kind


def _without_sizes(part: Any) -> Any:
    return (len(part[0]), part[1]) if isinstance(part, tuple) else part
