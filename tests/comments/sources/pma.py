"""
Set Transformer: pooling by multihead attention (PMA) [Lee et al., 2019]
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class MAB(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.fc_q = nn.Linear(dim, dim)
        self.fc_k = nn.Linear(dim, dim)
        self.fc_v = nn.Linear(dim, dim)
        self.fc_o = nn.Linear(dim, dim)

    def forward(self, Q, K):
        bs, n, dim = Q.shape
        m = K.shape[1]
        nh = self.num_heads
        Q = self.fc_q(Q)  # [bs, n, dim]
        K, V = self.fc_k(K), self.fc_v(K)  # [bs, m, dim] each
        # the heads go to the batch axis: [nh*bs, n, dim/nh]
        Q_ = torch.cat(Q.split(dim // nh, 2), 0)
        K_ = torch.cat(K.split(dim // nh, 2), 0)  # [nh*bs, m, dim/nh]
        V_ = torch.cat(V.split(dim // nh, 2), 0)

        A = torch.softmax(Q_.bmm(K_.transpose(1, 2)) / math.sqrt(dim), 2)  # [nh*bs, n, m]
        O = torch.cat((Q_ + A.bmm(V_)).split(bs, 0), 2)  # noqa: E741
        # O: [bs, n, dim]
        O = O + F.relu(self.fc_o(O))  # x + f(x)  # noqa: E741
        return O


class SAB(nn.Module):
    """Self-attention block: MAB(X, X)."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.mab = MAB(dim, num_heads)

    def forward(self, X):
        return self.mab(X, X)  # (X, X): a set attends to itself


class PMA(nn.Module):
    def __init__(self, dim, num_heads, num_seeds):
        super().__init__()
        self.S = nn.Parameter(torch.Tensor(1, num_seeds, dim))
        nn.init.xavier_uniform_(self.S)
        self.sab = SAB(dim, num_heads)
        self.mab = MAB(dim, num_heads)
        self.num_seeds = num_seeds  # (k in the paper)

    def forward(self, X):
        bs, n, dim = X.shape
        num_seeds = self.num_seeds
        X = self.sab(X)  # [bs, n, dim]
        S = self.S.repeat(bs, 1, 1)  # [1, num_seeds, dim] -> [bs, num_seeds, dim]
        pooled = self.mab(S, X)  # [bs, num_seeds, dim]
        return pooled
