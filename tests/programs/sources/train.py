"""Trains a small model, and ends with a status of its own."""

import hashlib
import os
import sys

import torch
from model import GPT, GPTConfig

torch.manual_seed(1337)
data = torch.tensor([(7 * place + place * place) % 64 for place in range(2000)])
model = GPT(GPTConfig(block_size=32, vocab_size=64, n_layer=2, n_head=4, n_embd=32, dropout=0.1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(6):
    starts = torch.randint(len(data) - 33, (6,))
    x = torch.stack([data[start : start + 32] for start in starts])
    y = torch.stack([data[start + 1 : start + 33] for start in starts])
    loss = model(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
weights = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
print(hashlib.sha256(weights).hexdigest(), torch.get_rng_state().sum().item())
print(sys.argv, sys.orig_argv[1:], __name__, __file__, sys.path[0], sorted(set(os.environ) & {"ATTNSHAPE_RUN"}))
print("typed:", sys.stdin.read())
sys.exit(7)
