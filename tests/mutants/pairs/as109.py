"""AS109: queries and keys have unit length along another axis than their product sums over."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.plain import attention

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 8, "Dk": 4}, {"B": 4, "H": 3, "L": 5, "Dk": 7})
IMAGES = (
    {"B": 2, "H": 3, "Lq": 4, "Lk": 6, "Dk": 5},
    {"B": 4, "H": 2, "Lq": 5, "Lk": 3, "Dk": 7},
    {"B": 3, "H": 4, "Lq": 6, "Lk": 2, "Dk": 5},
)
PAIRS = [
    ("AS109", "channels_as_tokens", *SIZES),
    ("AS109", "lengths_by_hand", *SIZES),
    ("AS109", "keys_of_an_image", *IMAGES),
    ("AS109", "fused_channel_attention", *SIZES),
]


def unit(t: Tensor, axis: int) -> Tensor:
    return t / t.square().sum(axis, keepdim=True).sqrt()


def over_channels(q: Tensor, k: Tensor, v: Tensor, temperature: Tensor | float) -> Tensor:
    """Attend over the channels of (…, channels, tokens), by the cosines of their rows."""
    return attention(unit(q, -1) * temperature, unit(k, -1), v, scale=1.0)


class CrossCovariance(nn.Module):
    """Channels attend to channels: (B, H, Dk, L), one temperature per head."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(heads * depth, 3 * heads * depth)
        self.temperature = nn.Parameter(torch.rand(heads, 1, 1) + 0.5)
        self.proj = nn.Linear(heads * depth, heads * depth)

    def unit(self, t):
        return F.normalize(t, dim=-1)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 4, 1)
        attn = (self.unit(q) @ self.unit(k).mT * self.temperature).softmax(dim=-1)
        return self.proj((attn @ v).permute(0, 3, 1, 2).flatten(2))


class CrossCovarianceOfUnitTokens(CrossCovariance):
    def unit(self, t):
        return F.normalize(t, dim=-2)  # wrong: AS109 channels_as_tokens


def wrong_channels_as_tokens(B, H, L, Dk):
    return CrossCovarianceOfUnitTokens(H, Dk), (torch.randn(B, L, H * Dk),), {}


def right_channels_as_tokens(B, H, L, Dk):
    return CrossCovariance(H, Dk), (torch.randn(B, L, H * Dk),), {}


def reference_channels_as_tokens(module, x):
    q, k, v = (t.unflatten(-1, (module.heads, -1)).movedim(1, -1) for t in module.qkv(x).chunk(3, dim=-1))
    return module.proj(over_channels(q, k, v, module.temperature).movedim(-1, 1).flatten(2))


def gram(x: Tensor, w: Tensor, heads: int, length: Tensor) -> Tensor:
    q, k, v = torch.einsum("bld,ed->ble", x, w).view(*x.shape[:2], 3, heads, -1).unbind(2)
    q = q / (q.pow(2).sum(1, keepdim=True) + 1e-12).sqrt()
    k = k / (k.pow(2).sum(1, keepdim=True) + 1e-12).sqrt()
    weights = torch.einsum("blhi,blhj->bhij", q * length, k).softmax(dim=-1)
    return torch.einsum("bhij,blhj->blhi", weights, v).flatten(2)


def gram_of_unit_tokens(x: Tensor, w: Tensor, heads: int, length: Tensor) -> Tensor:
    q, k, v = torch.einsum("bld,ed->ble", x, w).view(*x.shape[:2], 3, heads, -1).unbind(2)
    q = q / (q.pow(2).sum(3, keepdim=True) + 1e-12).sqrt()  # wrong: AS109 lengths_by_hand
    k = k / (k.pow(2).sum(1, keepdim=True) + 1e-12).sqrt()
    weights = torch.einsum("blhi,blhj->bhij", q * length, k).softmax(dim=-1)
    return torch.einsum("bhij,blhj->blhi", weights, v).flatten(2)


def _functional(B, H, L, Dk):
    D = H * Dk
    return torch.randn(B, L, D), torch.randn(3 * D, D), H, torch.tensor(3.0)


def wrong_lengths_by_hand(B, H, L, Dk):
    return gram_of_unit_tokens, _functional(B, H, L, Dk), {}


def right_lengths_by_hand(B, H, L, Dk):
    return gram, _functional(B, H, L, Dk), {}


def reference_lengths_by_hand(function, x, w, heads, length):
    q, k, v = (t.unflatten(-1, (heads, -1)).movedim(1, -1) for t in (x @ w.T).chunk(3, dim=-1))
    return over_channels(q, k, v, length).movedim(-1, 1).flatten(2)


class ImageChannels(nn.Module):
    """Channels of an image attend to each other, over all of its pixels, by a product of two flat maps."""

    def __init__(self, width):
        super().__init__()
        self.query, self.key, self.value = (nn.Conv2d(width, width, 1) for _ in range(3))

    def forward(self, image):
        q, k, v = (layer(image).flatten(2) for layer in (self.query, self.key, self.value))
        q = q / torch.linalg.vector_norm(q, dim=2, keepdim=True)
        k = k / torch.linalg.vector_norm(k, dim=2, keepdim=True)
        return image + torch.bmm(torch.bmm(q, k.transpose(1, 2)).mul(8).softmax(2), v).view_as(image)


class ImageChannelsByPixel(ImageChannels):
    def forward(self, image):
        q, k, v = (layer(image).flatten(2) for layer in (self.query, self.key, self.value))
        q = q / torch.linalg.vector_norm(q, dim=2, keepdim=True)
        k = k / torch.linalg.vector_norm(k, dim=1, keepdim=True)  # wrong: AS109 keys_of_an_image
        return image + torch.bmm(torch.bmm(q, k.transpose(1, 2)).mul(8).softmax(2), v).view_as(image)


def wrong_keys_of_an_image(B, H, Lq, Lk, Dk):
    return ImageChannelsByPixel(H * Dk), (torch.randn(B, H * Dk, Lq, Lk),), {}


def right_keys_of_an_image(B, H, Lq, Lk, Dk):
    return ImageChannels(H * Dk), (torch.randn(B, H * Dk, Lq, Lk),), {}


def reference_keys_of_an_image(module, image):
    q, k, v = (
        torch.einsum("bchw,dc->bdhw", image, layer.weight[..., 0, 0]).flatten(2) + layer.bias[:, None]
        for layer in (module.query, module.key, module.value)
    )
    return image + over_channels(q, k, v, 8.0).unflatten(-1, image.shape[2:])


class FusedChannels(nn.Module):
    """Cosines of channels, attended over by torch's fused attention."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width, bias=False) for _ in range(3))

    def unit(self, t):
        return t / t.norm(dim=1, keepdim=True)

    def forward(self, x):
        rows = (self.unit(self.to_q(x)), self.unit(self.to_k(x)), self.to_v(x))
        q, k, v = (t.unflatten(2, (self.heads, -1)).permute(0, 2, 3, 1) for t in rows)
        return F.scaled_dot_product_attention(q, k, v, scale=5.0).permute(0, 3, 1, 2).flatten(2)


class FusedChannelsOfUnitHeads(FusedChannels):
    def unit(self, t):
        heads = t.unflatten(2, (self.heads, -1))
        return (heads / heads.norm(dim=3, keepdim=True)).flatten(2)  # wrong: AS109 fused_channel_attention


def wrong_fused_channel_attention(B, H, L, Dk):
    return FusedChannelsOfUnitHeads(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_fused_channel_attention(B, H, L, Dk):
    return FusedChannels(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_fused_channel_attention(module, x):
    q, k, v = (
        layer(x).unflatten(-1, (module.heads, -1)).movedim(1, -1) for layer in (module.to_q, module.to_k, module.to_v)
    )
    return over_channels(q, k, v, 5.0).movedim(-1, 1).flatten(2)
