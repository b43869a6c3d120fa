"""Dense graph attention layer (Velickovic et al., ICLR 2018), multi-head."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class DenseGAT(nn.Module):
    """
    Args:
        in_features: F in the paper
        n_heads: K in the paper (concatenated)
        out_features: F' in the paper, per head
    """

    def __init__(self, in_features, n_heads, out_features, alpha=0.2):
        super().__init__()
        self.n_heads = n_heads
        self.out_features = out_features
        self.W = nn.Linear(in_features, n_heads * out_features, bias=False)
        self.a = nn.Parameter(torch.randn(n_heads, 2 * out_features))
        self.leakyrelu = nn.LeakyReLU(alpha)

    def forward(self, h, adj):
        # h: (B, N, F_in), adj: (B, N, N)
        B, N, F_in = h.shape
        K, F_out = self.n_heads, self.out_features

        Wh = self.W(h)  # (B, N, F_in) x (F_in, K*F_out) -> (B, N, K*F_out)
        Wh = Wh.view(B, N, K, F_out).transpose(1, 2)  # (B, N, K*F_out) -> (B, K, N, F_out)
        a1, a2 = self.a.chunk(2, dim=-1)  # a = [a1 || a2]
        # a1, a2: (K, F_out)
        s1 = torch.einsum("bknf,kf->bkn", Wh, a1)  # (B, K, N)
        s2 = torch.einsum("bknf,kf->bkn", Wh, a2)  # (B, K, N)
        # e_ij = a^T [Wh_i || Wh_j] by broadcasting, (B, K, N, 1) + (B, K, 1, N) -> (B, K, N, N)
        e = self.leakyrelu(s1[:, :, :, None] + s2[:, :, None, :])
        # no edge, no attention (self loops are kept)
        adj = adj | torch.eye(N, dtype=torch.bool)
        adj = adj.unsqueeze(1)  # (B, N, N) -> (B, 1, N, N)
        attention = torch.where(adj, e, -9e15 * torch.ones_like(e)).softmax(dim=-1)
        h_prime = attention @ Wh  # (B, K, N, N) x (B, K, N, F_out) -> (B, K, N, F_out)
        # concat of the K heads -> (B, N, K*F_out)
        out = h_prime.transpose(1, 2).reshape(B, N, K * F_out)
        return F.elu(out)  # x if x > 0 else exp(x) - 1
