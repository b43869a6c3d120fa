"""A small encoder-decoder, time first (as in old torch)."""
import torch
from torch import nn


class TimeFirstAttention(nn.Module):
    """Fairseq-like attention.

    Shape:
        - Input: :math:`(tgt, bsz, embed)` and :math:`(src, bsz, embed)`
        - Output: :math:`(tgt, bsz, embed)`
    """

    def __init__(self, embed, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(embed, embed)
        self.kv_proj = nn.Linear(embed, 2 * embed)
        self.out_proj = nn.Linear(embed, embed)

    def forward(self, query, key, need_weights=False):
        """Input shape: Time x Batch x Channel (see fairseq)"""
        tgt, bsz, embed = query.size()
        src = key.size(0)
        heads = self.num_heads
        hd = embed // heads
        q = self.q_proj(query) * hd ** -0.5
        k, v = self.kv_proj(key).chunk(2, dim=-1)  # src x bsz x embed
        # tgt x bsz x embed becomes (bsz*heads) x tgt x hd
        q = q.contiguous().view(tgt, bsz * heads, hd).transpose(0, 1)  # bsz*heads x tgt x hd
        k = k.contiguous().view(src, bsz * heads, hd).transpose(0, 1)  # bsz*heads x src x hd
        v = v.contiguous().view(src, bsz * heads, hd).transpose(0, 1)

        w = torch.bmm(q, k.transpose(1, 2))  # bsz*heads x tgt x src
        w = w.softmax(dim=-1)  # float32? (fp16 overflows)
        attn = torch.bmm(w, v)  # bsz*heads x tgt x hd
        attn = attn.transpose(0, 1).contiguous().view(tgt, bsz, embed)
        attn = self.out_proj(attn)
        if not need_weights:
            return attn, None
        w = w.view(bsz, heads, tgt, src).mean(dim=1)  # bsz x tgt x src
        return attn, w


class EncDec(nn.Module):
    def __init__(self, vocab, embed, heads):
        super().__init__()
        self.emb = nn.Embedding(vocab, embed)
        self.enc = TimeFirstAttention(embed, heads)
        self.dec = TimeFirstAttention(embed, heads)
        self.head = nn.Linear(embed, vocab)
        self.vocab = vocab

    def forward(self, src_ids, tgt_ids):
        # src_ids: (src, bsz), tgt_ids: (tgt, bsz)
        vocab = self.vocab
        src, bsz = src_ids.shape
        tgt = tgt_ids.shape[0]
        memory = self.emb(src_ids)
        memory, _ = self.enc(memory, memory)  # (src, bsz, embed)
        y = self.emb(tgt_ids)  # [BOS] first
        # 2. cross attention (weights only needed for plots)
        y, w = self.dec(y, memory, need_weights=True)
        logits = self.head(y)  # (tgt, bsz, vocab)
        return logits, w


def case(B, H, Lq, Lk, Dk, W):
    return EncDec(W, H * Dk, H), (torch.randint(0, W, (Lk, B)), torch.randint(0, W, (Lq, B)))
