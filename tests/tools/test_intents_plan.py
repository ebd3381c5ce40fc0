"""What becomes of a model's answer to an operator's words: the override where it holds, and the reason where it does not."""

import json
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmas.agents.meta.selectors.llm_answer import AnswerError
from hmas.controller.config.override_format import LIMITS
from hmas.controller.core.errors import ConfigError, OverrideError
from hmas.intents.answer import SETTINGS, question, schema
from hmas.intents.plan import TENANTS_MOST, WEIGHT_MOVE_MOST, Plan, Site, plan, site_of
from hmas.intents.times import DEFAULT_S, LONGEST_S, expiry_s
from hmas.intents.words import digits, factors, named, numbers, strangers

NOW = datetime(2026, 11, 25, 10, 12, tzinfo=UTC)  # a Wednesday
FREE = {name: 1.0 if name in ("weight", "concurrency_share") else 0 for name in SETTINGS}
SITE = Site(
    tenants={"team-a": FREE, "team-b": FREE, "batch-jobs": FREE | {"tokens_per_minute": 600_000}},
    models=("llama-3-8b",),
    now_s=NOW.timestamp(),
)


def answer(*changes: tuple[str, str, str], ends: str = "not named", refuse: str = "no") -> str:
    said = [{"tenant": tenant, "setting": setting, "value": value} for tenant, setting, value in changes]
    return json.dumps({"refuse": refuse, "changes": said, "ends": ends})


def made(words: str, text: str, **more) -> Plan:
    return plan(text, words, SITE, override_id="i", author="alice", zone=UTC, **more)


A_FIRST, B_FIRST = ("team-a", "weight", "first"), ("team-b", "weight", "first")
BATCH_LAST = ("batch-jobs", "weight", "last")


def test_the_sentence_of_the_manual():
    words = "release day: team-a's chat comes first until six, batch may wait"
    found = made(words, answer(A_FIRST, BATCH_LAST, ends="until 6"))
    assert [(change.tenant, change.setting, change.before, change.after) for change in found.changes] == [
        ("team-a", "weight", 1.0, 4.0),
        ("batch-jobs", "weight", 1.0, 0.25),
    ]
    override = found.override
    assert (override.id, override.author, override.reason) == ("i", "alice", words)
    assert override.tenant_weights == {"team-a": 4.0, "batch-jobs": 0.25}
    assert override.expires_s == NOW.replace(hour=18, minute=0).timestamp()


def test_limits_become_what_an_override_file_holds():
    words = "batch-jobs: half the tokens a minute, a quarter of the slots, 4 running at once, for 2 hours"
    changes = [("tokens_per_minute", "x0.5"), ("concurrency_share", "25%"), ("max_running", "4")]
    found = made(words, answer(*(("batch-jobs", *change) for change in changes), ends="for 2 hours")).override
    assert found.tenant_limits == {"batch-jobs": {"tokens_per_minute": 300_000, "concurrency_share": 0.25, "max_running": 4}}
    assert found.expires_s == SITE.now_s + 7200
    lifted = made("lift the token quota of batch-jobs", answer(("batch-jobs", "tokens_per_minute", "unlimited"))).override
    assert lifted.tenant_limits == {"batch-jobs": {"tokens_per_minute": 0}}
    assert lifted.expires_s == SITE.now_s + DEFAULT_S


def test_the_operators_own_span_stands_in_for_the_time_in_the_words():
    assert made("team-a first", answer(A_FIRST), lasts_s=60.0).override.expires_s == SITE.now_s + 60.0
    with pytest.raises(AnswerError, match="in force for 192 h; allowed: at most 168 h"):
        made("team-a first", answer(A_FIRST), lasts_s=8 * 86_400.0)


REFUSED = {
    "no JSON": ("team-a first", "team-a goes first!", "not of the schema"),
    "half": ("team-a first", answer(A_FIRST)[:40], "not of the schema"),
    "more members": ("team-a first", '{"refuse": "no", "changes": [], "ends": "not named", "policy": "edf"}', "unknown field"),
    "another refusal": ("team-a first", answer(refuse="because"), "refuse is 'because'; allowed: no, contradiction"),
    "refused": ("team-a first and last", answer(refuse="contradiction"), "the model does not follow the words: contradiction"),
    "nothing": ("team-a first", answer(), "the answer sets nothing"),
    "unknown tenant": ("team-z first", answer(("team-z", "weight", "first")), "'team-z', which is no tenant; tenants: team-a, team-b"),
    "another for it": ("team z first", answer(A_FIRST), "the words name 'team z', which is no tenant"),
    "misspelt": ("bacth-jobs may wait", answer(BATCH_LAST), "the words name 'bacth-jobs', which is no tenant"),
    "tenant of no one": (
        "red first",
        answer(("red", "weight", "first")),
        "changes[0].tenant is 'red'; allowed: team-a, team-b, batch-jobs",
    ),
    "not named": ("team-a first", answer(B_FIRST), "changes[0].tenant is 'team-b', which the words do not name; they name team-a"),
    "left out": ("team-a first, team-b last", answer(A_FIRST), "the answer sets nothing for team-b, which the words name"),
    "unknown setting": ("team-a first", answer(("team-a", "policy", "first")), "changes[0].setting is 'policy'; allowed: weight"),
    "twice": ("team-a first", answer(A_FIRST, ("team-a", "weight", "more")), "sets weight of team-a a second time"),
    "other number": (
        "team-a weight 3",
        answer(("team-a", "weight", "4")),
        "changes[0].value is '4' for weight of team-a; the words name 3",
    ),
    "number of a time": ("team-a weight up until 6", answer(("team-a", "weight", "6"), ends="until 6"), "the words name none"),
    "number unused": ("team-a weight 3", answer(A_FIRST), "the words name 3, and the answer does not use it"),
    "no weight": ("team-a 3 at once", answer(("team-a", "weight", "3")), "where the words name no weight"),
    "other limit": ("team-a 3 requests a minute", answer(("team-a", "max_running", "3")), "the words do not speak of it"),
    "policy": ("use edf for team-a", answer(A_FIRST), "the words speak of 'edf'; allowed: tenants' weights and limits"),
    "deleted": ("delete team-a", answer(A_FIRST), "the words speak of 'delete'"),
    "up for down": ("team-a may wait", answer(A_FIRST), "now 1; the words lower it"),
    "down for up": ("team-a first", answer(("team-a", "weight", "last")), "now 1; the words raise it"),
    "too far": ("team-a weight 9", answer(("team-a", "weight", "9")), "now 1; allowed in one intention: 0.125 to 8"),
    "zero": ("team-a 0 at once", answer(("team-a", "max_running", "0")), "0 would be no limit; allowed: more than 0, or unlimited"),
    "half a request": ("team-a 2.5 at once", answer(("team-a", "max_running", "2.5")), "allowed: a whole number"),
    "level of a limit": ("less requests for team-a", answer(("team-a", "requests_per_minute", "less")), "are for weight"),
    "not lifted": ("team-a 5 at once", answer(("team-a", "max_running", "unlimited")), "only for a limit that the words lift"),
    "weight lifted": ("no limit for team-a", answer(("team-a", "weight", "unlimited")), "only for a limit that the words lift"),
    "other factor": ("double team-a's weight", answer(("team-a", "weight", "x3")), "the words name the factors 2"),
    "factor of nothing": ("double team-a's requests", answer(("team-a", "requests_per_minute", "x2")), "there is no limit now"),
    "percent of requests": (
        "team-a 20% requests",
        answer(("team-a", "requests_per_minute", "20%")),
        "a percentage only for concurrency_share",
    ),
    "share above 1": ("team-a 40 slots", answer(("team-a", "concurrency_share", "40")), "allowed: number above 0 and at most 1"),
    "one slot": ("only one slot for team-a", answer(("team-a", "concurrency_share", "1")), "1 would be no limit; allowed: a percentage"),
    "minute of a rate": (
        "team-a 3 requests a minute until six",
        answer(("team-a", "requests_per_minute", "3"), ends="for 1 minutes"),
        "the words name no span of time",
    ),
    "burst alone": ("team-a burst 1e9", answer(("team-a", "burst_tokens", "9999999999")), "the words name"),
    "no end": ("team-a first until six", answer(A_FIRST), "the words name a time"),
    "end of its own": ("team-a first", answer(A_FIRST, ends="until 18:00"), "the words name no time; allowed: 'not named'"),
    "for ever": ("team-a first until further notice", answer(A_FIRST), "the words ask for no end; allowed: at most 7 days"),
    "too long": ("team-a first for 8 days", answer(A_FIRST, ends="for 8 days"), "192.0 h from now; allowed: more than 0 and at most 168 h"),
    "other span": ("team-a first for 2 hours", answer(A_FIRST, ends="for 3 hours"), "the words name 120 minutes"),
    "other hour": ("team-a first until six", answer(A_FIRST, ends="until 17:00"), "Wednesday 17:00; the words name no such hour"),
    "other minute": ("team-a first until 18:30", answer(A_FIRST, ends="until 18:45"), "the words name no such minute"),
    "later six": ("team-a first until six", answer(A_FIRST, ends="until 06:00"), "without a day, and it comes sooner"),
    "may is no month": ("batch may wait until six", answer(BATCH_LAST, ends="until 06:00"), "without a day, and it comes sooner"),
    "other half": ("team-a first until 6 pm", answer(A_FIRST, ends="until 6 am"), "the other half of the day"),
    "other day": ("team-a first until friday noon", answer(A_FIRST, ends="until thursday noon"), "the words name friday"),
    "day left out": ("team-a first until tomorrow noon", answer(A_FIRST, ends="until noon"), "the words name tomorrow"),
    "clock left out": ("team-a first until friday noon", answer(A_FIRST, ends="until friday"), "a time of the day, too"),
    "passed": ("team-a first until 9:00 today", answer(A_FIRST, ends="until today 09:00"), "-1.2 h from now"),
    "no date": ("team-a first until 31 November", answer(A_FIRST, ends="until 2026-11-31"), "day is out of range for month"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_hold_is_refused_with_the_reason(name):
    words, text, reason = REFUSED[name]
    with pytest.raises((AnswerError, OverrideError)) as refused:
        made(words, text)
    assert reason in str(refused.value)


TIMES = {
    "until six": ("until 6", "25 18:00"),
    "until half past four": ("until 4:30", "25 16:30"),
    "until 18:00": ("until 18:00", "25 18:00"),
    "until 09:00": ("until 09:00", "26 09:00"),
    "until noon": ("until noon", "25 12:00"),
    "until midnight": ("until midnight", "26 00:00"),
    "tonight": ("until midnight", "26 00:00"),
    "for the rest of the day": ("until midnight", "26 00:00"),
    "until Friday noon": ("until friday noon", "27 12:00"),
    "until Friday at six": ("until friday 6", "27 18:00"),
    "until Fri 9 am": ("until friday 9 am", "27 09:00"),
    "until Wednesday": ("until wednesday", "02 00:00"),
    "until tomorrow": ("until tomorrow", "26 00:00"),
    "until the end of Friday": ("until friday midnight", "28 00:00"),
    "over the weekend": ("until monday", "30 00:00"),
    "until 28 November 8:00": ("until 2026-11-28 8:00", "28 08:00"),
    "until seven tomorrow morning": ("until tomorrow 7", "26 07:00"),
    "for two hours": ("for 2 hours", "25 12:12"),
    "for the next hour": ("for 1 hours", "25 11:12"),
    "for forty-five minutes": ("for 45 minutes", "25 10:57"),
    "for half an hour": ("for 30 minutes", "25 10:42"),
    "for an hour and a half": ("for 90 minutes", "25 11:42"),
    "for 2 and a half hours": ("for 2.5 hours", "25 12:42"),
    "the next 90m": ("for 90 minutes", "25 11:42"),
    "for a week": ("for 7 days", "02 10:12"),
}


@pytest.mark.parametrize("words", TIMES)
def test_code_resolves_the_time(words):
    ends, known = TIMES[words]
    found = datetime.fromtimestamp(expiry_s(ends, words, SITE.now_s, UTC), UTC)
    assert f"{found:%d %H:%M}" == known


def test_a_day_on_which_the_clock_changes():
    zone = ZoneInfo("Europe/Berlin")
    saturday_s = datetime(2026, 10, 24, 20, 0, tzinfo=zone).timestamp()
    found_s = expiry_s("until sunday noon", "until sunday noon", saturday_s, zone)
    assert found_s == datetime(2026, 10, 25, 12, 0, tzinfo=zone).timestamp()
    assert found_s - saturday_s == timedelta(hours=17).total_seconds()


def test_numbers_are_read_however_they_are_written():
    assert digits("Two hundred and fifty thousand") == "250000"
    assert numbers("twenty-five") == {25.0}
    assert numbers("60,000 tokens, 1.5 million tokens, 3k") == {60_000.0, 1_500_000.0, 3000.0}
    assert numbers("30% and three quarters") >= {30.0, 0.3, 0.75}
    assert factors("cut it by 30%") == {0.7, 1.3}
    assert 0.3 in factors("cut it to 30%")
    assert factors("twice") == {2.0}
    assert factors("4 times, x5") == {4.0, 5.0}


def test_tenants_are_named_in_full_by_a_part_or_as_a_group():
    tenants = ["team-a", "team-a-chat", "batch-jobs"]
    assert named("Team A's chat", tenants) == ({"team-a-chat"}, {"team-a-chat"})
    assert named("team_a and the batch", tenants) == ({"team-a"}, {"team-a", "batch-jobs"})
    assert named("everyone else", tenants) == (set(), set(tenants))
    assert named("a job for the chatroom", ["a", "team-b"]) == (set(), set())
    assert strangers("team-a's llama-3-8b, gpu-0 and the half-done work", tenants, ["llama-3-8b"]) == []
    assert strangers("team-c", tenants, []) == ["team-c"]


def test_the_schema_says_what_is_read():
    form = schema(list(SITE.tenants))
    jsonschema.Draft202012Validator.check_schema(form)
    for ends, _ in TIMES.values():
        jsonschema.validate(json.loads(answer(A_FIRST, ends=ends)), form)
    for bad in (answer(("team-z", "weight", "first")), answer(("team-a", "weight", "-1")), answer(A_FIRST, ends="until whenever")):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(json.loads(bad), form)
    assert tuple(SETTINGS) == ("weight", *LIMITS), "an intention can set all that an override sets for a tenant"


def test_the_question_has_now_the_tenants_and_what_is_in_force():
    body = json.loads(question("batch may wait", SITE.tenants, SITE.models, SITE.now_s, UTC, model="m"))
    assert (body["model"], body["temperature"]) == ("m", 0)
    text = body["messages"][1]["content"]
    for told in ("Wednesday 2026-11-25 10:12", "- batch-jobs: weight 1, tokens_per_minute 600000", "llama-3-8b", '"batch may wait"'):
        assert told in text
    enum = body["response_format"]["json_schema"]["schema"]["properties"]["changes"]["items"]["properties"]["tenant"]["enum"]
    assert enum == list(SITE.tenants)


def status(*names: str) -> dict:
    return {"tenants": [{"name": name, **FREE, "goodput": {}} for name in names], "instances": [{"models": ["m"]}, {"models": ["m"]}]}


def test_the_site_is_bounded_and_has_what_the_words_name():
    many = [f"t{number:03}" for number in range(200)]
    found = site_of(status(*many, "other", "odd name\n"), "t199 first", 0.0)
    assert len(found.tenants) == TENANTS_MOST
    assert "t199" in found.tenants
    assert found.models == ("m",)
    with pytest.raises(ConfigError, match=r"the gateway knows no tenant; .* with requests in the last minute"):
        site_of(status("other"), "t199 first", 0.0)


TEXTS = st.sampled_from(
    [
        "team-a first until six, batch may wait",
        "everyone: 5 at once",
        "double team-a's weight for 2 hours",
        "no limits tonight",
        "weight 0.2",
    ]
)
CHANGES = st.tuples(
    st.sampled_from([*SITE.tenants, "x"]),
    st.sampled_from([*SETTINGS, "x"]),
    st.sampled_from(["first", "last", "x2", "x0", "5", "0", "0.2", "unlimited", "20%", "first\n"]) | st.text(max_size=5),
)
ENDS = st.sampled_from(["not named", "until 6", "until midnight", "for 2 hours", "until noon", "until 6\n"]) | st.text(max_size=9)


PIECES = (
    "team-a team-b batch one twelve dozen hundred million m k half third until for by at past to friday noon 6 18:30 25% x2 00 99999999"
)
SENTENCES = st.lists(st.sampled_from(PIECES.split()), max_size=14).map(" ".join) | st.text(max_size=80)


@given(TEXTS | SENTENCES, st.lists(CHANGES, max_size=4), ENDS)
def test_no_answer_breaks_it_or_passes_its_bounds(words, changes, ends):
    try:
        found = made(words, answer(*changes, ends=ends))
    except (AnswerError, OverrideError):
        return
    assert found.changes
    assert found.override.expires_s is not None
    assert SITE.now_s < found.override.expires_s <= SITE.now_s + LONGEST_S
    for change in found.changes:
        if change.setting == "weight":
            assert change.before / WEIGHT_MOVE_MOST <= change.after <= change.before * WEIGHT_MOVE_MOST
