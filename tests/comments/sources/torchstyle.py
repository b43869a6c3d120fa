r"""Attention with torch's own documentation style."""
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BiasedAttention(nn.Module):
    r"""Allows the model to jointly attend to information
    from different representation subspaces (see `Attention Is All You Need <https://arxiv.org/abs/1706.03762>`_).

    Args:
        embed_dim: Total dimension of the model (E).
        num_heads: Number of parallel attention heads.
        vdim: Total number of features for values. Default: ``None`` (uses ``vdim=embed_dim``).
    """

    def __init__(self, embed_dim, num_heads, vdim=None) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q_weight = nn.Linear(embed_dim, embed_dim)
        self.k_weight = nn.Linear(embed_dim, embed_dim)
        self.v_weight = nn.Linear(vdim or embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, query: Tensor, key: Tensor, value: Tensor,
                attn_mask: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
        r"""
        Shape:
            Inputs:

            - query: :math:`(N, L, E)` where L is the target sequence length.
            - key: :math:`(N, S, E)`, where S is the source sequence length.
            - value: :math:`(N, S, Ev)` where Ev is the value embedding dimension.
            - attn_mask: :math:`(L, S)`. ``True`` is kept, ``False`` is not.

            Outputs:

            - attn_output: :math:`(N, L, E)`
            - attn_output_weights: :math:`(N, L, S)` (averaged over heads)
        """
        N, L, E = query.shape
        S, Ev = value.shape[1:]
        num_heads = self.num_heads
        D = E // num_heads  # per head (not vdim)
        # fast path (is_causal, need_weights) left out: see F.multi_head_attention_forward

        def _split_heads(x: Tensor) -> Tensor:
            # [N, *, E] as [N, num_heads, *, D]
            return x.unflatten(-1, [num_heads, D]).transpose(1, 2)

        q, k, v = (
            _split_heads(self.q_weight(query)),
            _split_heads(self.k_weight(key)),
            _split_heads(self.v_weight(value)),
        )
        # shape = [batch, heads, queries, features]
        # k, v have shape [N, num_heads, S, D]

        attn = torch.matmul(
            q,
            k.transpose(-2, -1),  # [N, num_heads, D, S]
        ) * D ** -0.5  # scale (1 / sqrt(D))
        # shape = [batch, heads, queries, keys]
        if attn_mask is not None:
            attn = attn.masked_fill(attn_mask.logical_not(), -1e9)
        attn = F.softmax(attn, dim=-1)  # type: ignore[assignment]
        out = (
            torch.matmul(attn, v)  # [N, num_heads, L, D]
            .transpose(1, 2)  # [N, L, num_heads, D]
            .flatten(2)  # [N, L, E]
        )
        return self.out_proj(out), attn.mean(dim=1)
