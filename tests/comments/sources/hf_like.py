# coding=utf-8
# Copyright 2021 The Toy Team. All rights reserved.
from dataclasses import dataclass
from typing import Optional, Tuple

import torch
from torch import nn


@dataclass
class ToyConfig:
    hidden_size: int = 64
    num_attention_heads: int = 4
    attention_probs_dropout_prob: float = 0.1


class ToyBertSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.all_head_size = self.num_heads * self.head_dim

        self.query = nn.Linear(config.hidden_size, self.all_head_size)
        self.key = nn.Linear(config.hidden_size, self.all_head_size)
        self.value = nn.Linear(config.hidden_size, self.all_head_size)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def transpose_for_scores(self, x: torch.Tensor) -> torch.Tensor:
        # (batch_size, seq_len, num_heads * head_dim) -> (batch_size, num_heads, seq_len, head_dim)
        new_shape = x.size()[:-1] + (self.num_heads, self.head_dim)
        x = x.view(new_shape)  # (batch_size, seq_len, num_heads, head_dim)
        return x.permute(0, 2, 1, 3)  # swap (1, 2)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.FloatTensor] = None,
        output_attentions: Optional[bool] = False,
    ) -> Tuple[torch.Tensor, ...]:
        r"""
        Args:
            hidden_states (`torch.FloatTensor` of shape `(batch_size, seq_len, hidden_size)`):
                Input to the layer (after the embedding, or from the layer below).
            attention_mask (`torch.FloatTensor`, *optional*):
                Additive mask `(batch_size, 1, 1, seq_len)`, 0 to keep.
            output_attentions (`bool`, *optional*):
                Whether or not to return the attentions of all heads (default: False).

        Returns:
            context of shape `(batch_size, seq_len, hidden_size)`, in a tuple
        """
        batch_size, seq_len, hidden_size = hidden_states.shape
        num_heads, head_dim = self.num_heads, self.head_dim  # noqa: F841

        key_layer = self.transpose_for_scores(self.key(hidden_states))
        value_layer = self.transpose_for_scores(self.value(hidden_states))
        query_layer = self.transpose_for_scores(self.query(hidden_states))
        # -> (batch_size, num_heads, seq_len, head_dim)

        # Take the dot product between "query" and "key" to get the raw attention scores.
        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        attention_scores = attention_scores / (self.head_dim ** 0.5)  # (batch_size, num_heads, seq_len, seq_len)
        if attention_mask is not None:
            # Apply the attention mask is (precomputed for all layers in ToyModel forward() function)
            attention_scores = attention_scores + attention_mask

        # Normalize the attention scores to probabilities (softmax(QK^T / sqrt(d_k))).
        attention_probs = nn.functional.softmax(attention_scores, dim=-1)

        # This is actually dropping out entire tokens to attend to, which might
        # seem a bit unusual, but is taken from the original Transformer paper.
        attention_probs = self.dropout(attention_probs)

        context_layer = torch.matmul(attention_probs, value_layer)
        context_layer = context_layer.permute(0, 2, 1, 3).contiguous()  # (batch_size, seq_len, num_heads, head_dim)
        context_layer = context_layer.view(batch_size, seq_len, self.all_head_size)
        return (context_layer, attention_probs) if output_attentions else (context_layer,)


def case(B, H, L, Dk):
    layer = ToyBertSelfAttention(ToyConfig(hidden_size=H * Dk, num_attention_heads=H))
    return layer, (torch.randn(B, L, H * Dk), torch.zeros(B, 1, 1, L))
