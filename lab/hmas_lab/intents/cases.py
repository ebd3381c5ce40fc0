"""The hundred written intentions: the words, an ideal answer in short, and what must come of them."""

import re
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from hmas.intents.answer import ACCEPT, SETTINGS
from hmas.intents.plan import Plan, Site
from hmas.intents.times import NOT_NAMED

FILE = Path(__file__).with_name("cases.json")
UP, DOWN = "up", "down"
_SAME = 0.002
"""Relative difference up to which two values are one: a third is written as 33.33 %."""


class _Site(msgspec.Struct):
    now: str
    models: tuple[str, ...]
    tenants: dict[str, dict[str, float]]


class _Case(msgspec.Struct):
    site: str
    words: str
    answer: str
    known: str


class _File(msgspec.Struct):
    sites: dict[str, _Site]
    cases: list[_Case]
    further: list[_Case]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One intention.

    Attributes:
        site: Tenants, what is in force, and the time; the time zone is UTC.
        words: The operator's words.
        ideal: The answer of a model that makes no mistake, as JSON.
        refusal: Why the words must be refused; empty if they can be followed.
        changes: What must be set, by tenant and setting: a value, `up` or `down`; a setting with `?` after it may stay away.
        expires_s: When it must end.
    """

    site: Site
    words: str
    ideal: str
    refusal: str
    changes: dict[tuple[str, str], str]
    expires_s: float

    def holds(self, made: Plan) -> bool:
        """Whether a plan sets exactly what is known to be right."""
        found = {(change.tenant, change.setting): change for change in made.changes}
        wanted = {(tenant, setting.rstrip("?")): value for (tenant, setting), value in self.changes.items()}
        needed = {key for key in self.changes if not key[1].endswith("?")}
        if self.refusal or not needed <= set(found) <= set(wanted) or made.override.expires_s != self.expires_s:
            return False
        return all(_is(change.before, change.after, wanted[key]) for key, change in found.items())


def read_cases(*, further: bool = False) -> list[Case]:
    """The hundred cases in the order of the file; or further ones, with which the checks were tried after those had been written."""
    held = msgspec.json.decode(FILE.read_bytes(), type=_File)
    sites = {name: _site(site) for name, site in held.sites.items()}
    return [_case(case, sites[case.site]) for case in (held.further if further else held.cases)]


def _site(written: _Site) -> Site:
    free = {name: 1.0 if name in ("weight", "concurrency_share") else 0 for name in SETTINGS}
    return Site(
        tenants={name: {**free, **values} for name, values in written.tenants.items()},
        models=written.models,
        now_s=_time_s(written.now),
    )


def _case(written: _Case, site: Site) -> Case:
    refused = written.known.startswith("refuse: ")
    changes, _, ends = written.known.partition(" | ")
    parts = [] if refused else [part.split() for part in changes.split("; ")]
    return Case(
        site=site,
        words=written.words,
        ideal=_json(written.answer),
        refusal=written.known.removeprefix("refuse: ") if refused else "",
        changes={(tenant, setting + ("?" if value.endswith("?") else "")): value.rstrip("?") for tenant, setting, value in parts},
        expires_s=0.0 if refused else _time_s(ends),
    )


def _json(short: str) -> str:
    """`team-a weight first | until 6`, or `refuse unclear`, as a model answers it."""
    if short.startswith("refuse "):
        return msgspec.json.encode({"refuse": short.removeprefix("refuse "), "changes": [], "ends": NOT_NAMED}).decode()
    changes, _, ends = short.partition(" | ")
    parts = [re.split(" ", part) for part in changes.split("; ")]
    said = [{"tenant": tenant, "setting": setting, "value": value} for tenant, setting, value in parts]
    return msgspec.json.encode({"refuse": ACCEPT, "changes": said, "ends": ends}).decode()


def _time_s(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def _is(before: float, after: float, known: str) -> bool:
    if known in (UP, DOWN):
        return after > before if known == UP else after < before
    return abs(after - float(known)) <= _SAME * max(abs(float(known)), 1e-9)
