"""Decoders that attend step by step: each query comes from the context of the step before."""

import torch
import torch.nn.functional as F
from torch import nn

UNUSUAL = [
    ("pointer_to_the_next_input", {"B": 3, "L": 7, "D": 6}, {"B": 4, "L": 9, "D": 8}),
    ("location_sensitive_decoder", {"B": 3, "L": 4, "Lk": 7, "D": 6}, {"B": 4, "L": 3, "Lk": 9, "D": 8}),
    ("pointer_after_glimpses", {"B": 3, "L": 7, "D": 6}, {"B": 4, "L": 9, "D": 8}),
]


class LocationSensitive(nn.Module):
    """A convolution reads the last weights, and their sum over all steps, for additive scores."""

    def __init__(self, width):
        super().__init__()
        self.cell = nn.GRUCell(2 * width, width)
        self.query, self.keys = nn.Linear(width, 5, bias=False), nn.Linear(width, 5, bias=False)
        self.convolve, self.locate = nn.Conv1d(2, 4, 3, padding=1, bias=False), nn.Linear(4, 5, bias=False)
        self.score, self.out = nn.Linear(5, 1, bias=False), nn.Linear(2 * width, width)

    def forward(self, frames, memory):
        state = context = torch.zeros_like(frames[:, 0])
        weights = total = torch.zeros_like(memory[..., 0])
        keys = self.keys(memory)
        results = []
        for frame in frames.unbind(1):
            state = self.cell(torch.cat([frame, context], dim=-1), state)
            location = self.locate(self.convolve(torch.stack([weights, total], dim=1)).mT)
            weights = self.score(torch.tanh(self.query(state)[:, None] + keys + location)).squeeze(-1).softmax(-1)
            total = total + weights
            context = torch.bmm(weights[:, None], memory).squeeze(1)
            results.append(self.out(torch.cat([state, context], dim=-1)))
        return torch.stack(results, dim=1)


def case_location_sensitive_decoder(B, L, Lk, D):
    return LocationSensitive(D), (torch.randn(B, L, D), torch.randn(B, Lk, D)), {}


class Pointer(nn.Module):
    """Two glimpses at the tokens refine the query, by which the tokens are pointed at."""

    def __init__(self, width):
        super().__init__()
        self.query, self.keys, self.first = (
            nn.Linear(width, 5),
            nn.Linear(width, 5, bias=False),
            nn.Linear(width, width),
        )
        self.score = nn.Parameter(torch.randn(5))

    def weights(self, query, keys):
        scores = torch.tanh(self.query(query)[:, None] + keys) @ self.score
        return F.softmax(scores, dim=-1)

    def forward(self, x):
        keys, query = self.keys(x), self.first(x.mean(1))
        for _ in range(2):
            query = (self.weights(query, keys)[..., None] * x).sum(1)
        return self.weights(query, keys)


def case_pointer_after_glimpses(B, L, D):
    return Pointer(D), (torch.randn(B, L, D),), {}


class Tour(nn.Module):
    """The token that a step points at is the next step's input, and is hidden from then on."""

    def __init__(self, width):
        super().__init__()
        self.cell = nn.GRUCell(width, width)
        self.query, self.keys = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.start = nn.Parameter(torch.randn(width))

    def forward(self, x):
        batch, length, width = x.shape
        state, given = x.mean(1), self.start.expand(batch, width)
        hidden = torch.zeros(batch, length, dtype=torch.bool)
        results = []
        for _ in range(3):
            state = self.cell(given, state)
            scores = torch.einsum("bd,bnd->bn", self.query(state), self.keys(x)) * width**-0.5
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            chosen = weights.argmax(-1)
            hidden = hidden.scatter(1, chosen[:, None], True)
            given = x[torch.arange(batch), chosen]
            results.append(weights)
        return torch.stack(results, dim=1)


def case_pointer_to_the_next_input(B, L, D):
    return Tour(D), (torch.randn(B, L, D),), {}
