"""The override document: what is taken, what is refused and how it is said; and the JSON Schema beside it."""

import contextlib
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmas.controller.config.override_format import document_of, override_from, override_schema, parse_override
from hmas.controller.control.overrides import Override
from hmas.controller.core.errors import OverrideError
from hmas.controller.runtime.clock import SystemClock
from hmas.controller.scheduling.policies.registry import POLICIES
from hmas.engines.base import Knobs

NOW_S = datetime(2030, 1, 1, tzinfo=UTC).timestamp()
REPOSITORY = Path(__file__).parents[2]
HEAD = {"version": 1, "author": "alice", "reason": "a test", "expires": None}
FULL = {
    "version": 1,
    "author": "alice",
    "reason": "incident 12",
    "expires": "2030-01-01T12:00:00+02:00",
    "policy": {"name": "edf", "parameters": {}},
    "knobs": {"*": {"n_run": 8}, "gpu-0": {"n_run": 4, "token_budget": 512}},
    "tenants": {"team-a": {"weight": 2.5}, "batch": {"tokens_per_minute": 600, "concurrency_share": 0.25}},
    "engines": {"gpu-1": {"drain": True}},
}


def encoded(document):
    return json.dumps(document).encode()


def refused(document, **kwargs):
    data = document if isinstance(document, bytes) else encoded(document)
    with pytest.raises(OverrideError) as caught:
        parse_override(data, id="night", now_s=NOW_S, **kwargs)
    return str(caught.value)


def test_the_examples_of_the_pages_are_taken_today():
    blocks = [
        block
        for page in (REPOSITORY / "docs").glob("*.md")
        for block in re.findall(r"```json\n(.*?)```", page.read_text(), flags=re.DOTALL)
    ]
    examples = [block for block in blocks if '"expires"' in block]
    assert len(examples) >= 2
    for example in examples:
        parse_override(example.encode(), id="example", now_s=SystemClock().now_s())


def test_a_full_document():
    override = parse_override(encoded(FULL), id="night", now_s=NOW_S)
    assert override == Override(
        id="night",
        author="alice",
        reason="incident 12",
        expires_s=NOW_S + 10 * 3600,
        policy="edf",
        knobs={"*": Knobs(n_run=8), "gpu-0": Knobs(n_run=4, token_budget=512)},
        tenant_weights={"team-a": 2.5},
        tenant_limits={"batch": {"tokens_per_minute": 600, "concurrency_share": 0.25}},
        draining=("gpu-1",),
    )
    assert override.active(NOW_S)
    assert not override.active(NOW_S + 10 * 3600)


BAD = {
    "version": (FULL | {"version": 2}, "$.version: got 2 (an integer); allowed: integer 1"),
    "no version": ({key: FULL[key] for key in FULL if key != "version"}, "$: the key `version` is missing"),
    "no expires": ({key: FULL[key] for key in FULL if key != "expires"}, "$: the key `expires` is missing"),
    "no author": ({key: FULL[key] for key in FULL if key != "author"}, "$: the key `author` is missing"),
    "empty reason": (FULL | {"reason": ""}, "$.reason: got '' (a text); allowed: text of 1 to 500 characters"),
    "blank author": (FULL | {"author": "  "}, "$.author: got '  '"),
    "long reason": (FULL | {"reason": "x" * 501}, "$.reason: got"),
    "no zone": (FULL | {"expires": "2030-01-01T12:00:00"}, "$.expires: got '2030-01-01T12:00:00' (a text); allowed: text matching"),
    "expires a number": (FULL | {"expires": 1893456000}, "$.expires: got 1893456000"),
    "policy": (HEAD | {"policy": {"name": "lifo"}}, f"$.policy.name: got 'lifo' (a text); allowed: one of {', '.join(POLICIES)}"),
    "policy a text": (HEAD | {"policy": "edf"}, "$.policy: got 'edf' (a text); allowed: a map with the keys name, parameters"),
    "policy null": (HEAD | {"policy": None}, "$.policy: got nothing"),
    "parameter name": (
        HEAD | {"policy": {"name": "fcfs", "parameters": {"theta": 1}}},
        "$.policy.parameters: parameter 'theta' is unknown to policy 'fcfs'",
    ),
    "parameter": (HEAD | {"policy": {"name": "edf", "parameters": {"a": "1"}}}, "$.policy.parameters.a: got '1' (a text); allowed: number"),
    "knob range": (HEAD | {"knobs": {"gpu-0": {"n_run": 0}}}, "$.knobs.gpu-0.n_run: got 0 (an integer); allowed: integer from 1 to 4096"),
    "knob name": (HEAD | {"knobs": {"gpu-0": {"nrun": 3}}}, "$.knobs.gpu-0.nrun: unknown key. Did you mean `n_run`?"),
    "knob empty": (HEAD | {"knobs": {"gpu-0": {}}}, "$.knobs.gpu-0: sets no knob"),
    "knob null": (HEAD | {"knobs": {"gpu-0": {"n_run": None}}}, "$.knobs.gpu-0.n_run: got nothing"),
    "instance": (HEAD | {"knobs": {"../x": {"n_run": 1}}}, "$.knobs.../x: key got '../x'"),
    "weight": (HEAD | {"tenants": {"a": {"weight": 0}}}, "$.tenants.a.weight: got 0 (an integer); allowed: number above 0"),
    "tenant empty": (HEAD | {"tenants": {"a": {}}}, "$.tenants.a: sets nothing; give weight, tokens_per_minute,"),
    "quota": (
        HEAD | {"tenants": {"a": {"tokens_per_minute": -1}}},
        "$.tenants.a.tokens_per_minute: got -1 (an integer); allowed: integer from 0 to 1000000000",
    ),
    "quota a fraction": (HEAD | {"tenants": {"a": {"requests_per_minute": 0.5}}}, "$.tenants.a.requests_per_minute: got 0.5"),
    "share": (
        HEAD | {"tenants": {"a": {"concurrency_share": 0}}},
        "$.tenants.a.concurrency_share: got 0 (an integer); allowed: number above 0",
    ),
    "limit name": (HEAD | {"tenants": {"a": {"max_runing": 3}}}, "$.tenants.a.max_runing: unknown key. Did you mean `max_running`?"),
    "drain": (HEAD | {"engines": {"a": {"drain": False}}}, "$.engines.a.drain: got false; allowed: true"),
    "unknown": (FULL | {"polcy": {}}, "$.polcy: unknown key. Did you mean `policy`?"),
    "nothing": (HEAD, "$: holds nothing; give at least one of policy, knobs, tenants, engines"),
    "nothing in it": (HEAD | {"knobs": {}}, "$: holds nothing"),
    "a list": ([FULL], "$: got a list; allowed: a map"),
    "null": (None, "$: got nothing; allowed: a map"),
}
"""Documents that are refused by their shape, and what is said."""


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_document_names_the_path(name):
    document, message = BAD[name]
    assert message in refused(document)
    assert refused(document).startswith("night: $")


@pytest.mark.parametrize(
    ("expires", "word"),
    [
        ("2029-12-31T23:59:59Z", "which has passed"),
        ("2030-01-01T00:00:00Z", "which has passed"),
        ("2031-06-01T00:00:00Z", "more than 366 days ahead"),
        ("2030-02-30T00:00:00Z", "no date"),
        ("2030-01-01T25:00:00Z", "no date"),
    ],
)
def test_an_expiry_that_makes_no_sense(expires, word):
    assert word in refused(FULL | {"expires": expires})


def test_an_ended_document_is_taken_where_it_may_lie_about():
    override = parse_override(encoded(FULL | {"expires": "2020-01-01T00:00:00Z"}), id="night", now_s=NOW_S, allow_expired=True)
    assert not override.active(NOW_S)


def test_all_mistakes_are_told_at_once():
    message = refused({"version": 1, "author": 5, "reason": "", "expires": None, "policy": {"name": "x"}})
    assert [line.split(":")[1].strip() for line in message.splitlines()] == ["$.author", "$.reason", "$.policy.name"]
    many = refused(HEAD | {"engines": {f"e{n}": 1 for n in range(30)}})
    assert len(many.splitlines()) == 11
    assert many.endswith("and 20 more")


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "the document is empty"),
        (encoded(FULL)[:-20], "not JSON, or only half written: line 1 column"),
        (b'{"version": 1,\n "author"', "line 2 column"),
        (b'{"version": 1, "version": 1}', "'version' stands twice"),
        (b'{"version": NaN}', "NaN is no number"),
        (b'{"version": 1\xff}', "byte 13 is not UTF-8"),
        (b"[" * 60_000, "nested too deeply"),
        (b'{"version": ' + b"1" * 5000 + b"}", "not usable JSON"),
        (b" " * (64 * 1024 + 1), "65537 bytes; allowed: 65536 at most"),
        (b"<html></html>", "line 1 column 1"),
    ],
)
def test_bytes_that_are_no_document(data, word):
    assert word in refused(data)


@pytest.mark.parametrize("name", ["", ".hidden", "../up", "a/b", "a\n", "x" * 81, "a b"])
def test_an_id_is_a_plain_file_name(name):
    with pytest.raises(OverrideError, match="override id"):
        parse_override(encoded(FULL), id=name, now_s=NOW_S)


NAMES = st.text(alphabet="Az9._-", min_size=1, max_size=8).map("a".__add__)
TEXTS = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=30)
KNOBS = st.fixed_dictionaries({"n_run": st.integers(1, 4096)}, optional={"token_budget": st.integers(1, 1 << 20)})

TENANTS = st.fixed_dictionaries(
    {},
    optional={
        "weight": st.floats(0.001, 1000),
        "tokens_per_minute": st.integers(0, 10**9),
        "burst_tokens": st.integers(0, 10**9),
        "requests_per_minute": st.integers(0, 10**7),
        "concurrency_share": st.floats(0.001, 1),
        "max_running": st.integers(0, 10**6),
        "max_queued": st.integers(0, 10**6),
        "max_body_bytes_waiting": st.integers(0, 1 << 40),
    },
).filter(bool)


@st.composite
def documents(draw):
    parts = {
        "policy": st.fixed_dictionaries({"name": st.sampled_from(list(POLICIES))}),
        "knobs": st.dictionaries(st.just("*") | NAMES, KNOBS, min_size=1, max_size=3),
        "tenants": st.dictionaries(NAMES, TENANTS, min_size=1, max_size=3),
        "engines": st.dictionaries(NAMES, st.just({"drain": True}), min_size=1, max_size=3),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(parts)), min_size=1))
    minutes = draw(st.none() | st.integers(1, 366 * 1440 - 1))
    expires = None if minutes is None else datetime.fromtimestamp(NOW_S + minutes * 60, UTC).isoformat()
    return {"version": 1, "author": draw(TEXTS), "reason": draw(TEXTS), "expires": expires} | {
        part: draw(parts[part]) for part in sorted(chosen)
    }


SCHEMA = jsonschema.Draft202012Validator(override_schema())


@settings(max_examples=60)
@given(documents())
def test_what_is_written_is_read_back_the_same_and_fits_the_schema(document):
    override = override_from(document, id="x", now_s=NOW_S)
    written = document_of(override)
    assert SCHEMA.is_valid(document)
    assert SCHEMA.is_valid(written)
    assert parse_override(encoded(written), id="x", now_s=NOW_S) == override


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*FULL, "name", "parameters", "n_run", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=150)
@given(JSON_VALUES.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=40))
def test_whatever_is_written_there_is_taken_or_refused_in_words(data):
    with contextlib.suppress(OverrideError):
        assert parse_override(data, id="x", now_s=NOW_S).settings()


def test_the_published_schema_is_current():
    published = json.loads((REPOSITORY / "docs" / "override.schema.json").read_text())
    assert published == override_schema(), "run `make docs`"


def test_the_schema_is_a_schema_and_takes_what_is_taken():
    jsonschema.Draft202012Validator.check_schema(override_schema())
    assert SCHEMA.is_valid(FULL)


BEYOND_SCHEMA = {"policy", "parameter name"}
"""Which policies there are and which parameters they take is the pool's to say: a user may have added some."""


@pytest.mark.parametrize("name", sorted(set(BAD) - BEYOND_SCHEMA))
def test_the_schema_refuses_what_is_refused(name):
    assert not SCHEMA.is_valid(BAD[name][0])
