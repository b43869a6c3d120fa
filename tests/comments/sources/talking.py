"""Talking-heads attention (Shazeer et al., 2020), three numbers of heads."""
import torch
from torch import nn


class TalkingHeads(nn.Module):
    def __init__(self, d_x, d_k, d_v, h_k, h, h_v):
        super().__init__()
        self.P_q = nn.Parameter(torch.randn(d_x, d_k, h_k) * 0.02)
        self.P_k = nn.Parameter(torch.randn(d_x, d_k, h_k) * 0.02)
        self.P_v = nn.Parameter(torch.randn(d_x, d_v, h_v) * 0.02)
        self.P_o = nn.Parameter(torch.randn(d_x, d_v, h_v) * 0.02)
        self.P_l = nn.Parameter(torch.randn(h_k, h))  # logits
        self.P_w = nn.Parameter(torch.randn(h, h_v))  # weights

    def forward(self, X, M):
        """
        Args:
            X: n by d_x queries
            M: m by d_x memory (not causal)
        """
        b, n, d_x = X.shape
        m = M.size(1)
        d_k, h_k = self.P_q.shape[1:]
        d_v, h_v = self.P_v.shape[1:]
        h = self.P_l.shape[1]

        Q = torch.einsum("bnx,xkh->bnkh", X, self.P_q)  # shape: (b, n, d_k, h_k)
        K = torch.einsum("bmx,xkh->bmkh", M, self.P_k)  # shape: (b, m, d_k, h_k)
        V = torch.einsum("bmx,xvg->bmvg", M, self.P_v)  # shape: (b, m, d_v, h_v)
        # dot products, then f(x, y) mixes the heads
        J = torch.einsum("bnkh,bmkh->bnmh", Q, K) * d_k ** -0.5  # shape: (b, n, m, h_k)
        L = torch.einsum("bnmi,ih->bnmh", J, self.P_l)  # shape: (b, n, m, h)
        W = L.softmax(dim=2)  # over m (the memory), not over heads
        U = torch.einsum("bnmh,hg->bnmg", W, self.P_w)  # shape: (b, n, m, h_v)
        O = torch.einsum("bnmg,bmvg->bnvg", U, V)  # shape: (b, n, d_v, h_v)  # noqa: E741
        # Y = O.flatten(2) @ self.P_o.flatten(1).T
        Y = torch.einsum("bnvg,xvg->bnx", O, self.P_o)  # shape: (b, n, d_x)
        return Y


def case(B, H, Hkv, Lq, Lk, D, Dk, Dv, W):
    return TalkingHeads(D, Dk, Dv, H, W, Hkv), (torch.randn(B, Lq, D), torch.randn(B, Lk, D))
