"""Hierarchical attention network (Yang et al., 2016): words -> sentences -> document."""
import torch
from torch import nn


class AttentionPool(nn.Module):
    """softmax(u . tanh(W x)) weighted mean over axis 1."""

    def __init__(self, dim, attn_dim):
        super().__init__()
        self.W = nn.Linear(dim, attn_dim)
        self.u = nn.Parameter(torch.randn(attn_dim))
        self.attn_dim = attn_dim

    def forward(self, x, mask=None, return_weights=False):
        """
        Args:
            x (Tensor): input of shape (N, T, D)
            mask (BoolTensor, optional): shape (N, T), False for padding.
            return_weights (bool): weights too (for plots)

        Returns:
            Tensor: pooled vectors of shape (N, D)
        """
        N, T, D = x.shape
        A = self.attn_dim
        hidden = torch.tanh(self.W(x))  # [N, T, A]
        scores = hidden @ self.u  # [N, T, A] @ [A] -> [N, T]
        if mask is None and T == 1:
            return x.squeeze(1)  # a single word (or sentence)
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e4)
        w = scores.softmax(dim=1).unsqueeze(-1)  # [N, T, 1]
        pooled = (w * x).sum(dim=1)  # [N, D]
        if return_weights:
            return pooled, w.squeeze(-1)
        return pooled


class HAN(nn.Module):
    def __init__(self, vocab, dim, attn_dim, classes):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.word_pool = AttentionPool(dim, attn_dim)
        self.sent_pool = AttentionPool(dim, attn_dim)
        self.fc = nn.Linear(dim, classes)

    def forward(self, docs):
        # docs: (docs, sents, words) indices into the vocabulary, [PAD] = 0
        n_docs, sents, words = docs.shape
        flat = docs.view(n_docs * sents, words)  # (n_docs * sents, words)
        mask = flat > 0
        e = self.emb(flat)
        dim = e.shape[-1]
        # e -> (n_docs * sents, words, dim)
        s = self.word_pool(e, mask)  # (n_docs * sents, dim)
        s = s.view(n_docs, sents, dim)  # (n_docs, sents, dim)
        any_mask = torch.ones(n_docs, sents, dtype=torch.bool)  # (all sentences, even empty)
        d = self.sent_pool(s, any_mask)  # (n_docs, dim)
        return self.fc(d)  # logits, no softmax (cross_entropy does it)


def case(B, Lq, Lk, D, Dk):
    docs = torch.randint(1, 50, (B, Lq, Lk))
    docs[:, :, -1] = 0
    return HAN(50, D, Dk, 4), (docs,)
