"""What the source of a target says: the fields of a configuration, and the axes of its arguments."""

import pytest
import torch

from attnshape.proposals.conventions import axes_named, constant_of, is_config, size_of
from attnshape.proposals.masks import MaskUse, use_of_mask
from attnshape.proposals.source import batch_axis, fields_read, syntax_tree, unpacked_axes
from attnshape.targets.imports import import_target
from tests.proposals import models


@pytest.mark.parametrize(
    ("names", "size"),
    [
        ("d_model dim embed_dim n_embd hidden_size dModel model_dim channels in_channels in_features query_dim", "D"),
        ("num_in_features c_q h_dim n_feat in_feat enc_dim dec_dim", "D"),
        ("head_num heads_count", "H"),
        ("n_head nhead num_heads heads num_attention_heads n_heads num_attn_heads numHeads nh num_of_heads", "H"),
        ("n_kv_heads num_key_value_heads kv_heads num_kv_heads n_query_groups", "Hkv"),
        ("head_dim dim_head d_k head_size attention_head_dim dim_per_head d_head c_hidden", "Dk"),
        ("d_v v_head_dim dim_value", "Dv"),
        ("block_size max_seq_len max_position_embeddings seq_len context_length max_len maxlen max_T n_ctx", "L"),
        ("vocab_size n_vocab num_tokens item_num num_items user_count", "V"),
        ("n_layer num_layers depth num_hidden_layers", "N"),
        ("window_size window sliding_window", "W"),
        ("d_ff intermediate_size ffn_dim mlp_dim dim_feedforward", "4*D"),
        ("layer_idx layer_id start_pos", "0"),
    ],
)
def test_conventions(names, size):
    assert {name: size_of(name) for name in names.split()} == dict.fromkeys(names.split(), size)


@pytest.mark.parametrize(
    "name", ["x", "query", "mask", "gadget", "bias", "causal", "activation", "n", "_", "", "theta"]
)
def test_names_that_say_nothing_of_a_size(name):
    assert size_of(name) is None


@pytest.mark.parametrize(
    ("name", "constant"),
    [("dropout", "0.0"), ("attn_pdrop", "0.0"), ("layer_norm_eps", "1e-06"), ("kernel_size", "3"), ("inf", "1e9")],
)
def test_constants(name, constant):
    assert constant_of(name) == constant


def test_configurations():
    assert all(map(is_config, ["config", "cfg", "args", "model_args", "hparams", "text_config"]))
    assert not any(map(is_config, ["x", "heads", "configure"]))


FIELDS = """
class Base:
    def __init__(self, config):
        self.width = config.width


def helper(cfg):
    return cfg.depth


class Inner:
    def __init__(self, cfg):
        self.rate = getattr(cfg, "rate", 0)


class Outer(Base):
    def __init__(self, config):
        super().__init__(config)
        self.config, self.depth, self.inner = config, helper(config), Inner(config)

    def forward(self, x):
        return x * self.config.scale
"""


def test_fields_are_found_in_other_classes_and_helpers(tmp_path):
    (tmp_path / "with_fields.py").write_text(FIELDS)
    module = import_target(str(tmp_path / "with_fields.py"))
    assert fields_read(module.Outer, "config", module) == ["scale", "width", "depth", "rate"]


@pytest.mark.parametrize(
    ("function", "parameter", "axes"),
    [
        (models.Plain.forward, "x", ("B", "T", "C")),
        (models.OfMaps.forward, "x", ("b", "c", "h", "w")),
        (models.Cross.forward, "query", None),
        (models.of_heads, "x", ("b", "n", "d")),
    ],
)
def test_unpacked_axes(function, parameter, axes):
    assert unpacked_axes(function, parameter) == axes


def test_starred_unpacking_and_patterns():
    def starred(x):
        b, n, _, h = *x.shape, 4
        return b, n, _, h

    def pattern(x):
        return rearrange(x, "b n (h d) -> b h n d", h=4)

    def sized(x):
        b, t = x.size()
        return b, t

    assert unpacked_axes(starred, "x") == ("b", "n", "_")
    assert unpacked_axes(pattern, "x") == ("b", "n", "_")
    assert unpacked_axes(sized, "x") == ("b", "t")


def test_axes_of_an_argument_that_is_transposed_first_have_no_names():
    def transposed(x):
        x = x.permute(1, 0, 2)
        b, t, d = x.shape
        return b, t, d

    def transposed_later(x):
        x = x + 1
        b, t, d = x.shape
        x = x.transpose(0, 1)
        return x, b, t, d

    assert unpacked_axes(transposed, "x") is None
    assert unpacked_axes(transposed_later, "x") == ("b", "t", "d")


def test_axes_that_are_not_certain_have_no_symbols():
    assert axes_named(("a", "q", "z")) is None
    assert axes_named(("b", "b", "d")) is None
    assert axes_named(("b", "_", "_")) is None


def sized(query, key):
    batch_size = query.size(0)
    n = key.shape[1]
    return batch_size, n


def moved(query):
    query = query.transpose(0, 1)
    bsz = query.shape[0]
    return bsz + 1


def second(query):
    bsz = query.shape[1]
    return bsz + 1


def test_axis_of_the_batch():
    assert [batch_axis(sized, name) for name in ("query", "key")] == [0, None]
    assert batch_axis(moved, "query") is None
    assert batch_axis(second, "query") == 1


def test_sources_are_parsed_once():
    assert syntax_tree(models.Plain) is syntax_tree(models.Plain)
    assert syntax_tree(3) is None
    assert syntax_tree([]) is None


def test_what_a_mask_does_with_keys():
    def hides(scores, mask, minus=float("-inf")):
        return scores.masked_fill(mask[:, None].bool(), minus)

    def keeps(scores, mask):
        return torch.where(mask == 0, -1e9, scores)

    def keeps_too(scores, mask):
        return torch.where(mask, scores, torch.finfo(scores.dtype).min)

    def inverted(scores, mask):
        return scores.masked_fill_(~mask.unsqueeze(1), float("-inf"))

    def added(scores, mask):
        scores += mask[None]
        return scores

    def neither(scores, mask):
        return scores * mask + mask.shape[0]

    uses = [use_of_mask(one, "mask") for one in (hides, keeps, keeps_too, inverted, added, neither)]
    assert uses == [MaskUse.HIDES, MaskUse.KEEPS, MaskUse.KEEPS, MaskUse.KEEPS, MaskUse.ADDED, None]
