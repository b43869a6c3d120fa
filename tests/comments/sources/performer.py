# FAVOR+ (Choromanski et al., 2021), bidirectional only. Written for a reading group.
import torch
from torch import nn


def gaussian_features(m, d):
    """Orthogonal random features: torch.Tensor of shape [m, d]"""
    blocks = []
    while len(blocks) * d < m:
        q, _ = torch.linalg.qr(torch.randn(d, d))
        blocks.append(q.T)
    omega = torch.cat(blocks)[:m]  # [m, d]
    norms = torch.randn(m, d).norm(dim=1)  # chi(d), as for real Gaussians
    return norms[:, None] * omega


def phi(x, omega):
    # x is [B H T d], omega is [m d]
    B, H, T, d = x.shape
    m = omega.shape[0]
    x = x * d ** -0.25
    u = x @ omega.T  # B H T m
    sq = (x ** 2).sum(-1, keepdim=True) / 2  # B H T 1
    return (u - sq - u.amax((-2, -1), keepdim=True)).exp() / m ** 0.5  # B H T m


def favor(q, k, v, omega):
    B, H, T, d = q.shape
    S, e = v.shape[-2:]
    m = omega.shape[0]
    qp, kp = phi(q, omega), phi(k, omega)
    # qp: B H T m
    # kp: B H S m
    kv = torch.einsum("bhsm,bhse->bhme", kp, v)  # B H m e
    z = kp.sum(dim=2)  # B H m
    num = qp @ kv  # B H T m, B H m e -> B H T e
    den = torch.einsum("bhtm,bhm->bht", qp, z)  # B H T
    return num / (den[..., None] + 1e-6)  # O(T m d), not O(T S)


class Performer(nn.Module):
    def __init__(self, dim, heads, n_features):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.n_features = n_features

    def forward(self, x, y):
        B, T, C = x.shape
        S = y.shape[1]
        H = self.heads
        omega = gaussian_features(self.n_features, C // H)  # redrawn at every call (training only, really)
        split = lambda t: t.unflatten(2, (H, -1)).transpose(1, 2)  # noqa: E731
        k, v = self.kv(y).chunk(2, dim=2)  # B S C
        out = favor(split(self.q(x)), split(k), split(v), omega)
        out = out.transpose(1, 2).reshape(B, T, C)  # B T C
        return out  # (no output projection)


def case(B, H, Lq, Lk, Dk, W):
    return Performer(H * Dk, H, W), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk))
