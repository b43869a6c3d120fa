"""Memory-efficient attention: a loop over chunks of queries and keys (Rabe & Staats, 2021)."""
import torch
from torch import nn


def summarize_chunk(q, k, v):
    # q: (b, nh, cq, d)
    # k: (b, nh, ck, d)
    # v: (b, nh, ck, dv)
    b, nh, cq, d = q.shape
    ck, dv = v.shape[-2:]
    s = torch.einsum('bhqd,bhkd->bhqk', q, k) * d ** -0.5  # (b, nh, cq, ck)
    m = s.amax(dim=-1, keepdim=True)  # (b, nh, cq, 1)
    p = (s - m).exp()  # values in (0, 1]
    num = torch.einsum('bhqk,bhkd->bhqd', p, v)  # (b, nh, cq, dv)
    den = p.sum(dim=-1)  # (b, nh, cq)
    return num, den, m.squeeze(-1)


class ChunkedAttention(nn.Module):
    def __init__(self, q_chunk, k_chunk):
        super().__init__()
        self.q_chunk = q_chunk
        self.k_chunk = k_chunk  # (may differ)

    def forward(self, q, k, v):
        b, nh, n, d = q.shape
        m, dv = v.shape[-2:]
        cq, ck = self.q_chunk, self.k_chunk
        outs = []
        for qs in q.split(cq, dim=2):  # (b, nh, cq, d)
            nums, dens, maxs = [], [], []
            for ks, vs in zip(k.split(ck, dim=2), v.split(ck, dim=2)):
                num, den, mx = summarize_chunk(qs, ks, vs)
                nums.append(num)
                dens.append(den)
                maxs.append(mx)
            nums = torch.stack(nums)  # (m/ck, b, nh, cq, dv)
            dens, maxs = torch.stack(dens), torch.stack(maxs)  # (m/ck, b, nh, cq)
            # rescale to the common maximum (stable, cf. log-sum-exp)
            g = maxs.amax(dim=0)  # (b, nh, cq)
            w = (maxs - g).exp()
            out = (w[..., None] * nums).sum(0) / (w * dens).sum(0)[..., None]
            outs.append(out)
        out = torch.cat(outs, dim=2)  # (b, nh, n, dv)
        return out


def case(B, H, Lp, W, Dk, Dv):
    # all chunks are full: lengths 2 * W, 3 * Lp
    q = torch.randn(B, H, 2 * W, Dk)
    return ChunkedAttention(W, Lp), (q, torch.randn(B, H, 3 * Lp, Dk), torch.randn(B, H, 3 * Lp, Dv))
