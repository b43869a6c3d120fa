"""AS107: constants choose the frames of keys and values, in different orders."""

import torch
from torch import nn

from tests.mutants.plain import attention

SIZES = (
    {"B": 3, "H": 4, "L": 5, "Dk": 6, "T": 7},
    {"B": 4, "H": 2, "L": 7, "Dk": 5, "T": 6},
    {"B": 2, "H": 3, "L": 6, "Dk": 8, "T": 5},
)
PAIRS = [
    ("AS107", "frames_swapped", *SIZES),
    ("AS107", "neighbours_flipped", *SIZES),
    ("AS107", "last_frame_first", *SIZES),
]


class Frames(nn.Module):
    """Each frame of a video attends to two frames: the first one, and the one before it."""

    def __init__(self, width, heads, frames):
        super().__init__()
        self.heads, self.frames = heads, frames
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def chosen(self):
        places = torch.arange(self.frames)
        return torch.zeros_like(places), (places - 1).clamp(min=0)

    def keys(self, x):
        one, other = self.chosen()
        return torch.cat((x[:, one], x[:, other]), dim=2)

    def values(self, x):
        one, other = self.chosen()
        return torch.cat((x[:, one], x[:, other]), dim=2)

    def forward(self, x):
        k, v = (linear(x).unflatten(0, (-1, self.frames)) for linear in (self.k, self.v))
        k, v = (t.flatten(0, 1) for t in (self.keys(k), self.values(v)))
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.q(x), k, v))
        return ((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)


class Swapped(Frames):
    def keys(self, x):
        one, other = self.chosen()
        return torch.cat((x[:, other], x[:, one]), dim=2)  # wrong: AS107 frames_swapped


class Neighbours(Frames):
    """Each frame attends to the frames at both of its sides, of which the first and the last are neighbours too."""

    def chosen(self):
        places = torch.arange(self.frames)
        return places - 1, (places + 1) % self.frames


class NeighboursFlipped(Neighbours):
    def keys(self, x):
        before, behind = self.chosen()
        return torch.stack((x[:, behind], x[:, before]), dim=2).flatten(2, 3)  # wrong: AS107 neighbours_flipped


class Selected(Frames):
    def chosen(self):
        places = torch.arange(self.frames)
        return (places - 1).clamp(min=0), torch.full_like(places, self.frames - 1)


class SelectedOtherwise(Selected):
    def keys(self, x):
        one, last = self.chosen()
        frames = x.index_select(1, last), x.index_select(1, one)
        return torch.cat(frames, dim=2)  # wrong: AS107 last_frame_first


def _case(cls, B, H, L, Dk, T):
    return cls(H * Dk, H, T), (torch.randn(B * T, L, H * Dk),), {}


def _reference(module, x, chosen):
    """Attend frame by frame to the frames whose numbers `chosen` gives."""
    frames, heads = module.frames, module.heads
    results = []
    for place in range(len(x)):
        clip, frame = divmod(place, frames)
        context = torch.cat([x[clip * frames + other] for other in chosen(frame, frames)])
        q, k, v = (
            linear(t).unflatten(-1, (heads, -1)).transpose(0, 1)
            for linear, t in ((module.q, x[place]), (module.k, context), (module.v, context))
        )
        results.append(attention(q, k, v).transpose(0, 1).flatten(1))
    return torch.stack(results)


def wrong_frames_swapped(B, H, L, Dk, T):
    return _case(Swapped, B, H, L, Dk, T)


def right_frames_swapped(B, H, L, Dk, T):
    return _case(Frames, B, H, L, Dk, T)


def reference_frames_swapped(module, x):
    return _reference(module, x, lambda frame, frames: (0, max(frame - 1, 0)))


def wrong_neighbours_flipped(B, H, L, Dk, T):
    return _case(NeighboursFlipped, B, H, L, Dk, T)


def right_neighbours_flipped(B, H, L, Dk, T):
    return _case(Neighbours, B, H, L, Dk, T)


def reference_neighbours_flipped(module, x):
    return _reference(module, x, lambda frame, frames: ((frame - 1) % frames, (frame + 1) % frames))


def wrong_last_frame_first(B, H, L, Dk, T):
    return _case(SelectedOtherwise, B, H, L, Dk, T)


def right_last_frame_first(B, H, L, Dk, T):
    return _case(Selected, B, H, L, Dk, T)


def reference_last_frame_first(module, x):
    return _reference(module, x, lambda frame, frames: (max(frame - 1, 0), frames - 1))
