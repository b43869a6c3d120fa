"""The benchmarks by name. A new one is a file with `run(options) -> list[Table]`, and a line here."""

from collections.abc import Callable, Sequence

from benchmarks import checking, costs, peers, recording, running, scaling, startup
from benchmarks.measure import Options
from benchmarks.ratio import Figures, Table

BENCHMARKS: dict[str, Callable[[Options], Sequence[Table | Figures]]] = {
    "startup": startup.run,
    "peers": peers.run,
    "recording": recording.run,
    "running": running.run,
    "checking": checking.run,
    "scaling": scaling.run,
    "costs": costs.run,
}
