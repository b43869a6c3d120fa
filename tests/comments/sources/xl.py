"""Transformer-XL: segment recurrence and relative positions (Dai et al., 2019)."""
import torch
import torch.nn as nn


def rel_shift(x):
    # x: qlen x klen x bsz x n_head
    qlen, klen, bsz, n_head = x.shape
    zero_pad = torch.zeros(qlen, 1, bsz, n_head)  # qlen x 1 x bsz x n_head
    x_padded = torch.cat([zero_pad, x], dim=1)
    x_padded = x_padded.view(klen + 1, qlen, bsz, n_head)  # (klen + 1, qlen, bsz, n_head)
    return x_padded[1:].view_as(x)  # f(x)[i, j] = x[i, j + qlen - 1 - i]


class RelMultiHeadAttn(nn.Module):
    def __init__(self, d_model, n_head, d_head):
        super().__init__()
        self.n_head, self.d_head = n_head, d_head
        self.qkv_net = nn.Linear(d_model, 3 * n_head * d_head, bias=False)
        self.r_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.o_net = nn.Linear(n_head * d_head, d_model, bias=False)
        self.r_w_bias = nn.Parameter(torch.zeros(n_head, d_head))  # u (global content)
        self.r_r_bias = nn.Parameter(torch.zeros(n_head, d_head))  # v (global position)

    def forward(self, w, r, mems=None):
        """
        :param w: current segment, qlen x bsz x d_model
        :param r: position embeddings, klen x d_model
        :param mems: previous segment, mlen x bsz x d_model
        """
        qlen, bsz, d_model = w.size()
        n_head, d_head = self.n_head, self.d_head
        mlen = 0 if mems is None else mems.size(0)
        cat = w if mems is None else torch.cat([mems, w], 0)  # detach (mems) in the caller
        klen = mlen + qlen

        w_heads = self.qkv_net(cat)  # klen x bsz x 3*n_head*d_head
        q, k, v = w_heads.chunk(3, dim=-1)
        q = q[-qlen:].view(qlen, bsz, n_head, d_head)  # qlen x bsz x n_head x d_head
        k = k.view(klen, bsz, n_head, d_head)  # klen x bsz x n_head x d_head
        v = v.view(klen, bsz, n_head, d_head)
        r_k = self.r_net(r).view(klen, n_head, d_head)  # klen x n_head x d_head

        AC = torch.einsum('ibnd,jbnd->ijbn', q + self.r_w_bias, k)  # qlen x klen x bsz x n_head
        BD = rel_shift(torch.einsum('ibnd,jnd->ijbn', q + self.r_r_bias, r_k))
        score = (AC + BD) / d_head ** 0.5  # AC + BD (see eq. 2)
        # mask = torch.triu(w.new_ones(qlen, klen), 1 + mlen)
        score.masked_fill_(torch.ones(qlen, klen).triu(1 + mlen).bool()[:, :, None, None], -1e30)
        prob = score.softmax(dim=1)
        vec = torch.einsum('ijbn,jbnd->ibnd', prob, v)  # qlen x bsz x n_head x d_head
        return self.o_net(vec.flatten(2))  # qlen x bsz x d_model


def case(B, H, Lq, Lp, D, Dk):
    return RelMultiHeadAttn(D, H, Dk), (torch.randn(Lq, B, D), torch.randn(Lq + Lp, D), torch.randn(Lp, B, D))
