"""Model shapes: sizes as published, layers that are not covered refused, degrees that do not divide refused."""

import json

import pytest
from hmas_lab.profiles.models import check_tp, load_model, parse_model

from hmas.engines.errors import ProfileError
from hmas.engines.model_shape import model_names

SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-2-7b", 6.74),
        ("llama-2-13b", 13.02),
        ("llama-3-8b", 8.03),
        ("llama-3-70b", 70.55),
        ("qwen3-8b", 8.19),
        ("qwen3-14b", 14.77),
        ("qwen3-32b", 32.76),
        ("qwen3-30b-a3b", 30.53),
    ],
)
def test_parameters_add_up_to_what_is_published(name, billions):
    assert load_model(name).parameters() / 1e9 == pytest.approx(billions, abs=0.006)


def test_every_model_of_the_folder_loads():
    assert len(model_names()) >= 8
    assert [load_model(name).name.lower().replace("3.1", "3") for name in model_names()] == model_names()


def test_weights_and_cache_follow_from_the_shape():
    model = load_model("llama-3-8b")
    assert model.weight_bytes(1, "bfloat16") == 2 * model.parameters()
    assert model.kv_bytes_per_token(1) == 2 * 32 * 8 * 128 * 2
    assert model.kv_bytes_per_token(8) == model.kv_bytes_per_token(1)
    in_fp8 = model.weight_bytes(1, "fp8")
    assert in_fp8 == model.weight_bytes(1, "bfloat16") - 32 * model.layer_parameters(1)


def test_kv_heads_fewer_than_gpus_are_held_more_than_once():
    model = load_model("qwen3-30b-a3b")
    assert model.kv_bytes_per_token(8) == 2 * model.kv_bytes_per_token(4)
    assert model.weight_bytes(8, "bfloat16") > model.weight_bytes(4, "bfloat16")


def test_a_published_config_needs_no_name_and_no_kv_heads(tmp_path):
    folder = tmp_path / "tiny-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMALL | {"torch_dtype": "bfloat16", "layer_types": ["full_attention"] * 2}))
    model = load_model(str(folder / "config.json"))
    assert (model.name, model.num_key_value_heads, model.head_dim) == ("tiny-llama", 4, 16)


def test_experts_go_by_two_names():
    model = parse_model(SMALL | {"num_local_experts": 8, "num_experts_per_tok": 2}, origin="mixtral/config.json")
    assert (model.num_experts, model.moe_intermediate_size) == (8, 128)
    assert model.expert_parameters == 3 * 8 * 64 * 128


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"kv_lora_rank": 512}, "kv_lora_rank 512 means multi-head latent attention"),
        ({"n_shared_experts": 1}, "n_shared_experts 1 means shared experts"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types has sliding_attention; allowed: full_attention"),
        ({"hidden_act": "relu"}, "hidden_act 'relu'; allowed: silu"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"vocab_size": None}, "vocab_size"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3; allowed: a divisor of num_attention_heads 4"),
        ({"num_experts": 8, "num_experts_per_tok": 9, "moe_intermediate_size": 4}, "num_experts_per_tok 9; allowed: 1 to num_experts 8"),
        ({"num_experts": 8, "num_experts_per_tok": 2}, "moe_intermediate_size 0; allowed: 1 or more"),
        ({"intermediate_size": 0}, "intermediate_size 0"),
    ],
)
def test_what_is_not_covered_or_wrong_is_named(changes, word):
    with pytest.raises(ProfileError, match=rf"m/config\.json: .*{word}"):
        parse_model(SMALL | changes, origin="m/config.json")


def test_unknown_models_and_broken_files(tmp_path):
    with pytest.raises(ProfileError, match=r"'gpt-9' is unknown; allowed: .*qwen3-8b"):
        load_model("gpt-9")
    with pytest.raises(ProfileError, match="No such file"):
        load_model(str(tmp_path / "config.json"))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ProfileError, match=r"config\.json"):
        load_model(str(tmp_path / "config.json"))


def test_a_degree_that_does_not_divide_is_refused():
    with pytest.raises(ProfileError, match="tp 3 does not divide num_attention_heads 32"):
        check_tp(load_model("qwen3-8b"), 3)
    model = parse_model(
        SMALL | {"num_attention_heads": 12, "head_dim": 16, "num_key_value_heads": 4, "intermediate_size": 120}, origin="m/c.json"
    )
    with pytest.raises(ProfileError, match="tp 6 and num_key_value_heads 4; allowed: one divides the other"):
        check_tp(model, 6)
