"""Makes an override of a model's answer to an operator's words, or refuses the answer with the reason. Pure.

The answer must hold three times: as JSON of the schema, against the words (tenants, numbers and times that they name, and no others), and
as an override document. There is no part of an answer that counts alone.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any

import msgspec

from hmas.agents.meta.selectors.llm_answer import AnswerError
from hmas.controller.config.override_format import override_from
from hmas.controller.control.overrides import Override
from hmas.controller.core.errors import ConfigError
from hmas.controller.scheduling.policies.registry import POLICIES
from hmas.intents.answer import ACCEPT, LEVELS, SETTINGS, UNLIMITED, Answer, Wanted, read_answer
from hmas.intents.times import LONGEST_S, expiry_s, without_times
from hmas.intents.words import factors, is_in, named, numbers, strangers

WORDS_MOST = 500
"""Most characters of the words: as many as the reason of an override has, which they become."""
TENANTS_MOST = 64
"""Most tenants in a question: those that the words name come first."""
WEIGHT_MOVE_MOST = 8.0
"""Largest factor by which one intention may raise or lower a weight."""
SPOKEN = {
    "tokens_per_minute": r"token|tpm",
    "burst_tokens": r"burst|at once",
    "requests_per_minute": r"request|rpm|call|quer",
    "concurrency_share": r"share|%|percent|per cent|half|quarter|third|fifth|tenth|slot|capacity",
    "max_running": r"\brun|at once|at a time|same time|in flight|concurren|parallel|simultan|slot|active",
    "max_queued": r"queue|wait|pending|backlog",
    "max_body_bytes_waiting": r"byte|bod(y|ies)|memory",
}
"""What the words must hold where an answer sets this limit."""
_UP = re.compile(r"first|front|\btop|prefer|favou?r|urgent|critical|boost|bump|fast|quick|rush|more|rais|doubl|twice|tripl|\bup\b")
_DOWN = re.compile(
    r"\b(last|late|wait|less|lower|reduc|cut|halv|half|back|yield|defer|depri|slow|aside|patien|low\b|down\b|pause)|no (rush|hurry)"
)
_EITHER = re.compile(
    r"weight|before|ahead|behind|after|share|than|priorit|alike|same|\bover\b|swap|trade|above|below|waits? for|\bnot\b|n't\b|\boff\b"
)
"""Words that raise a weight, that lower one, and that may do both: an answer must not go against them."""
_OTHER = re.compile(rf"\b({'|'.join(set(POLICIES) - {'priority', 'slack'})}|policy|temperature|fence|delet\w+)\b")
"""Words about settings that are not a tenant's weight or limit, and never only a reason to change those."""
_LIFTS = re.compile(r"\b(unlimit|uncap|unrestrict|lift|remov|without|no (\w+ )?(limit|cap|quota|bound)|(limit|cap)s? off|(free|relieve) )")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """What an intention may be about: what is in force, by tenant and setting (`SETTINGS`), and the models that the engines serve."""

    tenants: Mapping[str, Mapping[str, float]]
    models: tuple[str, ...]
    now_s: float


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of one tenant before and after."""

    tenant: str
    setting: str
    before: float
    after: float


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What an intention sets, and the override that sets it."""

    changes: tuple[Change, ...]
    override: Override


def site_of(status: Mapping[str, Any], words: str, now_s: float) -> Site:
    """The site as a gateway's status document has it: the tenants that the words name first, 64 at most.

    Raises:
        ConfigError: The gateway knows no tenant.
    """
    held = {item["name"]: {setting: item[setting] for setting in SETTINGS} for item in status["tenants"] if _NAME.fullmatch(item["name"])}
    held.pop("other", None)  # all tenants that have no label of their own
    if not held:
        raise ConfigError("the gateway knows no tenant; allowed: tenants of the configuration, or those with requests in the last minute")
    full, part = named(words, held)
    names = sorted(held, key=lambda name: (name not in full, name not in part, name))[:TENANTS_MOST]
    models = sorted({model for item in status["instances"] for model in item["models"]})
    return Site(tenants={name: held[name] for name in sorted(names)}, models=tuple(models), now_s=now_s)


def plan(
    text: str, words: str, site: Site, *, override_id: str, author: str, zone: tzinfo | None = None, lasts_s: float | None = None
) -> Plan:
    """What a model's answer, `text`, to the operator's words sets: an override with this id and author.

    It is in force for `lasts_s`, the operator's own choice, or else for the time that the words name. Times are in the operator's zone,
    by default this machine's.

    Raises:
        AnswerError: The answer does not hold; nothing of it may be used.
        OverrideError: What it sets is no valid override.
    """
    answer = read_answer(text)
    if answer.refuse != ACCEPT:
        raise AnswerError(f"the model does not follow the words: {answer.refuse}")
    for other in _OTHER.findall(words.lower()):
        if not any(other in tenant.lower() for tenant in site.tenants):
            raise AnswerError(f"the words speak of {other!r}; allowed: tenants' weights and limits")
    for stranger in strangers(words, site.tenants, site.models):
        raise AnswerError(f"the words name {stranger!r}, which is no tenant; tenants: {', '.join(site.tenants)}")
    changes = _changes(answer, words, site)
    if lasts_s is not None and lasts_s > LONGEST_S:
        raise AnswerError(f"it would be in force for {lasts_s / 3600:.0f} h; allowed: at most {LONGEST_S / 3600:.0f} h")
    expires_s = expiry_s(answer.ends, words, site.now_s, zone) if lasts_s is None else site.now_s + lasts_s
    tenants: dict[str, dict[str, float]] = {}
    for change in changes:
        tenants.setdefault(change.tenant, {})[change.setting] = change.after
    expires = datetime.fromtimestamp(expires_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    document = {"version": 1, "author": author, "reason": words, "expires": expires, "tenants": tenants}
    return Plan(changes=changes, override=override_from(document, id=override_id, now_s=site.now_s))


def _changes(answer: Answer, words: str, site: Site) -> tuple[Change, ...]:
    full, part = named(words, site.tenants)
    found: dict[tuple[str, str], Change] = {}
    for number, wanted in enumerate(answer.changes):
        where = f"changes[{number}]"
        if wanted.tenant not in site.tenants:
            raise AnswerError(f"{where}.tenant is {wanted.tenant!r}; allowed: {', '.join(site.tenants)}")
        if wanted.setting not in SETTINGS:
            raise AnswerError(f"{where}.setting is {wanted.setting!r}; allowed: {', '.join(SETTINGS)}")
        if wanted.tenant not in part:
            raise AnswerError(f"{where}.tenant is {wanted.tenant!r}, which the words do not name; they name {_listed(sorted(part))}")
        if (wanted.tenant, wanted.setting) in found:
            raise AnswerError(f"{where} sets {wanted.setting} of {wanted.tenant} a second time; allowed: once")
        before = site.tenants[wanted.tenant][wanted.setting]
        after = _value(wanted, before, words, where)
        found[wanted.tenant, wanted.setting] = Change(tenant=wanted.tenant, setting=wanted.setting, before=before, after=after)
    if not found:
        raise AnswerError("the answer sets nothing")
    if unused := _unused(words, site, [wanted.value for wanted in answer.changes], [change.before for change in found.values()]):
        raise AnswerError(f"the words name {_listed(unused)}, and the answer does not use it")
    missing = sorted(full - {tenant for tenant, _ in found})
    if missing:
        raise AnswerError(f"the answer sets nothing for {', '.join(missing)}, which the words name")
    return tuple(found.values())


def _value(wanted: Wanted, before: float, words: str, where: str) -> float:
    """The new value of a setting.

    Raises:
        AnswerError: The words do not name it, or it is out of bounds.
    """
    setting, value, text = wanted.setting, wanted.value, words.lower()
    told = f"{where}.value is {value!r} for {setting} of {wanted.tenant}"
    if setting in SPOKEN and not re.search(SPOKEN[setting], text):
        raise AnswerError(f"{told}; the words do not speak of it ({SETTINGS[setting]})")
    if value in LEVELS:
        if setting != "weight":
            raise AnswerError(f"{told}; allowed: a number, x and a factor, or {UNLIMITED}; {', '.join(LEVELS)} are for weight")
        return _bounded(float(f"{before * LEVELS[value]:.4g}"), before, text, told)
    if value == UNLIMITED:
        if setting == "weight" or not _LIFTS.search(text):
            raise AnswerError(f"{told}; allowed only for a limit that the words lift")
        return 1.0 if setting == "concurrency_share" else 0
    if value.startswith("x"):
        return _multiplied(setting, float(value[1:]), before, words, told)
    number = float(value.rstrip("%")) / (100.0 if value.endswith("%") else 1.0)
    if value.endswith("%") and setting != "concurrency_share":
        raise AnswerError(f"{told}; allowed: a percentage only for concurrency_share")
    if not is_in(number, spoken := numbers(without_times(words))):
        raise AnswerError(f"{told}; the words name {_listed([f'{one:g}' for one in sorted(spoken)])}")
    if setting == "weight":
        if "weight" not in text:
            raise AnswerError(f"{told}; allowed: {', '.join(LEVELS)}, or x and a factor, where the words name no weight")
        return _bounded(number, before, text, told)
    if number == 0 or (setting == "concurrency_share" and number == 1.0 and not value.endswith("%")):
        allowed = "a percentage, a number below 1" if number else "more than 0"
        raise AnswerError(f"{told}; {number:g} would be no limit; allowed: {allowed}, or {UNLIMITED}")
    return number if setting == "concurrency_share" else _whole(number, told)


def _unused(words: str, site: Site, values: Sequence[str], before: Sequence[float]) -> list[str]:
    """The numbers of the words that no value, new or old, stands on: what such an answer leaves out is easily overlooked."""
    text = re.sub(r"\d+ (third|quarter|fifth|tenth)s", " ", without_times(words))
    for name in (*site.models, *site.tenants):
        text = re.sub("[-_. ]?".join(re.findall(r"[a-z]+|\d+", name.lower())), " ", text)
    plain = {float(value.strip("x%")) for value in values if value[-1] in "0123456789%"}
    used = {part for one in plain for part in (one, one * 100, one / 100, abs(1 - one) * 100, abs(1 - one))} | set(before)
    left = [number for number in re.findall(r"\d+(?:\.\d+)?", text) if float(number) != 1]  # `one` is mostly a pronoun
    return [number for number in left if not is_in(float(number), used)]


def _multiplied(setting: str, factor: float, before: float, words: str, told: str) -> float:
    if not is_in(factor, factors(words)):
        raise AnswerError(f"{told}; the words name the factors {_listed([f'{one:g}' for one in sorted(factors(words))])}")
    if setting == "weight":
        return _bounded(float(f"{before * factor:.4g}"), before, words.lower(), told)
    if before == (1.0 if setting == "concurrency_share" else 0):
        raise AnswerError(f"{told}; there is no limit now, so nothing that a factor applies to; allowed: a number")
    return before * factor if setting == "concurrency_share" else max(1, round(before * factor))


def _bounded(weight: float, before: float, text: str, told: str) -> float:
    raises, lowers = bool(_UP.search(text)), bool(_DOWN.search(text))
    if not _EITHER.search(text) and ((weight > before and lowers and not raises) or (weight < before and raises and not lowers)):
        raise AnswerError(f"{told}, now {before:g}; the words {'raise' if raises else 'lower'} it")
    low, high = before / WEIGHT_MOVE_MOST, before * WEIGHT_MOVE_MOST
    if not low <= weight <= high:
        raise AnswerError(f"{told}, now {before:g}; allowed in one intention: {low:g} to {high:g}")
    return weight


def _whole(number: float, told: str) -> int:
    if number != int(number):
        raise AnswerError(f"{told}; allowed: a whole number")
    return int(number)


def _listed(values: Sequence[str]) -> str:
    return ", ".join(values) or "none"
