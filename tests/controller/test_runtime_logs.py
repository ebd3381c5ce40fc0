"""Log lines as people and collectors get them."""

import io
import json
import logging
import re
import warnings

import pytest

from hmas.controller.runtime import logs


@pytest.fixture
def written():
    """Sets logging up on a buffer and puts the root logger back afterwards."""
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    stream = io.StringIO()

    def configure(level="info", style="text"):
        logs.configure(level, style, "gateway", stream)
        return stream

    yield configure
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    logging.captureWarnings(capture=False)


def test_text(written):
    stream = written()
    logging.getLogger("a.b").warning("gave up after %d", 3, extra={"request_id": "r1", "decision_id": "d1", "other": "x"})
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING gateway a\.b: gave up after 3 request_id=r1 decision_id=d1\n", stream.getvalue()
    )


def test_json(written):
    stream = written(style="json")
    logging.getLogger("a.b").info("hello\nworld", extra={"request_id": "r1"})
    document = json.loads(stream.getvalue())
    assert document.pop("time").endswith("Z")
    assert document == {"level": "info", "process": "gateway", "logger": "a.b", "message": "hello\nworld", "request_id": "r1"}
    assert stream.getvalue().count("\n") == 1


def test_a_message_cannot_forge_a_line_of_its_own(written):
    stream = written()
    logging.getLogger("x").info("user said %s", "a\n2030-01-01T00:00:00.000Z ERROR gateway x: forged")
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize("style", ["text", "json"])
def test_long_and_undecodable_messages(written, style):
    stream = written(style=style)
    logging.getLogger("x").info("%s", "y" * 100_000)
    logging.getLogger("x").info("bad \udcff byte")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert len(lines[0]) < 9_000
    assert "udcff byte" in lines[1]


def test_tracebacks(written):
    stream = written(style="json")
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("x").exception("failed")
    assert "ValueError: broken" in json.loads(stream.getvalue())["trace"]
    stream = written()
    stream.truncate(0)
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("x").exception("failed")
    assert stream.getvalue().rstrip().endswith("ValueError: broken")


def test_the_level_holds_and_configuring_twice_writes_once(written):
    written("debug")
    stream = written("warning")
    logging.getLogger("x").info("unseen")
    logging.getLogger("x").warning("seen")
    assert stream.getvalue().count("\n") == 1


def test_warnings_are_logged(written):
    stream = written()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old call", DeprecationWarning, stacklevel=1)
    assert "old call" in stream.getvalue()
