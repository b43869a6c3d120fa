"""A Hugging Face config.json as a target: its sizes have symbols, its inputs follow from the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.targets.config_file import config_target
from tests.cli.running import Attnshape

pytest.importorskip("transformers")

LLAMA = {
    "model_type": "llama",
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
VIT = {
    "model_type": "vit",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
DEEPSEEK = {
    **LLAMA,
    "model_type": "deepseek_v3",
    "num_key_value_heads": 4,
    "moe_intermediate_size": 16,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
}
T5 = {"model_type": "t5", "vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}


def write(folder: Path, values: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(values))


def test_sizes_are_symbols_and_layers_are_folded(attnshape: Attnshape, folder: Path) -> None:
    write(folder, LLAMA)
    trace = attnshape("trace", "config.json", "--format", "json").trace
    sizes = {name: (size["size"], size["from"]) for name, size in trace["sizes"].items()}
    assert sizes["D"] == (32, "default")
    assert sizes["Dk"] == (8, "derived")
    assert (sizes["H"][0], sizes["Hkv"][0], sizes["G"][0], sizes["N"][0]) == (4, 2, 2, 3)
    assert [(one["name"], one["tensor"]["signature"]) for one in trace["inputs"]] == [("input_ids", "B L")]
    layers = [loop for loop in trace["loops"] if loop.get("modules")]
    assert [(loop["expression"], loop["modules"]) for loop in layers] == [("N", ["layers.0", "layers.2"])]
    fused = [step["avoided"]["signature"] for step in trace["steps"] if "avoided" in step]
    assert fused == ["B H L L"]
    assert trace["preconditions"] == ["Dk even"]
    assert trace["device"] == "cpu"


LOCAL, FULL = "sliding_attention", "full_attention"
GPT_OSS = {
    **LLAMA,
    "model_type": "gpt_oss",
    "num_hidden_layers": 4,
    "layer_types": [LOCAL, FULL] * 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "head_dim": 8,
}


def test_groups_of_layers_are_folded(attnshape: Attnshape, folder: Path) -> None:
    write(folder, GPT_OSS)
    trace = attnshape("trace", "config.json", "--format", "json").trace
    assert trace["sizes"]["N"] == {"size": 2, "from": "default"}
    assert trace["verified_at"] > 2
    loops = [(loop["expression"], loop["modules"]) for loop in trace["loops"] if loop.get("modules")]
    assert ("N", ["layers.0", "layers.3"]) in loops


@pytest.mark.parametrize(
    ("kinds", "counted", "fewest", "built", "expected"),
    [
        ([LOCAL, LOCAL, FULL] * 2, 2, 1, 1, [LOCAL, LOCAL, FULL]),
        ([LOCAL, LOCAL, FULL] * 2, 2, 1, 3, [LOCAL, LOCAL, FULL] * 3),
        ([FULL] * 3, 3, 2, 5, [FULL] * 5),
        ([FULL], 1, 2, 2, [FULL] * 2),
        # a part of a group at the end: all layers are counted
        ([LOCAL, LOCAL, FULL] * 2 + [LOCAL], 7, 2, 2, [LOCAL, FULL]),
        ([LOCAL, LOCAL, FULL] * 2 + [LOCAL], 7, 2, 10, [LOCAL, LOCAL, FULL] * 3 + [LOCAL]),
        ([LOCAL, FULL, FULL, LOCAL], 4, 2, 3, [LOCAL, FULL, FULL]),
    ],
)
def test_every_kind_of_layer_is_built(
    folder: Path, kinds: list[str], counted: int, fewest: int, built: int, expected: list[str]
) -> None:
    write(folder, {**GPT_OSS, "layer_types": kinds, "num_hidden_layers": len(kinds)})
    target = config_target(TargetSpec(str(folder / "config.json")))
    assert (target.sizes.numbers["N"], target.counts) == (counted, {"N": fewest})
    model = target.build({**target.sizes.numbers, "N": built}, RunOptions()).function
    assert (model.config.layer_types, len(model.layers)) == (expected, len(expected))


def test_a_trace_keeps_layers_without_regularity(attnshape: Attnshape, folder: Path) -> None:
    write(folder, {**GPT_OSS, "layer_types": [LOCAL, FULL, FULL, LOCAL]})
    trace = attnshape("trace", "config.json", "--format", "json").trace
    assert trace["verified_at"] > 2
    assert not [loop for loop in trace["loops"] if loop["expression"] == "N"]


def test_dense_layers_before_those_with_experts_have_a_symbol(folder: Path) -> None:
    write(folder, {**DEEPSEEK, "num_hidden_layers": 7, "first_k_dense_replace": 3})
    target = config_target(TargetSpec(str(folder / "config.json")))
    numbers = target.sizes.numbers
    assert (numbers["Nd"], numbers["N"]) == (3, 4)
    assert target.counts == {"N": 1, "Nd": 1}
    model = target.build({**numbers, "Nd": 1, "N": 2}, RunOptions()).function
    assert [hasattr(layer.mlp, "experts") for layer in model.layers] == [False, True, True]


def test_where_all_layers_are_dense_they_are_counted_together(folder: Path) -> None:
    write(folder, {**DEEPSEEK, "num_hidden_layers": 3, "first_k_dense_replace": 3})
    target = config_target(TargetSpec(str(folder / "config.json")))
    assert (target.sizes.numbers["N"], target.counts) == (3, {"N": 2})


def test_a_large_model_runs_on_meta_unless_a_device_is_named(attnshape: Attnshape, folder: Path) -> None:
    write(folder, {**LLAMA, "vocab_size": 200_000, "hidden_size": 4096, "num_attention_heads": 32})
    trace = attnshape("trace", "config.json", "--format", "json").trace
    assert trace["device"] == "meta"
    assert trace["inputs"][0]["tensor"]["shape"] == [2, 10]


def test_images_are_patches(attnshape: Attnshape, folder: Path) -> None:
    write(folder, VIT)
    trace = attnshape("trace", "config.json", "--format", "json").trace
    assert [(one["name"], one["tensor"]["signature"]) for one in trace["inputs"]] == [("pixel_values", "B 3 P*S P*S")]
    assert {step["avoided"]["signature"] for step in trace["steps"] if "avoided" in step} == {"B H P*P+1 P*P+1"}


def test_an_encoder_and_a_decoder_have_lengths_of_their_own(attnshape: Attnshape, folder: Path) -> None:
    write(folder, T5)
    result = attnshape("trace", "config.json", "--format", "json")
    signatures = [(one["name"], one["tensor"]["signature"]) for one in result.trace["inputs"]]
    assert signatures == [("input_ids", "B Lk"), ("decoder_input_ids", "B Lq")]
    fused = {step["avoided"]["signature"] for step in result.trace["steps"] if "avoided" in step}
    assert fused == {"B H Lk Lk", "B H Lq Lq", "B H Lq Lk"}


def test_the_class_that_the_file_names(attnshape: Attnshape, folder: Path) -> None:
    write(folder, {**LLAMA, "architectures": ["LlamaForCausalLM"]})
    trace = attnshape("trace", "config.json", "--inside", "model.layers.1.self_attn", "--format", "json").trace
    assert trace["target"] == "config.json inside model.layers.1.self_attn"
    assert trace["inputs"][0]["tensor"]["signature"] == "B L D"


def test_sizes_that_are_given_replace_the_files(attnshape: Attnshape, folder: Path) -> None:
    write(folder, LLAMA)
    given = attnshape(
        "trace", "config.json", "--d-model", "64", "--dim", "N=2", "--length", "7", "--format", "json"
    ).trace
    assert (given["sizes"]["D"], given["sizes"]["Dk"]["size"]) == ({"size": 64, "from": "given"}, 16)
    assert [loop["count"] for loop in given["loops"] if loop.get("modules")] == [2]
    contradicting = attnshape("trace", "config.json", "--d-model", "30")
    assert "error: the sizes contradict each other: D = H*Dk" in contradicting.err


def test_check_finds_each_attention(attnshape: Attnshape, folder: Path) -> None:
    write(folder, {**LLAMA, "num_hidden_layers": 2})
    result = attnshape("check", "config.json", "--claim", "causal", "--claim", "rope=half", "--format", "text")
    assert result.status == 0, result.out
    assert "layers.0.self_attn, layers.1.self_attn" in " ".join(result.out.split())


def test_check_builds_few_layers_and_says_what_they_stand_for(attnshape: Attnshape, folder: Path) -> None:
    write(folder, {**LLAMA, "num_hidden_layers": 6})
    result = attnshape("check", "config.json", "--select", "AS2", "--format", "text")
    text = " ".join(result.out.split())
    assert "the layers of N=2 stand for those of N=6, whose kinds they all are" in text
    assert "what comes beyond" not in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "config.json isn't JSON"),
        ("[]", "has no model_type"),
        ('{"model_type": "\\u001b[31mx"}', "knows no model type '\\x1b[31mx'"),
        ('{"model_type": "llama", "hidden_size": "wide"}', "is no configuration of 'llama'"),
        ('{"model_type": "wav2vec2"}', "can't be worked out from its configuration"),
    ],
)
def test_errors(attnshape: Attnshape, folder: Path, text: str, message: str) -> None:
    (folder / "config.json").write_text(text)
    result = attnshape("trace", "config.json")
    assert result.status == 2
    assert message in result.err
    assert "hint: " in result.err


def test_arguments_are_refused(attnshape: Attnshape, folder: Path) -> None:
    write(folder, LLAMA)
    assert "error: a configuration takes no --init" in attnshape("trace", "config.json", "--init", "D").err


GEMMA3 = {
    "model_type": "gemma3",
    "architectures": ["Gemma3ForConditionalGeneration"],
    "image_token_index": 58,
    "mm_tokens_per_image": 4,
    "text_config": {**LLAMA, "model_type": "gemma3_text", "num_hidden_layers": 2, "head_dim": 8},
    "vision_config": {**VIT, "model_type": "siglip_vision_model", "vision_use_head": False},
}


def test_a_part_that_no_input_reaches_has_no_symbols(attnshape: Attnshape, folder: Path) -> None:
    write(folder, GEMMA3)
    trace = attnshape("trace", "config.json", "--format", "json").trace
    assert [one["name"] for one in trace["inputs"]] == ["input_ids"]
    assert not {"Hi", "Di", "Fi", "Ni", "P", "S"} & trace["sizes"].keys()
    # the id of images is one of the vocabulary at small sizes too, or the code would take another path
    assert trace["verified_at"] > 2
    assert {step["avoided"]["signature"] for step in trace["steps"] if "avoided" in step} == {"B H L L"}


@pytest.mark.slow
def test_check_of_a_large_model_with_many_sizes(attnshape: Attnshape, folder: Path) -> None:
    sizes = {"hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "vocab_size": 129280}
    latent = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    heads = {"num_attention_heads": 128, "num_key_value_heads": 128, "v_head_dim": 128, "num_hidden_layers": 2}
    experts = {"n_routed_experts": 256, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4}
    write(folder, {"model_type": "deepseek_v3", "first_k_dense_replace": 1, **sizes, **latent, **heads, **experts})
    result = attnshape("check", "config.json", "--select", "AS2", "--format", "text", "--time-limit", "200")
    assert "layers.0.self_attn … layers.2.self_attn" in " ".join(result.out.split()), result.err
