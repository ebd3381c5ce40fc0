import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmas.demo.charts import HEIGHT, WIDTH, Band, Bar, Series, bar_chart, cdf, legend, line_chart, nice_ticks, timeline


def numbers(svg, attribute):
    return [float(value) for value in re.findall(rf'{attribute}="(-?[\d.]+)"', svg)]


@given(st.floats(1e-3, 1e7))
def test_ticks_reach_the_top_in_few_round_steps(top):
    ticks = nice_ticks(top)
    assert ticks[0] == 0
    assert ticks[-1] >= top
    assert len(ticks) <= 12
    assert ticks == sorted(set(ticks))


def test_ticks_of_nothing():
    assert nice_ticks(0) == [0.0, 1.0]


def test_bars_are_as_high_as_their_values():
    svg = bar_chart("Goodput", [Bar("a", 0, 10.0, "10"), Bar("b", 3, 5.0, "5")], "good/s")
    root = ET.fromstring(svg)
    bars = list(root.iter("rect"))
    heights = [float(bar.get("height")) for bar in bars]
    assert heights[0] == pytest.approx(2 * heights[1], rel=0.01)
    assert "a" in svg
    assert 'class="bar c3"' in svg


def test_lines_stay_inside_the_frame():
    svg = line_chart("x", [Series("s", 1, [(0, 0), (5, 2), (10, 99)])], x_label="s", y_label="n", y_max=10)
    points = re.search(r'points="([^"]+)"', svg).group(1).split()
    for point in points:
        x, y = map(float, point.split(","))
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT
    ET.fromstring(svg)


def test_timeline_marks_its_bands():
    svg = timeline("t", [Series("q", 2, [(0, 1), (8, 3)])], [Band(0, 4, "edf"), Band(4, 8, "sjf")], y_label="requests")
    assert ">edf<" in svg
    assert ">sjf<" in svg
    assert svg.count('class="band') == 2
    ET.fromstring(svg)


def test_empty_charts_are_still_charts():
    for svg in (bar_chart("x", [], "y"), line_chart("x", [], x_label="", y_label=""), timeline("x", [], [], y_label="")):
        ET.fromstring(svg)


def test_names_are_escaped():
    assert "<script>" not in legend([("<script>", 0)])
    ET.fromstring(line_chart("<&>", [Series('"<&>"', 0, [(0, 0), (1, 1)])], x_label="<", y_label="&"))


@given(st.lists(st.floats(0, 1e4), max_size=500), st.integers(0, 50))
def test_cdf_rises_to_the_share_that_has_a_value(values, missing):
    total = max(1, len(values) + missing)
    points = cdf(values, total)
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert [y for _, y in points] == sorted(y for _, y in points)
    if values:
        assert points[-1] == (max(values), pytest.approx(len(values) / total))
    else:
        assert points == []
