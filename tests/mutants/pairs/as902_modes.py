"""AS902: a call in one mode, training or eval, changes what a later call in the other mode gives."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import causal, multihead

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS902", "dropout_left_off", *SIZES),
    ("AS902", "layer_of_dropout_set_to_zero", *SIZES),
    ("AS902", "fewer_keys_after_training", *SIZES),
    ("AS902", "hotter_after_training", *SIZES),
]


class Layer(nn.Module):
    """Causal attention; styles of dropout and temperature are subclasses."""

    def __init__(self, dim, heads, dropout=0.3):
        super().__init__()
        self.heads, self.dropout_p = heads, dropout
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.dense = nn.Linear(dim, dim)

    def attend(self, q, k, v):
        p = self.dropout_p if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)

    def forward(self, x):
        q, k, v = self.query_key_value(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.dense(self.attend(q, k, v).transpose(1, 2).flatten(2))


def _called(cls, B, H, L, Dk):
    return cls(H * Dk, H).eval(), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def reference(module, x):
    q, k, v = module.query_key_value(x).chunk(3, -1)
    return module.dense(multihead(q, k, v, module.heads, keep=causal(x.shape[1], x.shape[1])))


class LeftOff(Layer):
    def attend(self, q, k, v):
        if not self.training:
            self.dropout_p = 0.0  # wrong: AS902 dropout_left_off
        return F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout_p, is_causal=True)


def wrong_dropout_left_off(B, H, L, Dk):
    return _called(LeftOff, B, H, L, Dk)


def right_dropout_left_off(B, H, L, Dk):
    return _called(Layer, B, H, L, Dk)


reference_dropout_left_off = reference


class Written(Layer):
    """The weights are computed step by step, and a layer drops some of them."""

    def __init__(self, dim, heads):
        super().__init__(dim, heads)
        self.drop = nn.Dropout(0.4)

    def dropped(self, weights):
        return self.drop(weights)

    def attend(self, q, k, v):
        future = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
        scores = torch.matmul(q, k.transpose(2, 3)).mul(q.shape[3] ** -0.5).masked_fill(future, float("-inf"))
        return torch.matmul(self.dropped(torch.softmax(scores, dim=3)), v)


class SetToZero(Written):
    def dropped(self, weights):
        self.drop.p = self.drop.p if self.training else 0.0
        return self.drop(weights)  # wrong: AS902 layer_of_dropout_set_to_zero


def wrong_layer_of_dropout_set_to_zero(B, H, L, Dk):
    return _called(SetToZero, B, H, L, Dk)


def right_layer_of_dropout_set_to_zero(B, H, L, Dk):
    return _called(Written, B, H, L, Dk)


reference_layer_of_dropout_set_to_zero = reference


class Sampled(Layer):
    """In training, queries see only a part of the keys."""

    def __init__(self, dim, heads):
        super().__init__(dim, heads)
        self.fraction = 1.0

    def chosen(self, keys):
        fraction = 0.5 if self.training else self.fraction
        return max(1, int(fraction * keys))

    def attend(self, q, k, v):
        count = self.chosen(k.shape[2])
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril() & (torch.arange(k.shape[2]) < count)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


class SampledEver(Sampled):
    def chosen(self, keys):
        if self.training:
            self.fraction = 0.5  # wrong: AS902 fewer_keys_after_training
        return max(1, int(self.fraction * keys))


def wrong_fewer_keys_after_training(B, H, L, Dk):
    return _called(SampledEver, B, H, L, Dk)


def right_fewer_keys_after_training(B, H, L, Dk):
    return _called(Sampled, B, H, L, Dk)


reference_fewer_keys_after_training = reference


class Tempered(Written):
    """In training, weights are smoother by a temperature."""

    def __init__(self, dim, heads):
        super().__init__(dim, heads)
        self.settings = {"temperature": 1.0}

    def temperature(self):
        return 2.0 if self.training else 1.0

    def attend(self, q, k, v):
        return super().attend(q / self.temperature(), k, v)


class TemperedEver(Tempered):
    def temperature(self):
        self.settings["temperature"] = 2.0 if self.training else self.settings["temperature"]
        return self.settings["temperature"]

    def attend(self, q, k, v):
        return Written.attend(self, q / self.temperature(), k, v)  # wrong: AS902 hotter_after_training


def wrong_hotter_after_training(B, H, L, Dk):
    return _called(TemperedEver, B, H, L, Dk)


def right_hotter_after_training(B, H, L, Dk):
    return _called(Tempered, B, H, L, Dk)


reference_hotter_after_training = reference
