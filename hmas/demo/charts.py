"""Charts as inline SVG, coloured by the page's own variables, so that they follow its light or dark scheme."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 16, 40


class Series(NamedTuple):
    """One line: name, number of its colour, and points in order of x."""

    name: str
    colour: int
    points: Sequence[tuple[float, float]]


class Bar(NamedTuple):
    """One bar; `part` of it, 0 to 1, is drawn solid (the good share), the rest pale."""

    name: str
    colour: int
    value: float
    label: str


class Band(NamedTuple):
    """A named range of the x axis, such as the time of a policy."""

    start: float
    end: float
    name: str


def nice_ticks(top: float, count: int = 5) -> list[float]:
    """Round values from 0 to at least `top`, about `count` of them."""
    if top <= 0:
        return [0.0, 1.0]
    raw = top / count
    magnitude = 10.0 ** len(str(int(raw))) / 10.0 if raw >= 1 else 1.0
    while magnitude > raw:
        magnitude /= 10.0
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= raw)
    ticks = [0.0]
    while ticks[-1] < top:
        ticks.append(round(ticks[-1] + step, 10))
    return ticks


class _Frame:
    """Axes with linear scales."""

    def __init__(self, x_max: float, y_max: float, *, x_label: str, y_label: str, x_min: float = 0.0) -> None:
        self.y_ticks = nice_ticks(y_max)
        self.x_min, self.x_max = x_min, max(x_max, x_min + 1e-9)
        self.parts = [_text(LEFT - 44, TOP + 4, y_label, "label", rotate=True), _text(WIDTH - RIGHT, HEIGHT - 6, x_label, "label end")]
        for tick in self.y_ticks:
            y = self.y(tick)
            self.parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            self.parts.append(_text(LEFT - 6, y + 4, f"{tick:g}", "tick end"))

    def x(self, value: float) -> float:
        share = (min(max(value, self.x_min), self.x_max) - self.x_min) / (self.x_max - self.x_min)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return TOP + (1.0 - min(max(value / self.y_ticks[-1], 0.0), 1.0)) * (HEIGHT - TOP - BOTTOM)

    def x_ticks(self) -> None:
        for tick in nice_ticks(self.x_max, 8):
            if self.x_min <= tick <= self.x_max:
                self.parts.append(_text(self.x(tick), HEIGHT - BOTTOM + 16, f"{tick:g}", "tick mid"))

    def svg(self, title: str) -> str:
        body = "".join(self.parts)
        return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{body}</svg>'


def bar_chart(title: str, bars: Sequence[Bar], y_label: str) -> str:
    """Bars side by side, each with its value above and its name below."""
    frame = _Frame(1.0, max((bar.value for bar in bars), default=1.0) * 1.1, x_label="", y_label=y_label)
    slot = (WIDTH - LEFT - RIGHT) / max(1, len(bars))
    for place, bar in enumerate(bars):
        x, y, base = LEFT + slot * (place + 0.2), frame.y(bar.value), frame.y(0)
        frame.parts.append(f'<rect class="bar c{bar.colour}" x="{x:.1f}" y="{y:.1f}" width="{slot * 0.6:.1f}" height="{base - y:.1f}"/>')
        frame.parts.append(_text(x + slot * 0.3, y - 5, bar.label, "value mid"))
        frame.parts.append(_text(x + slot * 0.3, base + 16, bar.name, "tick mid"))
    return frame.svg(title)


def line_chart(
    title: str, series: Sequence[Series], *, x_label: str, y_label: str, x_max: float | None = None, y_max: float | None = None
) -> str:
    """Lines over a common x axis from 0."""
    xs = [x for line in series for x, _ in line.points]
    ys = [y for line in series for _, y in line.points]
    frame = _Frame(x_max or max(xs, default=1.0), y_max or max(ys, default=1.0), x_label=x_label, y_label=y_label)
    frame.x_ticks()
    frame.parts.extend(_line(frame, line) for line in series)
    return frame.svg(title)


def timeline(title: str, series: Sequence[Series], bands: Sequence[Band], *, y_label: str) -> str:
    """Lines over time in seconds, with named ranges along the top."""
    xs = [x for line in series for x, _ in line.points]
    ys = [y for line in series for _, y in line.points]
    frame = _Frame(max(xs, default=1.0), max(ys, default=1.0) * 1.15, x_label="seconds", y_label=y_label, x_min=min([0.0, *xs]))
    for place, band in enumerate(bands):
        left, right = frame.x(band.start), frame.x(band.end)
        shade = "even" if place % 2 else "odd"
        frame.parts.append(
            f'<rect class="band {shade}" x="{left:.1f}" y="{TOP}" width="{right - left:.1f}" height="{HEIGHT - TOP - BOTTOM}"/>'
        )
        frame.parts.append(_text(left + 3, TOP + 11, band.name, "tick"))
    frame.x_ticks()
    frame.parts.extend(_line(frame, line) for line in series)
    return frame.svg(title)


def legend(names: Sequence[tuple[str, int]]) -> str:
    """Names with their colours."""
    items = "".join(f'<span><i class="c{colour}"></i>{escape(name)}</span>' for name, colour in names)
    return f'<p class="legend">{items}</p>'


def cdf(values: Sequence[float], total: int, points: int = 200) -> list[tuple[float, float]]:
    """Points (value, share of `total` at or below it); with fewer values than `total` it ends below 1."""
    ordered = sorted(values)
    step = max(1, len(ordered) // points)
    places = [*range(0, len(ordered), step), len(ordered) - 1] if ordered else []
    return [(ordered[place], (place + 1) / total) for place in sorted(set(places))]


def _line(frame: _Frame, line: Series) -> str:
    path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in line.points)
    return f'<polyline class="line c{line.colour}" points="{path}"><title>{escape(line.name)}</title></polyline>'


def _text(x: float, y: float, text: str, classes: str, *, rotate: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f}) translate(-{(HEIGHT - TOP - BOTTOM) / 2:.0f} 0)"' if rotate else ""
    classes = classes + " mid" if rotate else classes
    return f'<text class="{classes}" x="{x:.1f}" y="{y:.1f}"{turn}>{escape(text)}</text>'
