"""Training loops, distributed training and workers under `attnshape run`: the same bits, and one report."""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path

import pytest

from tests.programs.programs import RUN, SOURCES, ended, plain, watched


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a model and programs that use it."""
    for file in SOURCES.glob("*.py"):
        shutil.copy(file, tmp_path)
    return tmp_path


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_processes_that_the_program_starts_are_watched(folder: Path, method: str) -> None:
    words = ["distributed.py", method]
    alone = plain([*words, str(folder / "first")], folder)
    run = watched([*words, str(folder / "second")], folder)
    assert (run.status, run.output) == (alone.status, alone.output)
    assert alone.status == 0, alone.errors
    assert "attnshape: 1 attention in 3 calls\n" in run.errors
    assert run.errors.endswith("note: rank 0 of 2; the others aren't shown\n")


def test_rank_0_of_torchrun_reports(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", f"--master-port={port}"]
    alone = ended([*torchrun, "distributed.py"], folder)
    run = ended([*torchrun, "-m", *RUN[3:], "distributed.py"], folder)
    assert (run.status, run.output) == (alone.status, alone.output)
    assert alone.status == 0, alone.errors
    assert run.errors.count("attnshape: 1 attention in 3 calls\n") == 1
    assert run.errors.endswith("note: rank 0 of 2; the others aren't shown\n")


def test_a_trainer_with_workers_and_layers_of_torch(folder: Path) -> None:
    alone, run = plain(["loop.py"], folder), watched(["loop.py"], folder)
    assert (run.status, run.output) == (alone.status, alone.output)
    assert alone.status == 0, alone.errors
    words = " ".join(run.errors.split())
    assert "MultiheadAttention · 16 calls of 2 modules · B=4 H=2 L=6 D=16 Dk=8 · scores" in words
    assert "torch.nn:MultiheadAttention --init 'D, H, dropout=0.1, batch_first=True'" in run.errors


TRANSFORMERS = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    ids = torch.randint(50, (2, 8))
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item(), sum(one.sum().item() for one in model.parameters()))
"""


@pytest.mark.libraries
def test_a_model_of_transformers(folder: Path) -> None:
    pytest.importorskip("transformers")
    (folder / "finetune.py").write_text(TRANSFORMERS)
    alone, run = plain(["finetune.py"], folder), watched(["finetune.py"], folder)
    assert (run.status, run.output) == (alone.status, alone.output)
    assert alone.status == 0, alone.errors
    assert "GPT2Attention · 6 calls of 2 modules · B=2 H=4 L=8 D=32 Dk=8" in " ".join(run.errors.split())
    assert "verified" in run.errors
