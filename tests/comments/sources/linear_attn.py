"""Linear attention (Katharopoulos et al., 2020): O(T) rather than O(T^2)."""
import torch
import torch.nn.functional as F
from torch import nn


def elu_feature_map(x):
    return F.elu(x) + 1  # positive, in (0, inf)


class LinearAttention(nn.Module):
    def __init__(self, dim, heads, dim_head, eps=1e-6):
        super().__init__()
        self.heads = heads
        self.eps = eps
        self.to_qkv = nn.Linear(dim, 3 * heads * dim_head, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim)

    def forward(self, x):
        N, L, E = x.shape
        qkv = self.to_qkv(x)
        H = self.heads
        D = qkv.shape[-1] // (3 * H)
        q, k, v = qkv.view(N, L, 3, H, D).unbind(2)
        # q: N x L x H x D
        # k and v are N x L x H x D as well
        q, k = elu_feature_map(q), elu_feature_map(k)

        # the keys are summed up once: N x H x D x D
        KV = torch.einsum("nshd,nshm->nhmd", k, v)

        # normalizer: N x L x H
        Z = 1 / (torch.einsum("nlhd,nhd->nlh", q, k.sum(dim=1)) + self.eps)

        V = torch.einsum("nlhd,nhmd,nlh->nlhm", q, KV, Z)  # N x L x H x D
        # no 1 x 1 conv here; merge the heads (contiguous!)
        V = V.reshape(N, L, H * D)  # N x L x H*D
        return self.to_out(V)  # N x L x E


if __name__ == "__main__":
    # quick test (not used elsewhere)
    layer = LinearAttention(32, 4, 8)
    print(layer(torch.randn(2, 10, 32)).shape)  # torch.Size([2, 10, 32])
