"""When an intention ends: the time in a model's answer, resolved by code, and whether the operator's words name it. Pure."""

import re
from datetime import datetime, timedelta, tzinfo

from hmas.agents.meta.selectors.llm_answer import AnswerError
from hmas.intents.words import digits, is_in, numbers

NOT_NAMED = "not named"
DEFAULT_S = 8 * 3600.0
"""An intention whose words name no time ends after this."""
LONGEST_S = 7 * 86_400.0
"""Longest life of an intention; what is to last longer belongs in the configuration."""
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAY = rf"today|tomorrow|{'|'.join(WEEKDAYS)}|20\d\d-[01]\d-[0-3]\d"
_CLOCK = r"noon|midnight|([01]?\d|2[0-3])(:[0-5]\d)?( ?(am|pm))?"
PATTERN = rf"^({NOT_NAMED}|for (\d{{1,4}}|\d{{1,4}}[.]\d) (minutes|hours|days)|until ((({_DAY}) )?({_CLOCK})|({_DAY})))$".replace(
    r"\d", "[0-9]"
)
"""Pattern of the end in an answer: `for 90 minutes`, `until 18:00`, `until friday noon`, `until tomorrow`, `not named`."""
_UNIT = r"(minute|min|m|hour|hr|h|day|d|week|w)s?\b"
_MINUTES = {"m": 1.0, "h": 60.0, "d": 1440.0, "w": 10_080.0}
_SPAN = re.compile(
    rf"(?:(\d+(?:\.\d+)?)( and an? half)?[ -]?|\b(?:an?|next) |\b(half an? |quarter of an ))(?:full |whole )?{_UNIT}( and an? half)?"
)
_RATE = re.compile(rf"\b(?:requests?|tokens?|calls?|times) (?:an?|per|each|every) {_UNIT}|\bper {_UNIT}")
_OPEN = re.compile(r"(until |till )?further notice|for good\b|permanent\w*|indefinite\w*|\bforever\b|\bfor ever\b")
_DAY_END = r"(end|rest) of (the |this )?(day|\w+day)\b"
_CLOCK_WORDS = re.compile(r"\b(noon|midday|midnight|o'clock)\b|\d:\d\d|\d ?[ap]\.?m\b")
_LATE = re.compile(rf"\b(midnight|tonight|today|night)\b|{_DAY_END}|\bday is over\b|\ball day\b")
_TIME = re.compile(
    rf"\b(until|till?|tonight|today|tomorrow|weekend|all day|{'|'.join(WEEKDAYS)})\b|{_CLOCK_WORDS.pattern}|{_DAY_END}"
    rf"|\b(for|next|within|in) (the |the next |about |another |a )?{_SPAN.pattern}|\bthis (morning|afternoon|evening|week)\b"
    r"|\b\d+(\.\d+)?[ -]?(minute|min|hour|hr|h|day|week)s?\b"
)
_MORNING, _EVENING = (
    re.compile(r"\d ?a\.?m\b|in the morning"),
    re.compile(r"\d ?p\.?m\b|in the (afternoon|evening)|this (afternoon|evening)"),
)
_CLOCK_NUMBERS = re.compile(
    r"\b(?:until|till?)(?: (?:tomorrow|tonight|\w+day|evening|morning|afternoon|at|half|past|quarter|about|the))*"
    r" \d\d?(?::\d\d)?(?!\d| ?%)"
    r"|\b(?:half|quarter) (?:past|to) \d\d?\b|\b\d\d?:\d\d|\b\d\d? ?[ap]\.?m\b|\d+ o'clock|\bat \d\d?(?::\d\d)?(?=[,;:.]|$)"
)
_BEFORE_DAY = r"(until|till?|through|to|on|by|next|this|of)"  # another day is no time: `Friday's release`, `Black Friday`
_MONTH = r"(jan|feb|mar|apr|may|june?|july?|aug|sep|oct|nov|dec)"
_MONTHS = re.compile(rf"\d(st|nd|rd|th)? (of )?{_MONTH}|\b{_MONTH}[a-z]* \d|20\d\d-\d\d")  # not the `may` of `batch may wait`


def expiry_s(ends: str, words: str, now_s: float, zone: tzinfo | None = None) -> float:
    """The time at which an intention ends, seconds since the epoch.

    Args:
        ends: The end in the model's answer, of `PATTERN`.
        words: The operator's words, which must name that end, or none.
        now_s: The current time.
        zone: The operator's time zone; None for that of this machine.

    Raises:
        AnswerError: The words name another end or none, or it has passed or is too far away.
    """
    text = digits(words)
    names_one = bool(_TIME.search(_OPEN.sub("", text)))
    if _OPEN.search(text) and not names_one:
        raise AnswerError(
            f"the words ask for no end; allowed: at most {LONGEST_S / 86_400:.0f} days (what stays belongs in the configuration)"
        )
    if ends == NOT_NAMED:
        if names_one:
            raise AnswerError("ends is 'not named', but the words name a time; allowed: the time that they name")
        return now_s + DEFAULT_S
    if not names_one:
        raise AnswerError(f"ends is {ends!r}, but the words name no time; allowed: {NOT_NAMED!r}")
    found_s = _span_end(ends, text, now_s) if ends.startswith("for ") else _clock_end(ends, text, now_s, zone)
    if not now_s < found_s <= now_s + LONGEST_S:
        hours = f"{(found_s - now_s) / 3600:.1f} h from now"
        raise AnswerError(f"ends is {ends!r}, {hours}; allowed: more than 0 and at most {LONGEST_S / 3600:.0f} h")
    return found_s


def without_times(words: str) -> str:
    """The words with their numbers in digits, but for those of times."""
    return _CLOCK_NUMBERS.sub(" ", _SPAN.sub(" ", digits(words)))


def _span_end(ends: str, text: str, now_s: float) -> float:
    _, count, unit = ends.split()
    minutes, named = float(count) * _MINUTES[unit[0]], set()
    for number, half, half_of, of, more in _SPAN.findall(_RATE.sub(" ", text)):
        base = {"": 1.0, "h": 0.5, "q": 0.25}[half_of[:1]] if not number else float(number)
        named.add((base + (0.5 if half or more else 0.0)) * _MINUTES[of[0]])
    if not is_in(minutes, named):
        told = ", ".join(f"{value:g} minutes" for value in sorted(named)) or "no span of time"
        raise AnswerError(f"ends is {ends!r}; the words name {told}")
    return now_s + 60.0 * minutes


def _clock_end(ends: str, text: str, now_s: float, zone: tzinfo | None) -> float:
    first, _, rest = ends.removeprefix("until ").partition(" ")
    day, clock = (first, rest) if re.fullmatch(_DAY, first) else ("", f"{first} {rest}".strip())
    now = datetime.fromtimestamp(now_s, zone)  # without a zone: this machine's wall clock
    try:
        found = _resolved(day, clock, now)
    except ValueError as error:
        raise AnswerError(f"ends is {ends!r}: {error}") from error
    fault = _day_fault(found, now, text) or _clock_fault(found, now, clock, text)
    if fault:
        raise AnswerError(f"ends is {ends!r}, that is {found:%A %H:%M}; {fault}")
    return found.timestamp()


def _resolved(day: str, clock: str, now: datetime) -> datetime:
    """The next such time after now. A bare hour of 1 to 12 is the next of the two; on another day 1 to 6 are in the afternoon."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    hours = _hours(clock)
    if day in ("", "today"):
        times = sorted(midnight + timedelta(hours=hour + later) for hour in hours for later in ((0.0,) if day else (0.0, 24.0)))
        return next((time for time in times if time > now), times[-1])
    hour = hours[-1] if 1 <= hours[0] < 7 and ":" not in clock else hours[0]
    if day in WEEKDAYS:
        found = midnight + timedelta(days=(WEEKDAYS.index(day) - now.weekday()) % 7, hours=hour)
        return found if found > now else found + timedelta(days=7)
    if day == "tomorrow":
        return midnight + timedelta(days=1, hours=hour)
    return datetime.fromisoformat(day).replace(tzinfo=now.tzinfo) + timedelta(hours=hour)


def _hours(clock: str) -> list[float]:
    """The hours of the day that a clock may mean: one, or two where it does not say which half of the day. No clock is a day's start."""
    if clock in ("", "noon", "midnight"):
        return [{"": 0.0, "noon": 12.0, "midnight": 24.0}[clock]]
    hour, minute, half = re.findall(r"(\d\d?)(?::(\d\d))?(?: ?([ap])m)?", clock)[0]
    exact = int(hour) + int(minute or 0) / 60.0
    if half:
        return [exact % 12.0 + (12.0 if half == "p" else 0.0)]
    bare = 1 <= int(hour) <= 12 and not (minute and len(hour) == 2)
    return [exact, exact + 12.0] if bare else [exact]


def _day_fault(found: datetime, now: datetime, text: str) -> str:
    """Why this is not the day that the words name; empty if it is."""
    days = {found.date(), (found - timedelta(seconds=1)).date()}  # midnight ends a day, and begins one
    named = {name for name in WEEKDAYS if re.search(rf"\b{_BEFORE_DAY} {name[:3]}({name[3:]}|s|r|rs)?\b", text)}
    named |= {"saturday", "sunday"} if "weekend" in text else set()
    next_day = (now + timedelta(days=1)).date()
    if ("tomorrow" in text and next_day in days) or named & {WEEKDAYS[day.weekday()] for day in days}:
        return ""
    if named or "tomorrow" in text:
        return f"the words name {' or '.join(sorted(named)) or 'tomorrow'}"
    if _MONTHS.search(text) and any(re.search(rf"\b0?{day.day}(st|nd|rd|th)?\b", text) for day in days):
        return ""
    return "the words name no day" if found - now > timedelta(days=1) else ""


def _clock_fault(found: datetime, now: datetime, clock: str, text: str) -> str:
    """Why this is not the time of the day that the words name; empty if it is."""
    if not clock:
        return "the words name a time of the day, too" if _CLOCK_WORDS.search(text) else ""
    if not found.minute and ((found.hour == 12 and re.search(r"\b(noon|midday)\b", text)) or (found.hour == 0 and _LATE.search(text))):
        return ""
    spoken = {number for number in numbers(re.sub(r":\d\d", "", text)) if number <= 24}
    exact = found.hour in spoken and (found.hour > 12 or re.search(r"\b\d\d:\d\d", text) is not None)
    if not exact and found.hour % 12 not in {number % 12 for number in spoken if number <= 12}:
        return "the words name no such hour"
    if found.minute and found.minute not in numbers(text) and not re.search(r"half.past|quarter", text):
        return "the words name no such minute"
    morning, evening = bool(_MORNING.search(text)), bool(_EVENING.search(text))
    if (morning and not evening and found.hour >= 12) or (evening and not morning and found.hour < 12):
        return "the words name the other half of the day"
    if not (exact or morning or evening) and clock and found - now > timedelta(hours=12) and _bare_day(text):
        return "the words name that hour without a day, and it comes sooner"
    return ""


def _bare_day(text: str) -> bool:
    """Whether the words name no day."""
    return not re.search(rf"\b(tomorrow|weekend|{'|'.join(WEEKDAYS)})\b|{_MONTHS.pattern}", text)
