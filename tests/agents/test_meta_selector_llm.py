"""The language model as a selector: what it is asked, how strictly its answer is read, and what stands in for it when it fails."""

import asyncio
import itertools
import json
import re
import threading
import time
from typing import Any

import jsonschema
import msgspec
import pytest
from chat_kit import answer, chat_server, closed_port, raw, says, text_of
from control_kit import long_view, short_view
from hypothesis import given
from hypothesis import strategies as st
from typing_kit import known, of_type

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.make import make_meta
from hmas.agents.meta.selectors.base import Pending, Proposal, Reward, Situation
from hmas.agents.meta.selectors.llm import FAILURES, REST_S, LlmSelector
from hmas.agents.meta.selectors.llm_answer import REASON_CHARS, AnswerError, read, schema
from hmas.agents.meta.selectors.llm_endpoint import MAX_BYTES, ChatEndpoint
from hmas.agents.meta.selectors.rules import RuleSelector
from hmas.controller.config.loader import load_config
from hmas.controller.config.schema import AgentsConfig, Config
from hmas.controller.core.errors import ConfigError, HmasError
from hmas.controller.core.messages import MetaDecision
from hmas.controller.scheduling.policies.registry import POLICIES

EDF = Candidate(policy="edf")


def situation(now_s: float = 1000.0, **changes) -> Situation:
    values: dict[str, Any] = {
        "view": long_view(now_s),
        "current": EDF,
        "start": EDF,
        "allowed": tuple(sorted(POLICIES)),
        "since_s": 900.0,
        "now_s": now_s,
    }
    return Situation(**(values | changes))


def decided(selector: LlmSelector, now: Situation) -> Proposal:
    said = selector.propose(now)
    if isinstance(said, Proposal):
        return said
    try:
        found = said.compute()
    except HmasError as error:
        return said.failed(str(error))
    return said.finish(found)


def selector(url: str, timeout_s: float = 5.0, **more) -> LlmSelector:
    return LlmSelector(ChatEndpoint(url, timeout_s=timeout_s).ask, RuleSelector(), **more)


def test_a_whole_answer_becomes_a_proposal():
    told = answer("two-lane", parameters={"slow_quantile": "0.7"}, confidence=0.6, reason="head of line\n\x1b[31m blocked")
    with chat_server(says(told)) as chat:
        said = decided(selector(chat.url), situation())
    assert said.candidate == Candidate(policy="two-lane", parameters={"slow_quantile": 0.7})
    assert (said.source, said.confidence) == ("llm", 0.6)
    assert said.reason == "head of line [31m blocked"


def test_naming_what_runs_leaves_hints_and_window_as_they_are():
    current = Candidate(policy="two-lane", parameters={"slow_quantile": 0.8}, n_run=32)
    with chat_server(says(answer("two-lane"))) as chat:
        assert decided(selector(chat.url), situation(current=current)).candidate == current


def test_under_the_papers_guards_its_policies_are_the_papers():
    with chat_server(says(answer("two-lane", parameters={"slow_quantile": "0.7"}))) as chat:
        agents = AgentsConfig(
            meta_selector="llm", meta_llm_url=chat.url, meta_guards="paper", meta_agree=1, meta_policies="edf,two-lane", meta_judge=False
        )
        meta = make_meta(Config(agents=agents))
        said = []
        for step in range(4):
            meta.on_view(short_view(1000.0 + 10.0 * step), 1000.0 + 10.0 * step)
            said += meta.on_view(long_view(1000.0 + 10.0 * step), 1000.0 + 10.0 * step) + meta.think(1000.0 + 10.0 * step)
    text = chat.asked[0]["messages"][1]["content"]
    for told in ("gate_ms 0 to 600000, default 1000", "key 0 to 1, default 1"):
        assert told in text, text
    switched = [one for one in said if isinstance(one, MetaDecision) and one.policy == "two-lane"]
    assert switched[0].parameters == {"gate_ms": 1000.0, "slow_quantile": 0.7}


def test_what_it_is_asked():
    now = situation(view=long_view(1000.0, violation_rate=0.123, by_task={"QA": 0.75}), allowed=("edf", "two-lane"))
    with chat_server(says(answer("edf"))) as chat:
        asker = LlmSelector(ChatEndpoint(chat.url + "/openai/v1/", "secret").ask, RuleSelector(), model="qwen", max_tokens=99)
        asker.learn(Reward(situation=now, good=0.5, requests=77))
        decided(asker, now)
    body = chat.asked[0]
    assert chat.paths == ["/openai/v1/chat/completions"]
    assert chat.keys == ["Bearer secret"]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("qwen", 0, 99)
    form = body["response_format"]
    assert (form["type"], form["json_schema"]["strict"]) == ("json_schema", True)
    choices = form["json_schema"]["schema"]["properties"]["choice"]["anyOf"]
    assert [choice["properties"]["policy"]["enum"] for choice in choices] == [["edf"], ["two-lane"]]
    text = body["messages"][1]["content"]
    for told in (
        "violation_rate: 0.123",
        "QA 75%",
        "in force: edf, for 100 s",
        "50.0% good of 77",
        "slow_quantile 0.05 to 0.99",
        "gate_ms 0 to 600000, default 0",
    ):
        assert told in text, text
    assert POLICIES["two-lane"].summary in text
    assert "lottery" not in text, "what may not be chosen is not described"
    assert "bypass" not in json.dumps(body), "it is not the model's to call"


def test_the_schema_says_what_is_read():
    form = schema(("edf", "sjf"))
    jsonschema.Draft202012Validator.check_schema(form)
    good = json.loads(answer("sjf", parameters={"aging_ms_per_s": "3.0", "tpot_guard": None}))
    jsonschema.validate(good, form)
    assert read(json.dumps(good)).candidate(("edf", "sjf")) == Candidate(policy="sjf", parameters={"aging_ms_per_s": 3.0})
    for changed in (
        {"choice": {"policy": "fcfs", "parameters": {"tpot_guard": None}}},
        {"choice": good["choice"] | {"policy": "edf"}},
        {"choice": good["choice"] | {"parameters": {"aging_ms_per_s": 3.0, "tpot_guard": None}}},
        {"choice": good["choice"] | {"more": 1}},
        {"confidence": 1.5},
        {"more": 1},
        {"reason": "x" * (REASON_CHARS + 1)},
        {"bypass": True},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(good | changed, form)
        with pytest.raises(AnswerError):
            read(json.dumps(good | changed)).candidate(("edf", "sjf"))
    for name in form["required"]:
        with pytest.raises(AnswerError):
            read(json.dumps({key: value for key, value in good.items() if key != name}))


def test_a_pool_without_hints_has_a_schema_too():
    form = schema(("fcfs",))
    jsonschema.Draft202012Validator.check_schema(form)
    jsonschema.validate(json.loads(answer("fcfs", parameters={"tpot_guard": "0.5"})), form)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (answer("no-such"), "allowed: cfs, edf"),
        (answer("two-lane", parameters={"slow_quantile": "999999"}), "allowed: a number from"),
        (answer("fcfs", parameters={"slow_quantile": "0.5"}), "is unknown to policy"),
        (answer("sjf", parameters={"aging_ms_per_s": "many"}), "not of the schema"),
        (answer("edf", confidence=float("nan")), "not of the schema"),
        (answer("edf", more=1), "unknown field"),
        (answer("edf") + " I hope this helps", "not of the schema"),
        ("```json\n" + answer("edf") + "\n```", "not of the schema"),
        ("<html>", "not of the schema"),
        ("[" * 100_000, "not of the schema"),
        ("", "without a text"),
        (None, "without a text"),
    ],
)
def test_what_is_not_a_whole_answer_is_a_failure_in_words_and_the_rule_map_stands_in(text, words):
    view = long_view(1000.0, violation_rate=0.4, deadline_miss_share=0.3)
    fcfs = Candidate(policy="fcfs")
    with chat_server(says(text)) as chat:
        said = decided(selector(chat.url), situation(view=view, current=fcfs, start=fcfs))
    assert said.candidate.policy == "robust-edf", "the rule map's word"
    assert said.source == "rules"
    assert "the language model is silent" in said.reason
    assert words in said.reason
    assert len(said.reason) < 800
    assert said.reason.isprintable()


ODD = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
CHANGED = st.dictionaries(st.sampled_from(["choice", "confidence", "reason", "\x1b[2J"]), ODD, max_size=3)


@given(st.text(max_size=200) | ODD.map(json.dumps) | CHANGED.map(lambda changes: json.dumps(json.loads(answer("edf")) | changes)))
def test_no_answer_breaks_the_selector_or_reaches_a_terminal_raw(text):
    said = decided(LlmSelector(lambda _body: text, RuleSelector()), situation(allowed=("edf", "sjf")))
    assert said.candidate.policy in {"edf", "sjf"}
    assert said.source in {"llm", "rules"}
    assert said.reason.isprintable()
    assert 0.0 <= said.confidence <= 1.0


def endless(handler, _body):
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.end_headers()
    while True:
        handler.wfile.write(b" " * 65536)


def large(handler, _body):
    raw(handler, text_of("x" * (10 << 20)))


def silent(chat):
    return lambda _handler, _body: chat.over.wait(30) and None


def drips(chat):
    def behave(handler, _body):
        data = text_of(answer("edf"))
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        for byte in data:
            handler.wfile.write(bytes([byte]))
            if chat.over.wait(0.05):
                return

    return behave


def half(handler, _body):
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    handler.wfile.write(b'{"choices"')
    handler.close_connection = True


BROKEN: dict[str, tuple[Any, str, bool]] = {
    "500": (lambda handler, _: raw(handler, b"upstream is down", status=500), "HTTP 500", False),
    "redirect": (lambda handler, _: raw(handler, b"", status=302), "HTTP 302", False),
    "html": (lambda handler, _: raw(handler, b"<html>login</html>", kind="text/html"), "not a chat completion", False),
    "binary": (lambda handler, _: raw(handler, bytes(range(256))), "not a chat completion", False),
    "brackets": (lambda handler, _: raw(handler, b'{"usage":' + b"[" * 5_000), "not a chat completion", False),
    "no choice": (lambda handler, _: raw(handler, b'{"choices": []}'), "without a choice", False),
    "cut off": (says(answer("sjf")[:30], "length"), "cut off", False),
    "endless": (endless, f"more than {MAX_BYTES} bytes", False),
    "10 MB": (large, f"more than {MAX_BYTES} bytes", False),
    "half": (half, "broke off", False),
    "silent": (silent, "no answer in time", True),
    "drips": (drips, "no answer in time", True),
    "not http": (lambda handler, _: handler.wfile.write(b"220 smtp ready\r\n\r\n") and None, "", False),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_server_is_told_in_words_within_the_time(name):
    behave, words, needs_chat = BROKEN[name]
    with chat_server(behave, needs_chat=needs_chat) as chat:
        begun_s = time.monotonic()
        said = decided(selector(chat.url, timeout_s=1.0), situation())
        assert time.monotonic() - begun_s < 3.0
    assert said.source == "rules"
    assert "the language model is silent" in said.reason
    assert words in said.reason


def test_a_dead_endpoint_is_left_alone_longer_each_time_and_found_again():
    with chat_server(lambda handler, _: raw(handler, b"", status=503)) as chat:
        asker, asked_s = selector(chat.url), []
        for now_s in range(0, 3600, 10):
            before = len(chat.asked)
            said = decided(asker, situation(float(now_s)))
            asked_s += [now_s] * (len(chat.asked) - before)
            if now_s and len(chat.asked) == before:
                assert re.search(r"left alone for another \d+ s: HTTP 503", said.reason)
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked_s)]
    assert gaps[: FAILURES - 1] == [10] * (FAILURES - 1)
    assert gaps[FAILURES - 1 :] == sorted(gaps[FAILURES - 1 :])
    assert gaps[FAILURES - 1] == REST_S
    assert len(asked_s) < 10
    with chat_server(says(answer("sjf"))) as chat:
        asker.ask = ChatEndpoint(chat.url).ask
        assert decided(asker, situation(3600.0 + 900.0)).source == "llm"
        assert decided(asker, situation(3600.0 + 910.0)).source == "llm"


def test_nobody_there():
    said = decided(selector(closed_port()), situation())
    assert said.source == "rules"
    assert "language model is silent" in said.reason


def test_it_is_put_together_as_configured(tmp_path, monkeypatch):
    monkeypatch.setenv("META_KEY", "k1")
    with chat_server(says(answer("edf"))) as chat:
        agents = AgentsConfig(meta_selector="llm", meta_llm_url=chat.url, meta_llm_model="m", meta_llm_key_env="META_KEY")
        meta = make_meta(Config(agents=agents))
        for step in range(40):
            meta.on_view(long_view(1000.0 + 0.5 * step, violation_rate=0.0), 1000.0 + 0.5 * step)
            meta.think(1000.0 + 0.5 * step)
    assert chat.keys[0] == "Bearer k1"
    with pytest.raises(ConfigError, match=r"agents\.meta_llm_url is empty"):
        make_meta(Config(agents=AgentsConfig(meta_selector="llm")))
    path = tmp_path / "hmas.yaml"
    path.write_text("agents:\n  meta_selector: llm\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"meta_llm_url"):
        load_config(path, {})
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"meta_llm_url": "ftp://x"}, AgentsConfig)


async def test_the_agent_asks_in_its_thread_while_its_loop_goes_on():
    from hmas.agents.meta.agent import make_agent
    from hmas.agents.runtime.work import Lane

    came, free = threading.Event(), threading.Event()

    def slowly(handler, body):
        came.set()
        free.wait(10.0)
        says(answer("sjf"))(handler, body)

    with chat_server(slowly) as chat:
        agents = AgentsConfig(meta_selector="llm", meta_llm_url=chat.url)
        agent, lane = make_agent(Config(agents=agents)), Lane("meta")
        said = agent.handle([long_view(1000.0)], 1000.0)
        beside = known(agent.beside(1000.0))
        answering = asyncio.ensure_future(lane.run(beside.compute))
        assert await asyncio.to_thread(came.wait, 10.0)
        assert not answering.done(), "the loop is free while the answer is awaited"
        free.set()
        await answering
        said += beside.finish(answering.result(), 1000.5)
        lane.close()
    last = of_type(MetaDecision, said[-1])
    assert last.source == "llm"
    assert last.policy == "robust-edf", "wished once: not followed yet"


def test_an_address_that_cannot_be_one_is_told():
    assert "language model is silent" in decided(selector("http://" + "x" * 300), situation()).reason
    for url in ("http://127.0.0.1:99999", "http://[::1"):
        with pytest.raises(ConfigError, match=r"agents\.meta_llm_url is 'http://.*allowed: http://HOST:PORT"):
            make_meta(Config(agents=AgentsConfig(meta_selector="llm", meta_llm_url=url)))


def test_the_prompt_is_bounded_and_takes_odd_figures():
    asker = LlmSelector(lambda body: answer("edf"), RuleSelector())
    odd = long_view(1000.0, violation_rate=float("nan"), total_cv=float("inf"), by_tenant={f"t{n}": 0.001 for n in range(1000)})
    said = asker.propose(situation(view=odd, since_s=float("-inf")))
    assert isinstance(said, Pending)
    assert len(asker.body(situation(view=odd))) < 16_000
