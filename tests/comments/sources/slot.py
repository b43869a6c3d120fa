"""Slot attention (Locatello et al., NeurIPS 2020)."""
import torch
from torch import nn


class SlotAttention(nn.Module):
    """Slots compete for the inputs (softmax over the slots, not over the inputs)."""

    def __init__(self, input_size, num_slots, slot_size, num_iterations=3, epsilon=1e-8):
        super().__init__()
        self.num_slots = num_slots
        self.slot_size = slot_size
        self.num_iterations = num_iterations
        self.epsilon = epsilon
        self.norm_inputs = nn.LayerNorm(input_size)
        self.norm_slots = nn.LayerNorm(slot_size)
        self.mu = nn.Parameter(torch.randn(1, 1, slot_size))
        self.project_q = nn.Linear(slot_size, slot_size, bias=False)
        self.project_k = nn.Linear(input_size, slot_size, bias=False)
        self.project_v = nn.Linear(input_size, slot_size, bias=False)
        self.gru = nn.GRUCell(slot_size, slot_size)

    def forward(self, inputs):
        # `inputs` has shape [batch_size, num_inputs, inputs_size].
        batch_size, num_inputs, inputs_size = inputs.shape
        num_slots, slot_size = self.num_slots, self.slot_size
        inputs = self.norm_inputs(inputs)
        k = self.project_k(inputs)  # Shape: [batch_size, num_inputs, slot_size].
        v = self.project_v(inputs)  # Shape: [batch_size, num_inputs, slot_size].

        # Initialize the slots. Shape: [batch_size, num_slots, slot_size].
        slots = self.mu + torch.zeros(batch_size, num_slots, slot_size)

        # Multiple rounds of attention (t = 1, 2, 3).
        for _ in range(self.num_iterations):
            slots_prev = slots
            slots = self.norm_slots(slots)

            # Attention.
            q = self.project_q(slots)  # Shape: [batch_size, num_slots, slot_size].
            q *= slot_size ** -0.5  # Normalization (as in [1]).
            attn_logits = torch.bmm(k, q.transpose(1, 2))
            attn = attn_logits.softmax(dim=-1)
            # `attn` has shape: [batch_size, num_inputs, num_slots].

            # Weighted mean (over the inputs).
            attn = attn + self.epsilon
            attn = attn / attn.sum(dim=1, keepdim=True)
            updates = torch.bmm(attn.transpose(1, 2), v)
            # `updates` has shape: [batch_size, num_slots, slot_size].

            # Slot update, GRUCell wants [batch_size * num_slots, slot_size].
            slots = self.gru(updates.reshape(-1, slot_size), slots_prev.reshape(-1, slot_size))
            slots = slots.view(batch_size, num_slots, slot_size)
        return slots
