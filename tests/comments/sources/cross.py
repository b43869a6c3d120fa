import torch
import torch.nn as nn


class CrossAttention(nn.Module):
    """Decoder states attend to an encoded memory (no dropout, no bias).

    Args:
        d_x (int): width of the queries' stream
        d_ctx (int): width of the memory
        heads (int): number of heads (parallel)
        d_head (int): width of each head
    """

    def __init__(self, d_x, d_ctx, heads, d_head):
        super().__init__()
        self.heads, self.d_head = heads, d_head
        self.wq = nn.Linear(d_x, heads * d_head, bias=False)
        self.wk = nn.Linear(d_ctx, heads * d_head, bias=False)
        self.wv = nn.Linear(d_ctx, heads * d_head, bias=False)
        self.wo = nn.Linear(heads * d_head, d_x, bias=False)

    def _split(self, t):
        """(B, L, heads * d_head) -> (B, heads, L, d_head)"""
        B, L, _ = t.shape
        return t.view(B, L, self.heads, self.d_head).transpose(1, 2)

    def forward(self, x, ctx, mask=None):
        """
        Args:
            x: (B, Lq, d_x)
            ctx: (B, Lk, d_ctx)
            mask: (B, Lk), True where a key may be seen

        Returns:
            (B, Lq, d_x)
        """
        B, Lq, d_x = x.shape
        _, Lk, d_ctx = ctx.shape
        q = self._split(self.wq(x))    # (B, heads, Lq, d_head)
        k = self._split(self.wk(ctx))  # (B, heads, Lk, d_head)
        v = self._split(self.wv(ctx))  # (B, heads, Lk, d_head)

        # [NOTE] do not scale twice (see issue 12)
        logits = torch.einsum("bhqd,bhkd->bhqk", q, k) / self.d_head ** 0.5  # (B, heads, Lq, Lk)
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None, None, :], -1e30)  # broadcast over heads, queries
        w = logits.softmax(-1)  # over keys (not queries)
        out = torch.einsum("bhqk,bhkd->bqhd", w, v)  # (B, Lq, heads, d_head)
        return self.wo(out.flatten(2))  # TODO (bob, alice): share with self-attention
