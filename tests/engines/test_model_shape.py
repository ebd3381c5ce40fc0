"""KV bytes per token from config.json: published sizes, types, GPUs, latent attention; mistakes name file and field."""

import json

import pytest

from hmas.engines.errors import ProfileError
from hmas.engines.model_shape import model_kv_bytes, parse_kv_shape

GROUPED = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
LATENT = {"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "hidden_size": 7168} | {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}


def written(folder, document):
    (folder / "config.json").write_text(json.dumps(document))
    return str(folder / "config.json")


@pytest.mark.parametrize(
    ("name", "tp", "dtype", "expected"),
    [
        ("llama-3-8b", 1, "auto", 131_072),
        ("llama-3-8b", 8, "auto", 131_072),
        ("llama-3-8b", 16, "auto", 262_144),
        ("llama-3-8b", 1, "fp8", 65_536),
        ("llama-3-8b", 1, "float32", 262_144),
        ("llama-2-7b", 1, "auto", 524_288),
        ("llama-3-70b", 4, "auto", 327_680),
    ],
)
def test_published_sizes(name, tp, dtype, expected):
    assert model_kv_bytes(name, tp=tp, dtype=dtype) == expected


def test_latent_attention_keeps_one_vector_on_every_gpu(tmp_path):
    path = written(tmp_path, LATENT)
    assert model_kv_bytes(path) == 61 * (512 + 64) * 2 == 70_272
    assert model_kv_bytes(path, tp=8) == 8 * 70_272
    assert model_kv_bytes(path, dtype="fp8") == 70_272 // 2


def test_the_type_of_the_cache_is_that_of_the_weights(tmp_path):
    assert model_kv_bytes(written(tmp_path, GROUPED | {"torch_dtype": "float32"})) == 2 * 131_072
    assert model_kv_bytes(written(tmp_path, GROUPED | {"torch_dtype": "float32"}), dtype="bfloat16") == 131_072


def test_what_config_json_may_leave_out_is_filled_in(tmp_path):
    bare = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
    assert model_kv_bytes(written(tmp_path, bare)) == 2 * 2 * 4 * 16 * 2
    assert model_kv_bytes(written(tmp_path, {"text_config": bare, "vision_config": {}})) == 2 * 2 * 4 * 16 * 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_key_value_heads": 5}, "num_key_value_heads 5; allowed: a divisor of num_attention_heads 32"),
        ({"torch_dtype": "int3"}, "torch_dtype 'int3'; allowed: bfloat16"),
        ({"hidden_size": None}, "head_dim"),
    ],
)
def test_mistakes_name_the_file_and_the_field(changes, words):
    with pytest.raises(ProfileError, match=rf"m/config\.json: .*{words}"):
        parse_kv_shape(GROUPED | changes, origin="m/config.json")


def test_a_degree_that_does_not_divide_and_files_that_are_not_there(tmp_path):
    with pytest.raises(ProfileError, match=r"tp 3 and num_key_value_heads 8; allowed: one divides the other"):
        model_kv_bytes("llama-3-8b", tp=3)
    with pytest.raises(ProfileError, match=r"'gpt-9' is unknown; allowed: .*llama-3-8b"):
        model_kv_bytes("gpt-9")
    with pytest.raises(ProfileError, match=r"config\.json: No such file"):
        model_kv_bytes(str(tmp_path / "config.json"))
