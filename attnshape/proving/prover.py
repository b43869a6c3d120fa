"""Asks the proving process."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from attnshape.errors import AttnshapeError
from attnshape.proving.job import Answer, Job

_START = "from attnshape.proving.server import serve; serve()"
_CHECKING = {"JAXTYPING_DISABLE": "0", "PYTHONOPTIMIZE": ""}
"""Settings without which jaxtyping or beartype might check nothing."""


class Prover:
    """A process that runs source before it is written; it is started with the first job."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Prover:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # with the attempt that it may have begun
            self._process.communicate()

    def ask(self, job: Job) -> Answer:
        """Return what a job comes to. Raises AttnshapeError where the process ends before it has answered."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump(job, process.stdin)
            process.stdin.flush()
            answer: Answer = pickle.load(process.stdout)
        except (BrokenPipeError, EOFError, pickle.UnpicklingError):
            raise AttnshapeError(
                f"what would be written can't be proved: the process that runs it ended with {process.wait()}",
                "nothing was written; a smaller target may need less memory",
            ) from None
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            here = str(Path(__file__).resolve().parents[2])
            single = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")  # else a fork could wait for ever
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **single, **_CHECKING, "PYTHONPATH": here},
            )
            assert self._process.stdin is not None
            pickle.dump(tuple(sys.path), self._process.stdin)
        return self._process
