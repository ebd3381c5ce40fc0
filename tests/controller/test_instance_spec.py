"""From an engine's configuration to its KV budget."""

import json

import pytest

from hmas.controller.config.derived import instance_spec
from hmas.controller.config.loader import load_config
from hmas.controller.config.schema import EngineConfig
from hmas.controller.core.errors import ConfigError


def engine(**more):
    return EngineConfig(name="a", url="http://127.0.0.1:1", **more)


def test_bytes_follow_from_the_model_its_gpus_and_the_type_of_its_cache():
    assert instance_spec(engine()).kv_bytes_per_token == 131_072
    assert instance_spec(engine(model_config="llama-2-7b")).kv_bytes_per_token == 524_288
    assert instance_spec(engine(model_config="llama-3-8b", tp=16)).kv_bytes_per_token == 262_144
    assert instance_spec(engine(model_config="llama-3-8b", kv_cache_dtype="fp8")).kv_bytes_per_token == 65_536
    assert instance_spec(engine(model_config="llama-2-7b", kv_bytes_per_token=7)).kv_bytes_per_token == 7


def test_tokens_follow_from_memory():
    assert instance_spec(engine(model_config="llama-3-8b", kv_capacity_bytes=131_072 * 1000 + 5)).kv_capacity_tokens == 1000
    assert instance_spec(engine(model_config="llama-3-8b", kv_capacity_bytes=1 << 30, kv_capacity_tokens=77)).kv_capacity_tokens == 77
    assert instance_spec(engine(fence_margin=0.2)).fence_margin == 0.2


def test_mistakes_are_found_when_the_configuration_is_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 0, "num_attention_heads": 4, "hidden_size": 64}))
    for line, words in (
        (f"model_config: {tmp_path}/config.json", r"engines\[0\].model_config: .*config.json: .*num_hidden_layers"),
        ("model_config: gpt-9", r"engines\[0\].model_config: .*'gpt-9' is unknown"),
        ("kv_capacity_bytes: 1000", r"engines\[0\].kv_capacity_bytes: .*model_config"),
        ("fence_margin: 1.0", r"engines\[0\].fence_margin: got 1.0"),
    ):
        (tmp_path / "hmas.yaml").write_text(f"engines:\n  - name: a\n    url: http://127.0.0.1:1\n    {line}\n")
        with pytest.raises(ConfigError, match=words):
            load_config(str(tmp_path / "hmas.yaml"), {})
