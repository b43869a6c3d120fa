"""AS717: rows and columns of a map are counted in another order than its tokens lie in."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge
from tests.mutants.pairs.as715 import by_offset

MAPS = (
    {"B": 3, "H": 2, "Dk": 7, "rows": 5, "columns": 4},
    {"B": 2, "H": 5, "Dk": 6, "rows": 3, "columns": 7},
    {"B": 4, "H": 3, "Dk": 5, "rows": 6, "columns": 2},
)
QUARTERS = tuple({**sizes, "Dk": quarter} for sizes, quarter in zip(MAPS, (6, 4, 7), strict=True))
WINDOWS = tuple({name: sizes[name] for name in ("B", "H", "Dk", "columns")} for sizes in MAPS)
PAIRS = [
    ("AS717", "index_by_columns", *MAPS),
    ("AS717", "index_in_windows", *WINDOWS),
    ("AS717", "row_divided_by_height", *QUARTERS),
    ("AS717", "rotated_by_columns", *QUARTERS),
    ("AS717", "waves_by_columns", *QUARTERS),
    ("AS717", "learned_rows_repeated", *MAPS),
]


def image(B, width, rows, columns):
    return torch.randn(B, width, rows, columns)


class RightIndex(nn.Module):
    """One window of a whole feature map, with the index of its table in a buffer."""

    def __init__(self, width, n_heads, height, columns):
        super().__init__()
        self.n_heads, self.window = n_heads, (height, columns)
        self.table = nn.Parameter(torch.randn((2 * height - 1) * (2 * columns - 1), n_heads))
        y, x = (side.flatten() for side in self.coordinates(torch.arange(height), torch.arange(columns)))
        down, right = y[:, None] - y + height - 1, x[:, None] - x + columns - 1
        self.register_buffer("index", down * (2 * columns - 1) + right, persistent=False)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def coordinates(self, height, columns):
        return torch.meshgrid(height, columns, indexing="ij")

    def forward(self, feature_map):
        x = feature_map.flatten(2).transpose(1, 2)
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[self.index.view(-1)].view(N, N, -1).permute(2, 0, 1)  # wrong: AS717 index_by_columns
        weights = (q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(dim=-1)
        out = self.proj((weights @ v).transpose(1, 2).reshape(B, N, C))
        return out.transpose(1, 2).unflatten(-1, self.window)


class WrongIndex(RightIndex):
    def coordinates(self, height, columns):
        return torch.meshgrid(height, columns, indexing="xy")


def _index(cls, B, H, Dk, rows, columns):
    return cls(H * Dk, H, rows, columns), (image(B, H * Dk, rows, columns),), {}


def wrong_index_by_columns(B, H, Dk, rows, columns):
    return _index(WrongIndex, B, H, Dk, rows, columns)


def right_index_by_columns(B, H, Dk, rows, columns):
    return _index(RightIndex, B, H, Dk, rows, columns)


def reference_index_by_columns(module, feature_map):
    x = torch.einsum("bchw->bhwc", feature_map).flatten(1, 2)
    out = merge(
        attend(*fused(x, module.qkv, module.n_heads), bias=by_offset(module.table, *module.window)), module.proj
    )
    return torch.einsum("bhwc->bchw", out.unflatten(1, module.window))


class RightWindows(nn.Module):
    """Windows are cut from a map whose last axis holds the channels; the bias is computed in the call."""

    def __init__(self, width, n_heads, window):
        super().__init__()
        self.n_heads, self.window = n_heads, window
        self.of_offset = nn.Parameter(torch.randn(n_heads, 2 * window[0] - 1, 2 * window[1] - 1))
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def position(self, token):
        return token // self.window[1], token % self.window[1]

    def bias(self):
        y, x = self.position(torch.arange(self.window[0] * self.window[1]))
        down, right = y[:, None] - y, x[:, None] - x
        return self.of_offset[:, down + self.window[0] - 1, right + self.window[1] - 1]

    def forward(self, pixels):
        B, height, width, C = pixels.shape
        h, w = self.window
        x = pixels.view(B, height // h, h, width // w, w, C).transpose(2, 3).reshape(-1, h * w, C)
        q, k, v = (layer(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias())
        out = self.o(context.transpose(1, 2).flatten(2))
        return out.view(B, height // h, width // w, h, w, C).transpose(2, 3).reshape(pixels.shape)


class WrongWindows(RightWindows):
    def position(self, token):
        column, row = token // self.window[0], token % self.window[0]  # wrong: AS717 index_in_windows
        return row, column


def _windows(cls, B, H, Dk, columns):
    return cls(H * Dk, H, (2, columns + 2)), (torch.randn(B, 4, 2 * columns + 4, H * Dk),), {}


def wrong_index_in_windows(B, H, Dk, columns):
    return _windows(WrongWindows, B, H, Dk, columns)


def right_index_in_windows(B, H, Dk, columns):
    return _windows(RightWindows, B, H, Dk, columns)


def reference_index_in_windows(module, pixels):
    h, w = module.window
    bias = by_offset(module.of_offset.flatten(1).T, h, w)
    out = torch.empty_like(pixels)
    for top in range(0, pixels.shape[1], h):
        for left in range(0, pixels.shape[2], w):
            x = pixels[:, top : top + h, left : left + w].flatten(1, 2)
            q, k, v = (heads(x, layer, module.n_heads) for layer in (module.q, module.k, module.v))
            out[:, top : top + h, left : left + w] = merge(attend(q, k, v, bias=bias), module.o).unflatten(1, (h, w))
    return out


def turned_by(x, angles):
    """Turn features 2i and 2i + 1 together, ... N D by N D/2."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


class RightPatches(nn.Module):
    """The first half of a head turns with the row, the second one with the column."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def row_and_column(self, number, height, width):
        return torch.div(number, width, rounding_mode="floor"), number % width

    def angles(self, height, width, count, like):
        speed = 50.0 ** (-torch.arange(count, dtype=like.dtype) / count)
        places = self.row_and_column(torch.arange(height * width), height, width)
        return torch.cat([place[:, None] * speed for place in places], dim=-1)

    def forward(self, patches):
        height, width = patches.shape[2:]
        x = patches.flatten(2).transpose(1, 2)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        angles = self.angles(height, width, q.shape[-1] // 4, q)
        context = F.scaled_dot_product_attention(turned_by(q, angles), turned_by(k, angles), v)
        return self.proj(context.transpose(1, 2).flatten(2))


class WrongPatches(RightPatches):
    def row_and_column(self, number, height, width):
        row = torch.div(number, height, rounding_mode="floor")  # wrong: AS717 row_divided_by_height
        return row, number % width


def _patches(cls, B, H, Dk, rows, columns):
    return cls(H * 4 * Dk, H), (image(B, H * 4 * Dk, rows, columns),), {}


def wrong_row_divided_by_height(B, H, Dk, rows, columns):
    return _patches(WrongPatches, B, H, Dk, rows, columns)


def right_row_divided_by_height(B, H, Dk, rows, columns):
    return _patches(RightPatches, B, H, Dk, rows, columns)


def turned_on_grid(x, height, width, speeds):
    """Turn each token of B H N D, features 2i and 2i + 1 together, by its row and its column."""
    out = x.clone()
    for token in range(height * width):
        for half, place in enumerate(divmod(token, width)):
            for feature, speed in enumerate(speeds):
                a, b = half * 2 * len(speeds) + 2 * feature, half * 2 * len(speeds) + 2 * feature + 1
                cos, sin = torch.cos(place * speed), torch.sin(place * speed)
                out[:, :, token, a] = x[:, :, token, a] * cos - x[:, :, token, b] * sin
                out[:, :, token, b] = x[:, :, token, a] * sin + x[:, :, token, b] * cos
    return out


def _reference_patches(module, patches):
    height, width = patches.shape[2:]
    x = torch.einsum("bchw->bhwc", patches).flatten(1, 2)
    q, k, v = fused(x, module.qkv, module.n_heads)
    count = q.shape[-1] // 4
    speeds = [torch.tensor(50.0, dtype=q.dtype) ** (-index / count) for index in range(count)]
    q, k = (turned_on_grid(one, height, width, speeds) for one in (q, k))
    return merge(attend(q, k, v), module.proj)


def reference_row_divided_by_height(module, patches):
    return _reference_patches(module, patches)


class RightTurns(RightPatches):
    """The angles of rows and columns are laid out by broadcasting, and flattened with the map."""

    def angles(self, height, width, count, like):
        speed = 50.0 ** (-torch.arange(count, dtype=like.dtype) / count)
        down = (torch.arange(height)[:, None] * speed)[:, None].expand(height, width, count)
        right = (torch.arange(width)[:, None] * speed)[None].expand(height, width, count)
        return self.flat(torch.cat([down, right], dim=-1))

    def flat(self, angles):
        return angles.flatten(0, 1)


class WrongTurns(RightTurns):
    def flat(self, angles):
        return angles.transpose(0, 1).flatten(0, 1)  # wrong: AS717 rotated_by_columns


def wrong_rotated_by_columns(B, H, Dk, rows, columns):
    return _patches(WrongTurns, B, H, Dk, rows, columns)


def right_rotated_by_columns(B, H, Dk, rows, columns):
    return _patches(RightTurns, B, H, Dk, rows, columns)


def reference_rotated_by_columns(module, patches):
    return _reference_patches(module, patches)


def waves(place, width):
    angles = place.flatten()[:, None] * 0.3 ** torch.arange(width // 2, dtype=torch.float64)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class RightWaves(nn.Module):
    """Patches of a convolution get sines and cosines of their row and of their column."""

    def __init__(self, channels, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.embed = nn.Conv2d(channels, width, kernel_size=2, stride=2)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def places(self, height, width):
        return torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")

    def forward(self, pixels):
        patches = self.embed(pixels)
        C, height, width = patches.shape[1:]
        row, column = self.places(height, width)
        x = patches.flatten(2).mT
        x = x + torch.cat([waves(row, C // 2), waves(column, C // 2)], dim=-1).to(x)
        q, k, v = (layer(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


class WrongWaves(RightWaves):
    def places(self, height, width):
        x, y = torch.meshgrid(torch.arange(width), torch.arange(height), indexing="ij")  # wrong: AS717 waves_by_columns
        return y, x


def _waves(cls, B, H, Dk, rows, columns):
    return cls(3, H * 4 * Dk, H), (torch.randn(B, 3, 2 * rows, 2 * columns),), {}


def wrong_waves_by_columns(B, H, Dk, rows, columns):
    return _waves(WrongWaves, B, H, Dk, rows, columns)


def right_waves_by_columns(B, H, Dk, rows, columns):
    return _waves(RightWaves, B, H, Dk, rows, columns)


def reference_waves_by_columns(module, pixels):
    cut = pixels.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
    patches = torch.einsum("bciyjx,ocyx->bijo", cut, module.embed.weight) + module.embed.bias
    width = patches.shape[-1] // 4
    for row in range(patches.shape[1]):
        for column in range(patches.shape[2]):
            for start, place in ((0, row), (2 * width, column)):
                angles = torch.tensor([place * 0.3**index for index in range(width)], dtype=torch.float64)
                patches[:, row, column, start : start + width] += angles.sin()
                patches[:, row, column, start + width : start + 2 * width] += angles.cos()
    q, k, v = (heads(patches.flatten(1, 2), layer, module.n_heads) for layer in (module.q, module.k, module.v))
    return merge(attend(q, k, v), module.o)


class RightLearned(nn.Module):
    """Learned vectors of rows and columns are added to what queries and keys are made of."""

    def __init__(self, width, n_heads, height, columns):
        super().__init__()
        self.n_heads = n_heads
        self.rows, self.columns = nn.Embedding(height, width), nn.Embedding(columns, width)
        self.qk = nn.Linear(width, 2 * width, bias=False)
        self.v, self.o = nn.Linear(width, width), nn.Linear(width, width)

    def positions(self, height, width):
        down = self.rows(torch.arange(height)).repeat_interleave(width, dim=0)
        right = self.columns(torch.arange(width)).repeat(height, 1)
        return down + right

    def forward(self, cells):
        B, height, width, C = cells.shape
        x = cells.reshape(B, -1, C)
        q, k = (x + self.positions(height, width)) @ self.qk.weight.mT.unflatten(-1, (2, -1)).movedim(1, 0)[:, None]
        q, k, v = (one.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for one in (q, k, self.v(x)))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)).view_as(cells)


class WrongLearned(RightLearned):
    def positions(self, height, width):
        down = self.rows(torch.arange(height)).repeat(width, 1)  # wrong: AS717 learned_rows_repeated
        right = self.columns(torch.arange(width)).repeat_interleave(height, dim=0)
        return down + right


def _learned(cls, B, H, Dk, rows, columns):
    return cls(H * Dk, H, rows, columns), (torch.randn(B, rows, columns, H * Dk),), {}


def wrong_learned_rows_repeated(B, H, Dk, rows, columns):
    return _learned(WrongLearned, B, H, Dk, rows, columns)


def right_learned_rows_repeated(B, H, Dk, rows, columns):
    return _learned(RightLearned, B, H, Dk, rows, columns)


def reference_learned_rows_repeated(module, cells):
    placed = cells + module.rows.weight[:, None] + module.columns.weight[None, :]
    of_queries, of_keys = module.qk.weight.chunk(2)
    q, k = (torch.einsum("bhwi,oi->bhwo", placed, weight).flatten(1, 2) for weight in (of_queries, of_keys))
    q, k = (one.unflatten(-1, (module.n_heads, -1)).transpose(1, 2) for one in (q, k))
    v = heads(cells.flatten(1, 2), module.v, module.n_heads)
    return merge(attend(q, k, v), module.o).unflatten(1, cells.shape[1:3])
