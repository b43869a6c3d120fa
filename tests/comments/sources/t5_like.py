# coding=utf-8
"""T5-like attention: relative buckets, no scaling, optional cross attention."""
import math

import torch
from torch import nn


class ToyT5Attention(nn.Module):
    def __init__(self, d_model, n_heads, d_kv, num_buckets=8, has_bias=False):
        super().__init__()
        self.n_heads = n_heads
        self.key_value_proj_dim = d_kv
        self.inner_dim = n_heads * d_kv
        self.num_buckets = num_buckets
        self.has_bias = has_bias
        # (no dropout, no pruning)
        # Mesh TensorFlow initialization to avoid scaling before softmax
        self.q = nn.Linear(d_model, self.inner_dim, bias=False)
        self.k = nn.Linear(d_model, self.inner_dim, bias=False)
        self.v = nn.Linear(d_model, self.inner_dim, bias=False)
        self.o = nn.Linear(self.inner_dim, d_model, bias=False)
        if has_bias:
            self.relative_attention_bias = nn.Embedding(num_buckets, n_heads)

    def _bucket(self, relative_position):
        """
        :param relative_position: LongTensor (query_length, key_length), memory minus query
        :return: LongTensor (query_length, key_length), values in the range [0, num_buckets)
        """
        query_length, key_length = relative_position.shape
        n = relative_position.abs().clamp(min=1)
        return (n.float().log2().long()).clamp(max=self.num_buckets - 1)

    def compute_bias(self, query_length, key_length):
        """Compute binned relative position bias"""
        context_position = torch.arange(query_length)[:, None]
        memory_position = torch.arange(key_length)[None, :]
        n_heads = self.n_heads
        relative_position = memory_position - context_position  # shape (query_length, key_length)
        values = self.relative_attention_bias(self._bucket(relative_position))  # shape (query_length, key_length, num_heads)
        values = values.permute([2, 0, 1]).unsqueeze(0)  # shape (1, num_heads, query_length, key_length)
        return values

    def forward(self, hidden_states, key_value_states=None, position_bias=None):
        """
        Self-attention (if key_value_states is None) or attention over source sentence (provided by key_value_states).
        """
        # Input is (batch_size, seq_length, dim)
        batch_size, seq_length, dim = hidden_states.shape
        current = hidden_states if key_value_states is None else key_value_states
        key_length = current.shape[1]
        n_heads, dim_per_head = self.n_heads, self.key_value_proj_dim

        def shape(states):
            """projection"""
            return states.view(batch_size, -1, self.n_heads, self.key_value_proj_dim).transpose(1, 2)

        def unshape(states):
            """reshape"""
            return states.transpose(1, 2).contiguous().view(batch_size, -1, self.inner_dim)

        query_states = shape(self.q(hidden_states))  # (batch_size, n_heads, seq_length, dim_per_head)
        key_states = shape(self.k(current))  # (batch_size, n_heads, key_length, dim_per_head)
        value_states = shape(self.v(current))  # (batch_size, n_heads, key_length, dim_per_head)

        # compute scores, equivalent of torch.einsum("bnqd,bnkd->bnqk", query_states, key_states)
        scores = torch.matmul(query_states, key_states.transpose(3, 2))
        if position_bias is None:
            if self.has_bias:
                position_bias = self.compute_bias(seq_length, key_length)
            else:
                position_bias = torch.zeros((1, n_heads, seq_length, key_length))
        # position_bias: (1, n_heads, seq_length, key_length), broadcast
        scores += position_bias
        attn_weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        # attn_weights -> (batch_size, n_heads, seq_length, key_length)
        attn_output = unshape(torch.matmul(attn_weights, value_states))  # (batch_size, seq_length, n_heads * dim_per_head)
        attn_output = self.o(attn_output)
        return attn_output, position_bias  # (output, bias)


def case(B, H, Lq, Lk, D, Dk):
    return ToyT5Attention(D, H, Dk, has_bias=True), (torch.randn(B, Lq, D), torch.randn(B, Lk, D))
