"""AS106: tokens leave attention in another order than they entered it."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, multihead

SIZES = ({"B": 7, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7}, {"B": 4, "H": 3, "L": 7, "Dk": 8})
GRID = (
    {"B": 4, "H": 2, "Lq": 5, "Lk": 7, "Dk": 3},
    {"B": 5, "H": 3, "Lq": 8, "Lk": 4, "Dk": 6},
    {"B": 4, "H": 3, "Lq": 6, "Lk": 9, "Dk": 5},
)
PAIRS = [
    ("AS106", "rolled_twice", *SIZES),
    ("AS106", "flipped_values_back", *SIZES),
    ("AS106", "sorted_by_order", *SIZES),
    ("AS106", "unrolled_late", *SIZES),
    ("AS106", "rows_and_columns", *GRID),
    ("AS106", "windows_in_rows", *GRID),
    ("AS106", "windows_by_columns", *GRID),
    ("AS106", "segments_before_a_convolution", *SIZES),
    ("AS106", "rolled_on", *SIZES),
]


class Shifted(nn.Module):
    """Tokens are rolled before attention, and rolled back after it."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def before(self, x):
        return x.roll(-2, dims=1)

    def after(self, x):
        return x.roll(2, dims=1)

    def forward(self, x):
        x = self.before(x)
        q, k, v = (w(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.o(self.after(y))


class RolledTwice(Shifted):
    def after(self, x):
        return x.roll(-2, dims=1)  # wrong: AS106 rolled_twice


class FlippedBack(Shifted):
    def after(self, x):
        return x.flip(1)  # wrong: AS106 flipped_values_back


class SortedByOrder(Shifted):
    def after(self, x):
        order = torch.arange(x.size(1)).roll(-2)
        return x[:, order]  # wrong: AS106 sorted_by_order


class UnrolledLate(Shifted):
    def after(self, x):
        return x.roll(3, dims=1)  # wrong: AS106 unrolled_late


class RolledOn(Shifted):
    """All but the first tokens move by the same number, as where a sequence is cut."""

    def before(self, x):
        return x.roll(-1, dims=1)

    def after(self, x):
        return x.roll(-1, dims=1)  # wrong: AS106 rolled_on


class RolledBack(RolledOn):
    def after(self, x):
        return x.roll(1, dims=1)


def reference_rolled_twice(module, x):
    return module.o(multihead(module.q(x), module.k(x), module.v(x), module.heads))


def _case(module, B, H, L, Dk):
    return module(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_rolled_twice(B, H, L, Dk):
    return _case(RolledTwice, B, H, L, Dk)


def wrong_flipped_values_back(B, H, L, Dk):
    return _case(FlippedBack, B, H, L, Dk)


def wrong_sorted_by_order(B, H, L, Dk):
    return _case(SortedByOrder, B, H, L, Dk)


def wrong_unrolled_late(B, H, L, Dk):
    return _case(UnrolledLate, B, H, L, Dk)


def wrong_rolled_on(B, H, L, Dk):
    return _case(RolledOn, B, H, L, Dk)


def right_rolled_on(B, H, L, Dk):
    return _case(RolledBack, B, H, L, Dk)


def right_rolled_twice(B, H, L, Dk):
    return _case(Shifted, B, H, L, Dk)


right_flipped_values_back = right_sorted_by_order = right_unrolled_late = right_rolled_twice
reference_flipped_values_back = reference_sorted_by_order = reference_unrolled_late = reference_rolled_twice
reference_rolled_on = reference_rolled_twice


class Columns(nn.Module):
    """Attention within the columns of a grid of tokens, (B, rows, columns, width), with one head."""

    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))

    def attend(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        return torch.einsum("bcij,bcjd->bcid", (q @ k.mT * q.size(-1) ** -0.5).softmax(-1), v)

    def forward(self, x):
        return self.attend(x.transpose(1, 2)).transpose(1, 2)


class ColumnsReversed(Columns):
    def forward(self, x):
        y = self.attend(x.transpose(1, 2)).transpose(1, 2)
        return torch.index_select(y, 1, torch.arange(x.size(1)).flip(0))  # wrong: AS106 rows_and_columns


def wrong_rows_and_columns(B, H, Lq, Lk, Dk):
    return ColumnsReversed(H * Dk), (torch.randn(B, Lq, Lk, H * Dk),), {}


def right_rows_and_columns(B, H, Lq, Lk, Dk):
    return Columns(H * Dk), (torch.randn(B, Lq, Lk, H * Dk),), {}


def reference_rows_and_columns(module, x):
    x = x.transpose(1, 2)
    return attention(module.q(x), module.k(x), module.v(x)).transpose(1, 2)


class Windows(nn.Module):
    """Attention within windows of two rows and two columns of a map, (B, rows, columns, width), with one head."""

    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))

    def together(self, windows, B, rows, columns):
        return windows.view(B, rows // 2, columns // 2, 2, 2, -1).transpose(2, 3).reshape(B, rows, columns, -1)

    def forward(self, x):
        B, rows, columns, width = x.shape
        windows = x.view(B, rows // 2, 2, columns // 2, 2, width).transpose(2, 3).reshape(-1, 4, width)
        y = F.scaled_dot_product_attention(self.q(windows), self.k(windows), self.v(windows))
        return self.together(y, B, rows, columns)


class WindowsInRows(Windows):
    def together(self, windows, B, rows, columns):
        return windows.reshape(B, rows, columns, -1)  # wrong: AS106 windows_in_rows


class WindowsByColumns(Windows):
    def together(self, windows, B, rows, columns):
        pixels = windows.view(B, rows // 2, columns // 2, 2, 2, -1)
        return pixels.permute(0, 1, 4, 2, 3, 5).reshape(B, rows, columns, -1)  # wrong: AS106 windows_by_columns


def wrong_windows_in_rows(B, H, Lq, Lk, Dk):
    return WindowsInRows(H * Dk), (torch.randn(B, 2 * Lq, 2 * Lk, H * Dk),), {}


def wrong_windows_by_columns(B, H, Lq, Lk, Dk):
    return WindowsByColumns(H * Dk), (torch.randn(B, 2 * Lq, 2 * Lk, H * Dk),), {}


def right_windows_in_rows(B, H, Lq, Lk, Dk):
    return Windows(H * Dk), (torch.randn(B, 2 * Lq, 2 * Lk, H * Dk),), {}


def reference_windows_in_rows(module, x):
    y = torch.empty_like(x)
    for row in range(0, x.shape[1], 2):
        for column in range(0, x.shape[2], 2):
            at = slice(None), slice(row, row + 2), slice(column, column + 2)
            window = x[at].flatten(1, 2)
            y[at] = attention(module.q(window), module.k(window), module.v(window)).unflatten(1, (2, 2))
    return y


right_windows_by_columns, reference_windows_by_columns = right_windows_in_rows, reference_windows_in_rows


class Strided(nn.Module):
    """Every second token attends to the others of its kind; a convolution then mixes neighbours."""

    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.local = nn.Conv1d(width, width, 3, padding=1, groups=width)

    def together(self, y):
        return y.transpose(1, 2).flatten(1, 2)

    def forward(self, x):
        groups = x.unflatten(1, (-1, 2)).transpose(1, 2)
        x = x + self.together(F.scaled_dot_product_attention(self.q(groups), self.k(groups), self.v(groups)))
        return x + self.local(x.mT).mT


class Segments(Strided):
    def together(self, y):
        return y.flatten(1, 2)  # wrong: AS106 segments_before_a_convolution


def wrong_segments_before_a_convolution(B, H, L, Dk):
    return Segments(H * Dk), (torch.randn(B, 2 * L, H * Dk),), {}


def right_segments_before_a_convolution(B, H, L, Dk):
    return Strided(H * Dk), (torch.randn(B, 2 * L, H * Dk),), {}


def reference_segments_before_a_convolution(module, x):
    y = x.clone()
    for first in (0, 1):
        group = x[:, first::2]
        y[:, first::2] += attention(module.q(group), module.k(group), module.v(group))
    return y + module.local(y.mT).mT
