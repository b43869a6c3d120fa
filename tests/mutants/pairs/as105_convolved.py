"""AS105: convolved channels are mixed with frames or rows, on the way to attention, or on the way back to the map."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend

SIZES = ({"B": 2, "L": 7, "D": 5}, {"B": 4, "L": 3, "D": 7}, {"B": 3, "L": 5, "D": 8})
ROWS, COLUMNS = 3, 4
"""Of a frame."""
GROUPS = 1
"""One group normalises a whole video, so that its tokens meet before attention."""
PAIRS = [
    ("AS105", "convolved_frames", *SIZES),
    ("AS105", "convolved_pixels_over_time", *SIZES),
    ("AS105", "convolved_rows", *SIZES),
    ("AS105", "frames_back", *SIZES),
    ("AS105", "pixels_back", *SIZES),
    ("AS105", "rows_back", *SIZES),
]


def _attended(module, x, axes):
    """B D L ROWS COLUMNS: attention of one head over some of the last three axes, each index of the others alone."""
    norm = module.norm
    y = x - x.mean(dim=(1, 2, 3, 4), keepdim=True)
    y = y / torch.sqrt((y**2).mean(dim=(1, 2, 3, 4), keepdim=True) + norm.eps)
    y = torch.einsum("bdtij,d->btijd", y, norm.weight) + norm.bias
    folded = []
    for conv in (module.q, module.k, module.v):
        z = torch.einsum("btijd,cd->btijc", y, conv.weight.flatten(1)) + conv.bias
        folded.append(z.movedim(axes, tuple(range(4 - len(axes), 4))))
    apart = folded[0].shape[: 4 - len(axes)]
    out = attend(*(z.flatten(0, 3 - len(axes)).flatten(1, -2)[None] for z in folded))[0]
    return (
        out.unflatten(1, folded[0].shape[4 - len(axes) : 4])
        .unflatten(0, apart)
        .movedim(tuple(range(4 - len(axes), 4)), axes)
    )


def _projected(module, x, axes):
    out = _attended(module, x, axes)
    return x + torch.einsum("btijd,cd->bctij", out, module.out.weight.flatten(1)) + module.out.bias[:, None, None, None]


class OfFrames(nn.Module):
    """The pixels of each frame attend to each other: one head, convolutions of one pixel."""

    def __init__(self, channels):
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.q, self.k, self.v, self.out = (nn.Conv3d(channels, channels, 1) for _ in range(4))

    def frames(self, x):
        b, c, t, h, w = x.shape
        return x.permute(0, 2, 1, 3, 4).reshape(b * t, c, h * w)

    def video(self, y, like):
        b, c, t, h, w = like.shape
        return y.reshape(b, t, c, h, w).permute(0, 2, 1, 3, 4)

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (self.frames(conv(y)) for conv in (self.q, self.k, self.v))
        weights = torch.bmm(q.transpose(1, 2), k).mul(x.shape[1] ** -0.5).softmax(dim=2)
        out = torch.bmm(v, weights.transpose(1, 2))
        return x + self.out(self.video(out, x))


class FramesMixed(OfFrames):
    def frames(self, x):
        b, c, t, h, w = x.shape
        return x.reshape(b * t, c, h * w)  # wrong: AS105 convolved_frames


class FramesMixedBack(OfFrames):
    def video(self, y, like):
        return y.reshape(like.shape)  # wrong: AS105 frames_back


def _video(cls, B, L, D):
    return cls(D), (torch.randn(B, D, L, ROWS, COLUMNS),), {}


def wrong_convolved_frames(B, L, D):
    return _video(FramesMixed, B, L, D)


def right_convolved_frames(B, L, D):
    return _video(OfFrames, B, L, D)


def reference_convolved_frames(module, x):
    return _projected(module, x, (2, 3))


def wrong_frames_back(B, L, D):
    return _video(FramesMixedBack, B, L, D)


def right_frames_back(B, L, D):
    return _video(OfFrames, B, L, D)


reference_frames_back = reference_convolved_frames


class OverTime(OfFrames):
    """Each pixel attends over time, with the kernel of torch, and without a projection afterwards."""

    def frames(self, x):
        return x.movedim(1, -1).movedim(1, 3).flatten(0, 2)

    def video(self, y, like):
        b, _, t, h, w = like.shape
        return y.view(b, h, w, t, -1).permute(0, 4, 3, 1, 2)

    def forward(self, x):
        y = self.norm(x)
        q, k, v = self.frames(self.q(y)), self.frames(self.k(y)), self.frames(self.v(y))
        return x + self.video(F.scaled_dot_product_attention(q, k, v), x)


class OverTimeMixed(OverTime):
    def frames(self, x):
        b, c, t, h, w = x.shape
        return x.contiguous().view(b * h * w, t, c)  # wrong: AS105 convolved_pixels_over_time


class OverTimeMixedBack(OverTime):
    def video(self, y, like):
        return y.mT.contiguous().view(like.shape)  # wrong: AS105 pixels_back


def wrong_convolved_pixels_over_time(B, L, D):
    return _video(OverTimeMixed, B, L, D)


def right_convolved_pixels_over_time(B, L, D):
    return _video(OverTime, B, L, D)


def reference_convolved_pixels_over_time(module, x):
    return x + _attended(module, x, (1,)).movedim(-1, 1)


def wrong_pixels_back(B, L, D):
    return _video(OverTimeMixedBack, B, L, D)


def right_pixels_back(B, L, D):
    return _video(OverTime, B, L, D)


reference_pixels_back = reference_convolved_pixels_over_time


class OfRows(OfFrames):
    """Axial: the pixels of each row of a frame attend to each other, in einsum."""

    def frames(self, x):
        return x.permute(0, 2, 3, 4, 1).flatten(0, 2)

    def video(self, y, like):
        return y.unflatten(0, (like.shape[0], *like.shape[2:4])).permute(0, 4, 1, 2, 3)

    def forward(self, x):
        y = self.norm(x)
        q, k, v = self.frames(self.q(y)), self.frames(self.k(y)), self.frames(self.v(y))
        weights = torch.einsum("nid,njd->nij", q, k / k.shape[-1] ** 0.5).softmax(-1)
        return x + self.out(self.video(torch.einsum("nij,njd->nid", weights, v), x))


class RowsMixed(OfRows):
    def frames(self, x):
        b, c, t, h, w = x.shape
        return x.flatten(3).reshape(b * t * h, c, w).mT  # wrong: AS105 convolved_rows


class RowsMixedBack(OfRows):
    def video(self, y, like):
        return y.mT.reshape(like.shape)  # wrong: AS105 rows_back


def wrong_convolved_rows(B, L, D):
    return _video(RowsMixed, B, L, D)


def right_convolved_rows(B, L, D):
    return _video(OfRows, B, L, D)


def reference_convolved_rows(module, x):
    return _projected(module, x, (3,))


def wrong_rows_back(B, L, D):
    return _video(RowsMixedBack, B, L, D)


def right_rows_back(B, L, D):
    return _video(OfRows, B, L, D)


reference_rows_back = reference_convolved_rows
