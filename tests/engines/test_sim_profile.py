"""Profiles: every shipped one loads, and a bad one names its field."""

import json

import pytest

from engines.errors import ProfileError
from engines.sim.profile import load_profile, parse_profile, profile_names


def test_every_shipped_profile_loads():
    names = profile_names()
    assert "demo-small" in names
    for name in names:
        profile = load_profile(name)
        assert profile.name == name
        assert len(profile.source) > 80, "says how its numbers came about"


def test_a_path_loads_too(tmp_path):
    path = tmp_path / "mine.json"
    path.write_bytes(json.dumps(document()).encode())
    assert load_profile(str(path)).name == "mine"


def document(**changes):
    values = {
        "name": "mine",
        "gpu": "g",
        "model": "m",
        "source": "s",
        "step_ms": 1.0,
        "prefill_ms_per_token": 0.1,
        "prefill_ms_per_ktoken_sq": 0.1,
        "decode_ms_per_seq": 0.1,
        "decode_ms_per_kv_ktoken": 0.1,
        "kv_blocks": 100,
        "kv_bytes_per_token": 1,
        "max_model_len": 1000,
    } | changes
    return {key: value for key, value in values.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"step_ms": "fast"}, r"step_ms"),
        ({"step_ms": 0}, r"step_ms"),
        ({"kv_blocks": 0}, r"kv_blocks"),
        ({"step_ms": None}, r"step_ms"),
        ({"stepms": 1}, r"stepms"),
        ({"kv_blocks": 10}, r"at least max_model_len 1000"),
    ],
)
def test_a_bad_field_is_named(changes, word):
    with pytest.raises(ProfileError, match=word):
        parse_profile(json.dumps(document(**changes)).encode(), origin="mine.json")


def test_unknown_names_and_broken_files(tmp_path):
    with pytest.raises(ProfileError, match=r"allowed: .*demo-small"):
        load_profile("gigantic")
    with pytest.raises(ProfileError, match="No such file"):
        load_profile(str(tmp_path / "none.json"))
    with pytest.raises(ProfileError, match=r"cut\.json"):
        parse_profile(b'{"name": ', origin="cut.json")
