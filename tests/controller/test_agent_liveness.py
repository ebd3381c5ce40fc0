"""How old an agent's last answer may be, and which agent is named when several are silent."""

from hmas.controller.config.derived import AGENT_NAMES
from hmas.controller.control.agent_liveness import ANSWER_S, START_S, UNASKED_S, AgentLiveness
from hmas.controller.core.messages import VIEW_FRESH_S

STALE_S = 15.0


def states(agents: AgentLiveness, now_s: float, running: tuple[str, ...] = AGENT_NAMES) -> dict[str, str]:
    found = agents.states(AGENT_NAMES, running, now_s, started_s=0.0, stale_after_s=STALE_S)
    return {one.name: one.state + (f" {one.waits_for}" if one.waits_for else "") for one in found}


def all_heard(now_s: float) -> AgentLiveness:
    agents = AgentLiveness()
    for name in AGENT_NAMES:
        agents.received(name, now_s)
    return agents


def test_an_old_answer_is_no_trouble_where_nothing_was_asked():
    agents = all_heard(100.0)
    agents.received("qos", 159.0)
    agents.received("meta", 159.0)
    agents.received("statera", 159.0)
    assert set(states(agents, 159.0).values()) == {"ok"}
    agents.asked(160.0)
    assert states(agents, 160.0 + 0.9 * ANSWER_S)["perception"] == "ok"


def test_a_request_without_an_answer_makes_an_agent_late_however_many_follow():
    agents = all_heard(100.0)
    for second in range(10):
        agents.asked(100.0 + second)
        agents.received("qos", 100.0 + second)
    found = states(agents, 109.0)
    assert (found["perception"], found["prediction"]) == ("late", "starved perception")
    agents.received("perception", 109.0)
    assert (states(agents, 109.0)["perception"], states(agents, 109.0)["prediction"]) == ("ok", "late")
    agents.received("prediction", 109.0)
    agents.asked(110.0)
    assert states(agents, 110.0)["prediction"] == "ok"


def test_an_agent_that_dropped_the_last_request_and_reports_is_not_late_but_one_that_is_gone_is():
    agents = all_heard(100.0)
    agents.asked(101.0)
    agents.reported("perception", 101.0 + UNASKED_S)
    assert states(agents, 121.0)["perception"] == "late", "it may still answer"
    agents.reported("perception", 101.1 + UNASKED_S)
    found = states(agents, 122.0)
    assert (found["perception"], found["prediction"]) == ("ok", "late")
    agents.reported("prediction", 122.0)
    assert states(agents, 122.0)["prediction"] == "ok"
    agents.asked(123.0)
    agents.asked(142.0)
    agents.reported("perception", 144.0)
    assert states(agents, 144.0)["perception"] == "late", "requests go on to come, and it answers none"


def test_qos_is_named_and_not_those_that_wait_for_its_views():
    agents = all_heard(100.0)
    found = states(agents, 100.0 + VIEW_FRESH_S + 0.1)
    assert found == {"perception": "ok", "prediction": "ok", "qos": "late", "meta": "starved qos", "statera": "starved qos"}
    agents.received("qos", 120.0)
    assert (states(agents, 120.0)["meta"], states(agents, 120.0)["statera"]) == ("late", "late")


def test_after_a_start_nothing_is_late_yet():
    agents = AgentLiveness()
    assert states(agents, START_S) == {"perception": "ok", "prediction": "ok", "qos": "starting", "meta": "starting", "statera": "starting"}
    assert states(agents, START_S + 1.0)["qos"] == "late"


def test_what_is_left_out_is_no_trouble_but_what_needs_it_is():
    found = states(all_heard(100.0), 100.0, ("perception", "meta"))
    assert found == {"perception": "ok", "prediction": "left out", "qos": "left out", "meta": "starved qos", "statera": "left out"}
