"""
Additive attention (Bahdanau et al. 2015) inside a GRU decoder.

e_ij = v^T tanh(W s_{i-1} + U h_j)      (eq. 6)
"""
import torch
from torch import nn
import torch.nn.functional as F


class AdditiveAttention(nn.Module):
    def __init__(self, enc_dim, dec_dim, attn_dim):
        super().__init__()
        self.W = nn.Linear(dec_dim, attn_dim, bias=False)
        self.U = nn.Linear(enc_dim, attn_dim, bias=False)
        self.v = nn.Linear(attn_dim, 1, bias=False)

    def forward(self, s, h, mask):
        # s: [batch size, dec dim]
        # h: [batch size, src len, enc dim]
        # mask: [batch size, src len]
        query = self.W(s).unsqueeze(1)
        # query: [batch size, 1, attn dim]
        energy = torch.tanh(query + self.U(h))
        # energy = [batch size, src len, attn dim]
        scores = self.v(energy).squeeze(2)
        # scores = [batch size, src len]
        scores = scores.masked_fill(~mask, -1e10)  # (padding gets no weight)
        a = F.softmax(scores, dim=1)
        weighted = torch.bmm(a.unsqueeze(1), h).squeeze(1)
        # weighted = [batch size, enc dim]
        return weighted, a


class Decoder(nn.Module):
    def __init__(self, enc_dim, dec_dim, attn_dim, vocab):
        super().__init__()
        self.emb = nn.Embedding(vocab, dec_dim)
        self.attention = AdditiveAttention(enc_dim, dec_dim, attn_dim)
        self.rnn = nn.GRUCell(dec_dim + enc_dim, dec_dim)
        self.vocab = vocab
        self.out = nn.Linear(dec_dim, vocab)

    def forward(self, prev, h0, annotations, lengths):
        N, S, E = annotations.shape
        T = prev.shape[1]
        V = self.vocab
        pos = torch.arange(S)[None, :]
        mask = pos < (S - lengths)[:, None]  # (N, S)
        emb = self.emb(prev)  # teacher forcing, [BOS] is 1 (see the tokenizer)
        s, steps, alphas = h0, [], []  # one entry per step (T)
        for t in range(T):
            ctx, a = self.attention(s, annotations, mask)  # (N, E), (N, S)
            s = self.rnn(torch.cat([emb[:, t], ctx], dim=-1), s)
            steps.append(s)
            alphas.append(a)
        logits = self.out(torch.stack(steps, dim=1))  # (N, T, V)
        alphas = torch.stack(alphas, dim=1)  # (N, T, S)
        return logits, alphas


def case(B, Lq, Lk, D, Dk, Dv):
    dec = Decoder(Dv, D, Dk, 30)
    return dec, (torch.randint(0, 30, (B, Lq)), torch.randn(B, D), torch.randn(B, Lk, Dv), torch.arange(B) % 3)
