"""Profiles: every shipped one loads, the step's formula holds, and a bad one names its field."""

import json
import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmas.engines.errors import ProfileError
from hmas.engines.sim.profile import check_profile, load_profile, parse_profile, profile_names, same_model

CURVE = ((1, 2.0), (10, 3.0), (20, 5.0))


def document(**changes):
    values = {
        "name": "mine",
        "gpu": "g",
        "model": "m",
        "source": "s",
        "step_ms": 1.0,
        "prefill_ms_per_token": 0.1,
        "prefill_ms_per_ktoken_sq": 0.2,
        "decode_ms_per_seq": 0.3,
        "decode_ms_per_kv_ktoken": 0.4,
        "kv_blocks": 100,
        "kv_bytes_per_token": 1,
        "max_model_len": 1000,
    } | changes
    return {key: value for key, value in values.items() if value is not None}


def parsed(**changes):
    return parse_profile(json.dumps(document(**changes)).encode(), origin="mine.json")


PROFILES = [parsed(token_curve=curve) for curve in ((), CURVE, ((5, 0.0), (20_000, 90.0), (30_000, 91.0)))]


def test_every_shipped_profile_loads():
    names = profile_names()
    assert {"demo-small", "a100-qwen3-8b", "h100-llama-3-70b-tp4"} <= set(names)
    for name in names:
        profile = load_profile(name)
        assert profile.name == name
        assert len(profile.source) > 80, "says how its numbers came about"


def test_the_demo_engine_keeps_its_speed():
    profile = load_profile("demo-small")
    ms = 17.55 + 0.157 * 300 + 7.9 * 45150 * 1e-6 + 0.262 * 8 + 0.188 * 8000 * 1e-3
    assert 1e3 * profile.step_duration_s(prefill_tokens=300, prefill_pairs=45150, decode_seqs=8, decode_kv_tokens=8000) == pytest.approx(ms)
    assert (profile.kv_blocks, profile.max_num_seqs, profile.max_num_batched_tokens) == (3750, 256, 2048)


def test_a_path_loads_too(tmp_path):
    path = tmp_path / "mine.json"
    path.write_bytes(json.dumps(document()).encode())
    assert load_profile(str(path)).name == "mine"


@pytest.mark.parametrize(
    ("tokens", "ms"),
    [(0, 2.0), (1, 2.0), (4, 2.0 + 3 / 9), (10, 3.0), (15, 4.0), (20, 5.0), (30, 7.0), (100_000, 5.0 + 0.2 * 99_980)],
)
def test_the_curve_is_flat_before_linear_between_and_goes_on_after(tokens, ms):
    profile = parsed(token_curve=CURVE)
    assert profile.curve_ms(tokens) == pytest.approx(ms)
    assert profile.decode_line(tokens)[0] == pytest.approx(1.0 + ms + 0.3 * tokens)


def test_one_breakpoint_is_a_constant():
    assert [parsed(token_curve=[[8, 1.5]]).curve_ms(tokens) for tokens in (0, 8, 1000)] == [1.5, 1.5, 1.5]


@given(
    st.integers(0, 40_000),
    st.integers(0, 1000),
    st.integers(0, 10**6),
    st.integers(0, 2),
)
def test_a_step_is_the_sum_of_its_parts(prefill_tokens, decode_seqs, kv_tokens, which):
    profile = PROFILES[which]
    pairs = prefill_tokens * (prefill_tokens + 1) // 2
    step_ms = 1e3 * profile.step_duration_s(
        prefill_tokens=prefill_tokens, prefill_pairs=pairs, decode_seqs=decode_seqs, decode_kv_tokens=kv_tokens
    )
    expected = 1.0 + profile.curve_ms(prefill_tokens + decode_seqs) + 0.1 * prefill_tokens + 0.2 * pairs * 1e-6
    assert step_ms == pytest.approx(expected + 0.3 * decode_seqs + 0.4 * kv_tokens * 1e-3)


@given(st.integers(1, 2000), st.integers(0, 10**6), st.sampled_from([(), CURVE]))
def test_the_decode_line_is_the_step_without_prefill(seqs, kv_tokens, curve):
    profile = parsed(token_curve=curve)
    ms, ms_per_token = profile.decode_line(seqs)
    step_s = profile.step_duration_s(prefill_tokens=0, prefill_pairs=0, decode_seqs=seqs, decode_kv_tokens=kv_tokens)
    assert 1e-3 * (ms + ms_per_token * kv_tokens) == pytest.approx(step_s)


def test_what_is_looked_up_does_not_change_what_a_profile_is():
    used, fresh = parsed(token_curve=CURVE), parsed(token_curve=CURVE)
    used.decode_line(3)
    assert used == fresh
    assert hash(used) == hash(fresh)
    assert pickle.loads(pickle.dumps(used)) == fresh
    slower = msgspec.structs.replace(used, step_ms=5.0)
    assert slower.decode_line(3)[0] == pytest.approx(used.decode_line(3)[0] + 4.0), "no stale look-up comes along"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"step_ms": "fast"}, r"step_ms"),
        ({"step_ms": 0}, r"step_ms 0\.0; allowed: above 0"),
        ({"step_ms": -1}, r"step_ms"),
        ({"kv_blocks": 0}, r"kv_blocks"),
        ({"step_ms": None}, r"step_ms"),
        ({"stepms": 1}, r"stepms"),
        ({"kv_blocks": 10}, r"at least max_model_len 1000"),
        ({"decode_ms_per_seq": -0.1}, r"decode_ms_per_seq"),
        ({"token_curve": [[1, -2.0]]}, r"token_curve"),
        ({"token_curve": [[-1, 2.0]]}, r"token_curve"),
        ({"token_curve": [[1, 2.0], [1, 3.0]]}, r"token_curve has 1 tokens after 1; allowed: strictly rising"),
        ({"token_curve": [[8, 2.0], [4, 3.0]]}, r"token_curve has 4 tokens after 8; allowed: strictly rising"),
        ({"token_curve": [[1, 2.0], [9, 1.5]]}, r"token_curve falls from 2\.0 ms to 1\.5 ms at 9 tokens; allowed: never falling"),
        ({"weight_bytes": 100, "memory_bytes": 100, "tp": 2}, r"weight_bytes 100 of m do not fit into memory_bytes 100 \(2 x g\)"),
        ({"weight_bytes": 100, "memory_bytes": 1699}, r"kv_blocks 100 take 1600 bytes; allowed: up to 1599"),
        ({"swap_gb_per_s": -1}, r"swap_gb_per_s"),
    ],
)
def test_a_bad_field_is_named(changes, word):
    with pytest.raises(ProfileError, match=rf"mine\.json.*{word}"):
        parsed(**changes)


def test_a_step_may_take_nothing_but_its_curve():
    assert parsed(step_ms=0, token_curve=CURVE).decode_line(1)[0] == pytest.approx(2.3)


def test_what_just_fits_is_let_in():
    assert parsed(weight_bytes=100, memory_bytes=1700).weight_bytes == 100
    with pytest.raises(ProfileError, match="profile mine: weight_bytes 5"):
        check_profile(msgspec.structs.replace(parsed(), weight_bytes=5, memory_bytes=4))


def test_unknown_names_and_broken_files(tmp_path):
    with pytest.raises(ProfileError, match=r"allowed: .*demo-small"):
        load_profile("gigantic")
    with pytest.raises(ProfileError, match=r"allowed: h100-qwen3-8b, .*or the path of a \.json file"):
        load_profile("h100-qwen-8b")
    with pytest.raises(ProfileError, match="No such file"):
        load_profile(str(tmp_path / "none.json"))
    with pytest.raises(ProfileError, match=r"cut\.json"):
        parse_profile(b'{"name": ', origin="cut.json")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Qwen3-8B", "Qwen/Qwen3-8B", True),
        ("Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct", True),
        ("Llama-3.1-8B", "meta-llama/Meta-Llama-3-8B", True),
        ("Llama-2-13B", "meta-llama/Llama-2-13b-chat-hf", True),
        ("Qwen3-8B", "Qwen3-14B", False),
        ("Qwen3-30B-A3B", "Qwen3-30B", False),
    ],
)
def test_models_of_one_shape_go_by_many_names(one, other, same):
    assert same_model(one, other) is same
