"""Training loops, distributed training and workers under `attnshape run`: the same bits, and one report."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.programs.programs import RUN, SOURCES, Ended, ended, plain, watched


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a model and programs that use it."""
    for file in SOURCES.glob("*.py"):
        shutil.copy(file, tmp_path)
    return tmp_path


STORE = "store"
"""The file by which the processes of one run find each other."""


def distributed(command: list[str], folder: Path) -> Ended:
    """Run two processes, again if torch's own threads abort one as its interpreter ends; on a busy machine some do."""
    for _ in range(5):
        (folder / STORE).unlink(missing_ok=True)
        run = ended(command, folder)
        if "terminate called without an active exception" not in run.errors:
            break
    return run


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_processes_that_the_program_starts_are_watched(folder: Path, method: str) -> None:
    script = ["distributed.py", method, str(folder / STORE)]
    alone = distributed([sys.executable, *script], folder)
    run = distributed([*RUN, *script], folder)
    assert (run.status, run.output) == (alone.status, alone.output)
    assert alone.status == 0, alone.errors
    assert "attnshape: 1 attention in 3 calls\n" in run.errors
    assert run.errors.endswith("note: rank 0 of 2; the others aren't shown\n")


def test_rank_0_of_torchrun_reports(folder: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    alone = distributed([*torchrun, "distributed.py"], folder)
    run = distributed([*torchrun, "-m", *RUN[3:], "distributed.py"], folder)
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
