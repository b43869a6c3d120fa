"""Lanes: processes that do the items of a batch side by side, each in a worker with a supervisor of its own.

The process that starts the lanes runs no traced code. Each lane takes the next item that nobody has taken, so that an
item that takes long delays no other. A worker that dies, or that reaches its time limit, costs only its current item.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Literal, NoReturn

import msgspec

from attnshape.runtime.supervisor import supervise_items
from attnshape.runtime.worker import Death

_NUMBER = struct.Struct("=I")
_HEADER = struct.Struct("=cII")
"""The kind of an event, the number of the item, and the number of bytes that follow."""
_STARTED, _FINISHED, _DIED = b"s", b"f", b"d"
_KINDS: dict[bytes, Literal["started", "finished", "died"]] = {
    _STARTED: "started",
    _FINISHED: "finished",
    _DIED: "died",
}
_MOST_PRINTED = 1 << 20
"""How many bytes of what an item printed are kept."""

LaneWork = Callable[[Iterator[int]], int]
"""Does the items whose numbers the iterator yields, with `start_item` and `finish_item` around each; returns 0."""


@dataclass(frozen=True)
class LaneEvent:
    """What has happened to an item."""

    kind: Literal["started", "finished", "died"]
    number: int
    result: bytes = b""
    """The encoded result of an item that is finished."""
    death: Death | None = None
    printed: bytes = b""
    """What the lane's code has written to standard error since its last item; perhaps the start of the next one's."""


def can_run_lanes() -> bool:
    """Return whether this platform ends all lanes with the command: only Linux lets a supervisor find them."""
    return sys.platform == "linux"


def run_lanes(numbers: Sequence[int], work: LaneWork, lanes: int) -> Iterator[LaneEvent]:
    """Yield what happens to the items, from several lanes, as it happens; each item is finished or died in the end.

    Args:
        numbers: The numbers of the items, in the order in which they are begun.
        work: What a lane's worker does.
        lanes: How many lanes there are at most.
    """
    open_numbers = dict.fromkeys(numbers)
    with tempfile.TemporaryFile() as queue:
        queue.write(b"".join(map(_NUMBER.pack, numbers)))
        queue.flush()
        queue.seek(0)
        running = [_Lane(queue, work) for _ in range(min(lanes, len(numbers)))]
        while running:
            ready, _, _ = select.select([lane.events for lane in running], [], [])
            for lane in [lane for lane in running if lane.events in ready]:
                for event in lane.read():
                    if event.kind != "started":
                        open_numbers.pop(event.number, None)
                    yield event
                if lane.ended:
                    running.remove(lane)
                    if lane.current is not None:  # its supervisor was killed, as for lack of memory
                        open_numbers.pop(lane.current, None)
                        yield LaneEvent("died", lane.current, death=Death(-signal.SIGKILL))
                        running.append(_Lane(queue, work))
    for number in open_numbers:  # no worker got to it
        yield LaneEvent("died", number, death=Death(2))


class _Lane:
    """A supervisor in a process of its own, with the pipe on which it reports, and what its items printed."""

    def __init__(self, queue: IO[bytes], work: LaneWork) -> None:
        self.events, report = os.pipe()
        self.ended = False
        self.current: int | None = None
        """The item that was started and has neither been finished nor died."""
        self._buffer = b""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the lane
        self._printed = 0
        self._pid = os.fork()
        if not self._pid:
            os.close(self.events)
            _supervise(queue, work, report, self._log.fileno())
        os.close(report)

    def read(self) -> Iterator[LaneEvent]:
        """Yield the events that have arrived; at the end of the lane set `ended`."""
        data = os.read(self.events, 1 << 16)
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            kind, number, length = _HEADER.unpack_from(self._buffer)
            end = _HEADER.size + length
            if len(self._buffer) < end:
                break
            payload, self._buffer = self._buffer[_HEADER.size : end], self._buffer[end:]
            self.current = number if kind == _STARTED else None
            death = msgspec.json.decode(payload, type=Death) if kind == _DIED else None
            result = payload if kind == _FINISHED else b""
            yield LaneEvent(_KINDS[kind], number, result, death, self._new_output() if kind != _STARTED else b"")
        if not data:
            self.ended = True
            os.close(self.events)
            self._log.close()
            os.waitpid(self._pid, 0)

    def _new_output(self) -> bytes:
        descriptor = self._log.fileno()
        size = os.fstat(descriptor).st_size
        start, self._printed = self._printed, size
        return os.pread(descriptor, min(size - start, _MOST_PRINTED), start) if size > start else b""


class _Streams:
    """The streams of the process that started a lane: they must not be closed, nor write what they hold."""

    before: tuple[Any, ...] = ()


def _supervise(queue: IO[bytes], work: LaneWork, report: int, log: int) -> NoReturn:
    """Supervise the workers of a lane, report on their items, and end this process."""
    status = 2
    try:
        nowhere = os.open(os.devnull, os.O_RDONLY)
        # lanes must not compete for what the user types, nor write over each other
        os.dup2(nowhere, 0)
        os.close(nowhere)
        flags = os.O_APPEND | os.O_WRONLY
        writing = os.open(f"/proc/self/fd/{log}", flags)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.close(writing)
        _Streams.before = (sys.stdout, sys.stderr)
        # the process before may have replaced them, as by one that erases its progress line
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
        sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)

        def send(kind: bytes, number: int, payload: bytes = b"") -> None:
            data = _HEADER.pack(kind, number, len(payload)) + payload
            while data:
                data = data[os.write(report, data) :]

        def finished(number: int, outcome: bytes | Death) -> None:
            if isinstance(outcome, bytes):
                send(_FINISHED, number, outcome)
            else:
                send(_DIED, number, msgspec.json.encode(outcome))

        def lane_work() -> int:
            os.close(report)  # the code could write to it
            return work(_taken(queue))

        status = supervise_items(lane_work, lambda number: send(_STARTED, number), finished)
    except BaseException:  # noqa: BLE001 - nobody is there to be told; the item that was begun counts as died
        with contextlib.suppress(OSError):
            os.close(report)
    os._exit(status)


def _taken(queue: IO[bytes]) -> Iterator[int]:
    """Yield the numbers that this worker takes: all lanes read the same open file, each from where the last ended."""
    while len(data := os.read(queue.fileno(), _NUMBER.size)) == _NUMBER.size:
        yield _NUMBER.unpack(data)[0]
