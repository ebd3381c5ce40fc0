"""Option types for numbers, durations and NAME=VALUE pairs."""

import math
import re
from typing import Any

import click

_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|min|m|h|d)")
MAX_DURATION_S = 366 * 86_400.0


class Number(click.FloatRange):
    """A finite number in a range. click's own range lets NaN pass, since no comparison holds for it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the number."""
        number: float = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value!r} is not finite; allowed: a finite number", param, ctx)


class Duration(click.ParamType[float]):
    """Seconds from a text such as `90s`, `10m`, `2h`, `1h30m` or `1d`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the duration in seconds, more than 0 and at most 366 days."""
        if isinstance(value, float):
            return value
        text = str(value).strip().lower()
        parts = _DURATION.findall(text)
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
        if "".join(number + unit for number, unit in parts) != text or not 0 < seconds <= MAX_DURATION_S:
            self.fail(f"{value!r} is no duration; allowed: such as 90s, 10m, 2h, 1h30m, 1d, 366 days at most", param, ctx)
        return seconds


class Pair(click.ParamType[tuple[str, float]]):
    """A name and a number from a text such as `threshold_ms=500`."""

    name = "name=number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        """Returns the pair."""
        if isinstance(value, tuple):
            return value
        name, equals, number = str(value).partition("=")
        try:
            pair = (name.strip(), float(number))
        except ValueError:
            pair = ("", 0.0)
        if not (pair[0] and equals and math.isfinite(pair[1])):
            self.fail(f"{value!r} is no parameter; allowed: NAME=NUMBER, such as threshold_ms=500", param, ctx)
        return pair
