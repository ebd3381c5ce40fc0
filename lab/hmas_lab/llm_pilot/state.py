"""Computes the state of telemetry of a cell when a request was sent, from the earlier part of a request log. Pure.

One request says little: two tokens make one step, with or without another request's prompt in it. So times between tokens are averaged by
tokens, over the last few and over many requests, and also over answers of about the same length.
"""

import math

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]

STATE = (
    "recent_ttft",
    "recent_itl",
    "told",
    "in_flight_share",
    "waiting_share",
    "burst_share",
    "last_ttft",
    "long_ttft",
    "long_itl",
    "like_itl",
    "decoded",
    "oldest_waiting",
    "since_first",
)
"""Logarithms of milliseconds and of counts (`told` first tokens, `decoded` answers of two tokens and more); shares of users."""
OF_TTFT = ("recent_ttft", "last_ttft", "long_ttft", "oldest_waiting", "since_first")
"""Columns relative to the time to first token."""
OF_ITL = ("recent_itl", "long_itl", "like_itl")
"""Columns relative to the time between tokens."""
RECENT = 8
LONG = 64
LAST = 2
LIKE = 4
"""Requests over which the columns of these names are averaged."""
CLASSES = (3, 6, 10, 20, 50)
"""Output tokens at which the length classes of `like_itl` begin."""
BURST_MS = 100.0


def state_of(
    *, users: Column, output: Column, start_ms: Column, first_ms: Column, end_ms: Column, ttft_ms: Column, itl_ms: Column
) -> Column:
    """Returns the state of each request of one cell and file, shape (rows, len(STATE)); NaN where no result was known yet.

    Columns are those of `llm_pilot.Rows`: `first_ms` and `end_ms` are times in the run, as `start_ms` is; `itl_ms` is NaN with fewer than
    two tokens.
    """
    started = np.searchsorted(np.sort(start_ms), start_ms, side="left")
    ended = np.searchsorted(np.sort(end_ms), start_ms, side="right")
    answered = np.searchsorted(np.sort(first_ms), start_ms, side="right")
    earlier = np.searchsorted(np.sort(start_ms), start_ms - BURST_MS, side="left")
    log_ttft = np.log(ttft_ms)
    kept = np.flatnonzero(~np.isnan(itl_ms))
    told, itl, steps = end_ms[kept], itl_ms[kept], output[kept] - 1.0
    oldest, since = _waits(start_ms, first_ms)
    found = {
        "recent_ttft": _recent(first_ms, log_ttft, start_ms, RECENT),
        "last_ttft": _recent(first_ms, log_ttft, start_ms, LAST),
        "long_ttft": _recent(first_ms, log_ttft, start_ms, LONG),
        "recent_itl": np.log(_recent(told, itl, start_ms, RECENT, steps)),
        "long_itl": np.log(_recent(told, itl, start_ms, LONG, steps)),
        "like_itl": _like(told, itl, output[kept], start_ms, output),
        "told": np.log1p(answered),
        "decoded": np.log1p(np.searchsorted(np.sort(told), start_ms, side="right")),
        "in_flight_share": (started - ended) / users,
        "waiting_share": (started - answered) / users,
        "burst_share": (started - earlier) / users,
        "oldest_waiting": oldest,
        "since_first": since,
    }
    return np.column_stack([found[name] for name in STATE])


def _recent(told_ms: Column, values: Column, now_ms: Column, window: int, weights: Column | None = None) -> Column:
    """Returns the weighted mean of the last `window` values known at each time; NaN before the first."""
    order = np.argsort(told_ms, kind="stable")
    mass = np.ones(len(values)) if weights is None else weights
    sums = np.concatenate([[0.0], np.cumsum((values * mass)[order])])
    masses = np.concatenate([[0.0], np.cumsum(mass[order])])
    upto = np.searchsorted(told_ms[order], now_ms, side="right")
    since = np.maximum(0, upto - window)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(upto > 0, (sums[upto] - sums[since]) / (masses[upto] - masses[since]), math.nan)


def _like(told_ms: Column, itl_ms: Column, output: Column, now_ms: Column, asked: Column) -> Column:
    """Returns the logarithm of the time between tokens of the last answers of the same length class."""
    found = np.full(len(now_ms), math.nan)
    classes, wanted = np.digitize(output, CLASSES), np.digitize(asked, CLASSES)
    for one in np.unique(classes):
        same, who = classes == one, wanted == one
        found[who] = _recent(told_ms[same], np.log(itl_ms[same]), now_ms[who], LIKE)
    return found


def _waits(sent_ms: Column, first_ms: Column) -> tuple[Column, Column]:
    """Returns logarithms of the wait of the oldest request without a token, and of the time since the last first token; NaN for none."""
    order = np.argsort(sent_ms, kind="stable")
    oldest = np.full(len(sent_ms), math.nan)
    at = 0
    for number, place in enumerate(order):
        while at < number and first_ms[order[at]] <= sent_ms[place]:
            at += 1
        if sent_ms[order[at]] < sent_ms[place]:
            oldest[place] = math.log1p(sent_ms[place] - sent_ms[order[at]])
    came = np.sort(first_ms)
    upto = np.searchsorted(came, sent_ms, side="right")
    since = np.where(upto > 0, np.log1p(np.maximum(0.0, sent_ms - came[np.maximum(upto - 1, 0)])), math.nan)
    return oldest, since
