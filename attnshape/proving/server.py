"""The proving process: each attempt is a fork of it, so that what one imports is gone with it.

It imports torch and the libraries that the target needs once. Jobs come pickled by standard input, answers go by
standard output; what the attempted code prints goes nowhere.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import sys
from typing import BinaryIO

import jaxtyping
import torch

from attnshape.ending import reraise_interruption
from attnshape.proving.blame import blame
from attnshape.proving.job import Answer, Blame, Call, Job, Result
from attnshape.proving.overlay import import_hooked, lay
from attnshape.target.find import find_target
from attnshape.target.request import Placement
from attnshape.tracing.contained import paths
from attnshape.tracing.isolation import isolated, seed_all
from attnshape.tracing.outcome import run_to_its_end
from attnshape.tracing.patience import TooLong, at_most

_SECONDS = 120.0
"""What an attempt may take."""


def serve() -> None:
    """Answer jobs until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    jobs = sys.stdin.buffer
    torch.set_num_threads(1)
    sys.path[:] = pickle.load(jobs)
    while True:
        try:
            job: Job = pickle.load(jobs)
        except EOFError:
            return
        for name in job.libraries:
            with contextlib.suppress(BaseException):
                importlib.import_module(name)
        pickle.dump(_forked(job), answers)
        answers.flush()


def _forked(job: Job) -> Answer:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "wb") as stream:
            _attempt_into(job, stream)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        data = stream.read()
    _, status = os.waitpid(child, 0)
    if not data:
        return Answer(blame=Blame("other", f"the process ended with status {os.waitstatus_to_exitcode(status)}"))
    answer: Answer = pickle.loads(data)
    return answer


def _attempt_into(job: Job, stream: BinaryIO) -> None:
    os.dup2(1, 2)  # which leads nowhere
    try:
        with at_most(_SECONDS):
            answer = attempt(job)
    except TooLong:
        answer = Answer(blame=Blame("other", "it took too long"))
    except BaseException as error:  # noqa: BLE001 - the attempted code may raise anything
        with contextlib.suppress(BaseException):
            reraise_interruption(error)
        answer = Answer(blame=blame(error, job.files))
    pickle.dump(answer, stream)


def attempt(job: Job) -> Answer:
    """Run a job's calls in this process, with the job's files in the place of those on the disk."""
    lay(job.files)
    jaxtyping.config.update("jaxtyping_disable", not job.checked)
    if job.module:
        from beartype.claw import beartype_package

        beartype_package(job.module)
        if job.alone:
            import_hooked(job.alone)
    placement = Placement(torch.device("cpu"), torch.float32, job.seed, job.train)
    return Answer(tuple(results for call in job.calls for results in _called(call, placement)))


def _called(call: Call, placement: Placement) -> list[tuple[Result, ...]]:
    found = []
    target = find_target(call.request)
    for numbers in call.numbers:
        with isolated(), torch.no_grad():
            runnable = target.build(numbers, placement)
            seed_all(placement.seed)
            value, _ = run_to_its_end(runnable.call())
            found.append(tuple(_result(path, tensor) for path, tensor in paths("output", value)))
    return found


def _result(path: str, tensor: torch.Tensor) -> Result:
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return Result(path, str(tensor.dtype), tuple(tensor.shape), bytes(whole.numpy().tobytes()))
