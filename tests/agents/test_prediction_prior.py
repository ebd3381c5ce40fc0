"""What is known of an engine before any measurement: hardware by its names, speeds of profiles and of data sheets."""

import pytest

from hmas.agents.prediction.hardware import GPUS, SHAPES, gpu_of, setup_of, shape_of
from hmas.agents.prediction.prior import hardware_of, prior_of, speed_of
from hmas.controller.core.errors import ModelError
from hmas.engines.sim.profile import load_profile


def test_hardware_is_known_by_many_names_and_refused_by_its_own():
    assert gpu_of("NVIDIA A100") == gpu_of("a100") == GPUS["A100"]
    assert gpu_of("h100_sxm") == GPUS["H100"]
    assert shape_of("meta-llama/Llama-3.1-8B-Instruct") == SHAPES["llama-3-8b"]
    with pytest.raises(ModelError, match="gpu 'abacus' is not known; allowed: T4"):
        setup_of("abacus", 1, "llama-7b")
    with pytest.raises(ModelError, match="model 'tiny' is not known"):
        setup_of("A100", 1, "tiny")
    one, four = setup_of("A100", 1, "llama-13b"), setup_of("A100", 4, "llama-13b")
    assert one.read_ms == pytest.approx(4 * four.read_ms)
    assert one.read_ms == pytest.approx(2 * 13.02 / 1555 * 1000)
    assert (one.exchange_ms, four.split) == (0.0, 4)
    assert setup_of("T4", 1, "llama-13b").room_tokens == 0.0


def test_a_profile_gives_the_speed_of_its_steps():
    for name in ("h100-llama-3-8b", "demo-small", "a100-qwen3-8b-tp2"):
        profile = load_profile(name)
        speed = speed_of(profile)
        for sequences in (1, 32):
            step_ms = 1e3 * profile.step_duration_s(
                prefill_tokens=0, prefill_pairs=0, decode_seqs=sequences, decode_kv_tokens=sequences * 500
            )
            assert speed.decode_ms(sequences) == pytest.approx(step_ms, rel=0.02)
        assert speed.decode_ms(1) > profile.step_ms, "a step costs more than its fixed part"
    assert hardware_of(load_profile("a100-qwen3-8b-tp2")) == "2xa100_sxm"


def test_data_sheets_give_a_prior_too():
    fast, name = prior_of("2xH100/llama-13b")
    slow, _ = prior_of("2xA10/llama-13b")
    assert name == "2xh100"
    assert fast.base_ms < slow.base_ms
    assert 5.0 < fast.decode_ms(1) < 30.0
    with pytest.raises(ModelError, match="or GPUs and model"):
        prior_of("warp-drive")
    with pytest.raises(ModelError, match="gpu 'Abacus'"):
        prior_of("2xAbacus/llama-7b")
