"""`hmas intent` against a real gateway, and a real HTTP server in place of the language model."""

import io
import json
import time

import pytest
from chat_kit import chat_server, closed_port, raw, says
from installation_kit import TOKEN, Installation, commands

from hmas.controller.admin.client import AdminClient
from hmas.controller.config.section import TenantConfig

WORDS = "release day: team-a's chat comes first for two hours, batch may wait and gets half its tokens a minute"
CHANGES = [
    {"tenant": "team-a", "setting": "weight", "value": "first"},
    {"tenant": "batch-jobs", "setting": "weight", "value": "last"},
    {"tenant": "batch-jobs", "setting": "tokens_per_minute", "value": "x0.5"},
]
GOOD = json.dumps({"refuse": "no", "changes": CHANGES, "ends": "for 2 hours"})


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    tenants = {"team-a": TenantConfig(weight=2.0), "batch-jobs": TenantConfig(tokens_per_minute=600_000)}
    with Installation(tmp_path_factory.mktemp("state"), tenants) as running:
        yield running


@pytest.fixture
def hmas(installation, capsys, monkeypatch):
    yield from commands(installation, capsys, monkeypatch)


def held(hmas) -> list[dict]:
    return json.loads(hmas("override", "list", "--json")[1])["overrides"]


def lines(out: str) -> list[str]:
    return [" ".join(line.split()) for line in out.splitlines()]


def test_words_become_an_override_that_is_shown_applied_audited_and_ends(hmas, installation):
    with chat_server(says(GOOD)) as chat:
        code, out, err = hmas("intent", WORDS, "--base-url", chat.url, "--model", "m", "--yes", "--author", "alice")
    assert (code, err) == (0, "")
    assert lines(out)[:4] == [
        "tenant setting now then",
        "team-a weight 2 8",
        "batch-jobs weight 1 0.25",
        "batch-jobs tokens_per_minute 600000 300000",
    ]
    assert lines(out)[4].startswith("until ")
    assert lines(out)[4].endswith(", in 2 h")
    (override,) = held(hmas)
    assert override["id"].startswith("intent-2")
    assert override["document"]["author"] == "alice"
    assert override["document"]["reason"] == WORDS
    assert 7100 < override["expires_s"] - time.time() <= 7200
    assert (installation.state_dir / "overrides" / f"{override['id']}.json").exists()
    status = json.loads(hmas("status", "--json")[1])
    now = {tenant["name"]: tenant for tenant in status["tenants"]}
    assert (now["team-a"]["weight"], now["batch-jobs"]["weight"], now["batch-jobs"]["tokens_per_minute"]) == (8.0, 0.25, 300_000)
    assert any(
        "alice: release day" in event["reason"] for event in json.loads(hmas("events", "--json")[1]) if event["kind"] == "override.put"
    )
    assert hmas("override", "clear", override["id"])[0] == 0
    asked = chat.asked[0]
    assert asked["model"] == "m"
    assert "team-a: weight 2" in asked["messages"][1]["content"]
    assert "Models (no tenants): m" in asked["messages"][1]["content"]


def test_a_second_intention_starts_from_what_the_first_has_set(hmas):
    with chat_server(says(GOOD)) as chat:
        assert hmas("intent", WORDS, "--base-url", chat.url, "--yes", "--id", "intent-1")[0] == 0
        code, out, _ = hmas("intent", WORDS, "--base-url", chat.url, "--yes", "--id", "intent-2")
    assert code == 0
    assert "team-a weight 8 32" in lines(out)
    assert "conflict: tenants.team-a.weight: intent-2 wins over intent-1" in out


@pytest.mark.parametrize("options", [["--dry-run"], ["--dry-run", "--yes"], ["--dry-run", "--json"]])
def test_a_dry_run_changes_nothing(hmas, options):
    with chat_server(says(GOOD)) as chat:
        code, out, _ = hmas("intent", WORDS, "--base-url", chat.url, *options)
    assert code == 0
    assert "batch-jobs" in out
    if "--json" in options:
        document = json.loads(out)
        assert document["applied"] is False
        assert document["document"]["tenants"]["team-a"] == {"weight": 8.0}
    assert held(hmas) == []


@pytest.mark.parametrize(("said", "code", "count"), [("y\n", 0, 1), ("n\n", 1, 0), ("\n", 1, 0)])
def test_it_asks_first(hmas, monkeypatch, said, code, count):
    monkeypatch.setattr("sys.stdin", io.StringIO(said))
    with chat_server(says(GOOD)) as chat:
        found, _, err = hmas("intent", WORDS, "--base-url", chat.url)
    assert found == code
    assert "Apply? [y/N]" in err
    assert len(held(hmas)) == count
    assert ("nothing is changed" in err) == (count == 0)


def test_what_has_changed_since_it_was_shown_is_not_applied(hmas, installation):
    def behave(handler, body):
        document = {"version": 1, "author": "bob", "reason": "r", "expires": None, "tenants": {"team-a": {"weight": 5}}}
        AdminClient(installation.admin, token=TOKEN).put_override("bob", document)
        says(GOOD)(handler, body)

    with chat_server(behave) as chat:
        code, _, err = hmas("intent", WORDS, "--base-url", chat.url, "--yes")
    assert code == 1
    assert "what is shown as `now` has changed meanwhile" in err
    assert [override["id"] for override in held(hmas)] == ["bob"]


def test_json_is_not_confirmed_blindly(hmas):
    assert "give --yes or --dry-run with it" in hmas("intent", WORDS, "--base-url", "http://127.0.0.1:9", "--json")[2]


def test_without_anybody_to_confirm_nothing_changes(hmas, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with chat_server(says(GOOD)) as chat:
        assert hmas("intent", WORDS, "--base-url", chat.url)[0] == 130
    assert held(hmas) == []


BAD = {
    "prose": (says("Sure! I will put team-a first."), "the answer is not of the schema"),
    "another tenant": (says(GOOD.replace("team-a", "team-z")), "changes[0].tenant is 'team-z'; allowed: "),
    "cut off": (says(GOOD[:60], "length"), "cut off at its max_tokens"),
    "refusal": (says('{"refuse": "unclear", "changes": [], "ends": "not named"}'), "the model does not follow the words: unclear"),
    "no expiry": (says(GOOD.replace("for 2 hours", "not named")), "the words name a time"),
    "nothing": (says('{"refuse": "no", "changes": [], "ends": "for 2 hours"}'), "the answer sets nothing"),
    "500": (lambda handler, _: raw(handler, b"no", status=500), "HTTP 500"),
    "html": (lambda handler, _: raw(handler, b"<html>", kind="text/html"), "not a chat completion"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_answer_that_does_not_hold_changes_nothing(hmas, name):
    behave, reason = BAD[name]
    with chat_server(behave) as chat:
        code, out, err = hmas("intent", WORDS, "--base-url", chat.url, "--yes")
    assert (code, out) == (1, "")
    assert "refused, nothing is changed: " in err
    assert reason in err
    assert held(hmas) == []


def test_a_server_that_is_silent_or_gone_is_not_waited_for(hmas):
    with chat_server(lambda chat: lambda _handler, _body: chat.over.wait(30) and None, needs_chat=True) as chat:
        begun_s = time.monotonic()
        code, _, err = hmas("intent", WORDS, "--base-url", chat.url, "--yes", "--timeout", "1s")
        assert time.monotonic() - begun_s < 5.0
    assert code == 1
    assert "no answer in time" in err
    assert hmas("intent", WORDS, "--base-url", closed_port(), "--yes")[0] == 1
    assert held(hmas) == []


def test_who_does_not_answer_is_named(hmas):
    code, _, err = hmas("intent", WORDS, "--base-url", "http://me:secret@127.0.0.1:9", "--yes")
    assert (code, err) == (1, "hmas: refused, nothing is changed: engine at 127.0.0.1:9: Connection refused\n")
    code, _, err = hmas("intent", WORDS, "--base-url", "127.0.0.1:9", "--yes")
    assert (code, err) == (2, "hmas: --base-url is '127.0.0.1:9'; allowed: http://HOST:PORT\n")


def test_what_the_gateway_would_refuse_is_refused_before_it_is_shown(hmas):
    burst = json.dumps({"refuse": "no", "changes": [{"tenant": "team-a", "setting": "burst_tokens", "value": "500"}], "ends": "not named"})
    with chat_server(says(burst)) as chat:
        code, out, err = hmas("intent", "team-a: bursts of 500 tokens", "--base-url", chat.url, "--dry-run")
    assert (code, out) == (1, "")
    assert "$.tenants.team-a.burst_tokens: got 500 where the tenant has no tokens_per_minute" in err


def test_it_asks_the_server_that_is_configured_for_meta_with_its_key(hmas, monkeypatch, tmp_path):
    monkeypatch.setenv("META_KEY", "k1")
    with chat_server(says(GOOD)) as chat, chat_server(says(GOOD)) as other:
        path = tmp_path / "hmas.yaml"
        path.write_text(
            f"agents: {{meta_llm_url: '{chat.url}', meta_llm_model: small, meta_llm_key_env: META_KEY}}\nscheduler: {{n_rum: 4}}\n"
        )
        assert hmas("intent", WORDS, "--dry-run", "--config", str(path))[0] == 0, "a mistake elsewhere is none of its business"
        assert hmas("intent", WORDS, "--dry-run", "--config", str(path), "--base-url", other.url)[0] == 0
    assert (chat.keys, chat.asked[0]["model"]) == (["Bearer k1"], "small")
    assert other.keys == [""], "the configured key goes nowhere else"
    code, _, err = hmas("intent", WORDS, "--dry-run")
    assert code == 2
    assert "agents.meta_llm_url is empty; allowed: the address of an OpenAI-compatible server" in err


@pytest.mark.parametrize("words", ["", "  ", "x" * 501, "team-a\x1b[2J first"])
def test_words_that_cannot_be_the_reason_of_an_override_are_a_mistake(hmas, words):
    code, _, err = hmas("intent", words, "--base-url", "http://127.0.0.1:9")
    assert code == 2
    assert "allowed: 1 to 500 printable ones" in err


def test_the_operators_span_precedes_that_of_the_words(hmas):
    with chat_server(says(GOOD)) as chat:
        assert hmas("intent", WORDS, "--base-url", chat.url, "--yes", "--for", "10m")[0] == 0
    assert 590 < held(hmas)[0]["expires_s"] - time.time() <= 600
