"""Fleets and cases as people write them down, and what is refused."""

from typing import Any

import msgspec
import pytest

from hmas.controller.core.errors import ConfigError, TraceError
from hmas.engines.sim.profile import load_profile
from hmas.planning.case import AGENTS, PRESETS, Case, SloTarget, read_admission, read_agents, read_policy, read_slo
from hmas.planning.fleet import read_fleet
from hmas.planning.loads import open_load, states_seed

SMALL = load_profile("demo-small")


def test_the_short_form():
    fleet = read_fleet("2xdemo-small, demo-small:n_run=48:token_budget=1024:price=1.9")
    assert [(group.kind.name, group.count) for group in fleet.groups] == [
        ("demo-small", 2),
        ("demo-small:n_run=48:token_budget=1024", 1),
    ]
    assert fleet.name == "2xdemo-small,1xdemo-small:n_run=48:token_budget=1024"
    assert (fleet.size, fleet.price) == (3, 1.9)
    assert list(fleet.instances()) == ["demo-small-1", "demo-small-2", "demo-small-3"]
    assert [kind.n_run for kind in fleet.instances().values()] == [SMALL.max_num_seqs, SMALL.max_num_seqs, 48]
    assert read_fleet("2xdemo-small,3xdemo-small").groups[0].count == 5


def test_one_more_and_another_window():
    fleet = read_fleet("2xdemo-small")
    other = read_fleet("demo-small:n_run=8").kinds[0]
    assert fleet.with_one_more(fleet.kinds[0]).name == "3xdemo-small"
    assert fleet.with_one_more(other).name == "2xdemo-small,1xdemo-small:n_run=8"
    assert fleet.with_window(8).name == "2xdemo-small:n_run=8"


def test_a_profile_of_ones_own(tmp_path):
    (tmp_path / "mine.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(SMALL, name="mine", max_num_seqs=32)))
    assert read_fleet(f"3x{tmp_path / 'mine.json'}").name == "3xmine"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no instances"),
        ("2xnothing", r"profile 'nothing' is unknown.*demo-small"),
        ("2xdemo-small:n_run=9999", "n_run of demo-small is 9999; allowed: 1 to its max_num_seqs 256"),
        ("2xdemo-small:n_run=many", "n_run"),
        ("2xdemo-small:windows=2", r"'windows=2'.*allowed.*n_run=VALUE"),
        ("2xdemo-small:n_run=2:n_run=3", "each once"),
        ("0xdemo-small", ">= 1"),
        ("9999xdemo-small", "<= 4096"),
        ("3000xdemo-small,3000xdemo-small:n_run=2", "6000 instances; allowed: 4096 at most"),
        ("2xnowhere.json", "nowhere.json: No such file"),
    ],
)
def test_what_no_fleet_is(text, said):
    with pytest.raises(ConfigError, match=said):
        read_fleet(text)


def test_an_instance_too_small_for_the_weights_is_refused(tmp_path):
    heavy = msgspec.structs.replace(SMALL, memory_bytes=20 << 30, weight_bytes=40 << 30)
    (tmp_path / "heavy.json").write_bytes(msgspec.json.encode(heavy))
    with pytest.raises(ConfigError, match="weight_bytes"):
        read_fleet(f"1x{tmp_path / 'heavy.json'}")


def test_the_model_must_be_served():
    mixed = read_fleet("1xdemo-small,1xa100-qwen3-8b")
    with pytest.raises(ConfigError, match=r"profile a100-qwen3-8b is for model 'Qwen3-8B', requests ask for 'Llama-3\.1-8B'"):
        mixed.model()
    with pytest.raises(ConfigError, match="profile demo-small is for model"):
        read_fleet("1xdemo-small").model("Qwen3-8B")
    assert read_fleet("1xdemo-small,1xa100-qwen3-8b:model=Llama-3.1-8B").model() == "Llama-3.1-8B"
    assert read_fleet("1xdemo-small").model("meta-llama/Llama-3.1-8B-Instruct") == "meta-llama/Llama-3.1-8B-Instruct"


def test_admission():
    assert read_admission("gateway") == PRESETS["gateway"]
    assert read_admission("") == PRESETS["gateway"]
    mine = read_admission("shed,late_service_share=0.25,guard=0.3,queue=50,fence=yes")
    assert (mine.overdue, mine.late_service_share, mine.tpot_guard, mine.queue_limit, mine.fence) == ("shed", 0.25, 0.3, 50, True)
    for text, said in (
        ("closed", "'closed'; allowed: gateway, open, shed"),
        ("guard=2", "guard is 2; allowed: 0 to 1"),
        ("queue=0", "queue is 0; allowed: 1 or more"),
        ("overdue=lose", "overdue"),
        ("fence=perhaps", "allowed: yes or no"),
        ("margin=1.0", "margin is 1; allowed: 0 to 0.99"),
    ):
        with pytest.raises(ConfigError, match=said):
            read_admission(text)


def test_agents_policies_and_targets():
    assert read_agents("none") == ()
    assert read_agents("all") == AGENTS
    assert read_agents("meta+statera") == ("statera", "meta")
    with pytest.raises(ConfigError, match="perception; allowed: none, all, statera, meta"):
        read_agents("perception")
    assert read_policy("edf") == ("edf", {})
    name, parameters = read_policy("two-lane:threshold_ms=500")
    assert (name, parameters) == ("two-lane", {"threshold_ms": 500.0})
    for text in ("lifo", "two-lane:threshold_ms=soon", "edf:threshold_ms=5"):
        with pytest.raises(ConfigError):
            read_policy(text)
    assert read_slo("ttft=2000,tpot=60,share=0.99", share=True) == (SloTarget(ttft_ms=2000, tpot_ms=60), 0.99)
    assert read_slo("ttft=500") == (SloTarget(ttft_ms=500), 0.95)
    for text in ("ttft=0", "tpot=fast", "share=1.5", "e2e=5"):
        with pytest.raises(ConfigError, match="slo: "):
            read_slo(text)


def case(**more):
    values: dict[str, Any] = {"workload": "poisson:rate=10,duration=100", "fleet": read_fleet("1xdemo-small")}
    return Case(**(values | more))


def arrivals(load):
    return list(load.feed("m", None).arrivals)


def times(load):
    return [arrival.request.arrival_s for arrival in arrivals(load)]


def test_a_load_is_cut_scaled_and_given_targets():
    whole = open_load(case())
    cut = open_load(case(duration_s=20.0))
    assert cut.duration_s == 20.0
    assert cut.count == sum(at_s < 20.0 for at_s in times(whole))
    few = open_load(case(limit=50))
    assert few.count == 50
    dense = open_load(case(load=2.0))
    assert (dense.count, dense.duration_s) == (whole.count, whole.duration_s / 2)
    assert dense.rate_rps == pytest.approx(2 * whole.rate_rps)
    assert dense.own_rps == whole.own_rps
    assert (dense.output_tokens == whole.output_tokens).all()
    aimed = arrivals(open_load(case(slo=SloTarget(tpot_ms=33.0))))
    assert {one.request.declared_slo.tpot_ms for one in aimed} == {33.0}
    assert [one.request.declared_slo.ttft_ms for one in aimed] == [one.request.declared_slo.ttft_ms for one in arrivals(whole)]
    lengths = whole.prompt_tokens + whole.output_tokens
    assert whole.longer_than(lengths.max()) == 0
    assert whole.longer_than(lengths.max() - 1) == (lengths == lengths.max()).sum()


def test_seeds_come_from_the_case_unless_the_workload_names_one():
    assert times(open_load(case(seed=1))) != times(open_load(case(seed=2)))
    own = "poisson:rate=10,duration=100,seed=7"
    assert states_seed(own)
    assert not states_seed("poisson:rate=10")
    assert times(open_load(case(workload=own, seed=1))) == times(open_load(case(workload=own, seed=2)))


def test_cases_say_what_they_cannot_do():
    with pytest.raises(TraceError, match="workload is 'nothing'; allowed: one of poisson"):
        open_load(case(workload="nothing"))
    with pytest.raises(ConfigError, match="'lifo' is unknown"):
        case(policy="lifo").check()
    with pytest.raises(ConfigError, match="router is 'random'; allowed: one of default, latency-aware, session-affine"):
        case(router="random").check()


def test_a_key_names_all_of_the_content(tmp_path):
    assert case().key == case().key
    keys = {case().key, case(seed=2).key, case(load=1.5).key, case(policy="sjf").key, case(agents=("meta",)).key}
    (tmp_path / "demo-small.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(SMALL, step_ms=18.0)))
    keys.add(case(fleet=read_fleet(f"1x{tmp_path / 'demo-small.json'}")).key)
    assert len(keys) == 6
    assert msgspec.json.decode(msgspec.json.encode(case()), type=Case) == case()
