"""Sets up logging: one line per record on stderr, as text or as JSON.

Every module logs through `logging.getLogger(__name__)`. The ids that a line concerns go into `extra`, such as
`log.warning("gave up", extra={"request_id": id})`, and are written as separate fields.
"""

import logging
import sys
from datetime import UTC, datetime
from typing import Literal, TextIO

import orjson

FIELDS = ("request_id", "decision_id", "engine", "tenant", "child")
"""Names in `extra` that are written; others are ignored."""
MESSAGE_LIMIT = 8_000
"""Longest message in characters; longer ones are cut, so that one bad prompt or stack cannot flood a log."""

_QUIET = ("asyncio", "aiohttp.access", "matplotlib")


def configure(
    level: Literal["debug", "info", "warning", "error"], style: Literal["text", "json"], process: str, stream: TextIO | None = None
) -> None:
    """Replaces all handlers of the root logger.

    Args:
        level: Lowest severity that is written.
        style: `text` for people, `json` for collectors.
        process: Name of this process in every line, such as `gateway` or `qos`.
        stream: Where to write, stderr by default.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(process) if style == "json" else TextFormatter(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)


class TextFormatter(logging.Formatter):
    """`2030-01-31T18:00:00.123Z WARNING gateway hmas.controller.runtime.logs: message request_id=...`; a traceback on lines of its own."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of text, followed by its traceback if it has one."""
        ids = "".join(f" {name}={value}" for name, value in _fields(record).items())
        # A newline in external data must not forge a log line.
        message = _message(record).replace("\r", "\\r").replace("\n", "\\n")
        line = f"{_when(record)} {record.levelname} {self._process} {record.name}: {message}{ids}"
        trace = self._trace(record)
        return f"{line}\n{trace}" if trace else line

    def _trace(self, record: logging.LogRecord) -> str:
        return self.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""


class JsonFormatter(TextFormatter):
    """One JSON object per line: time, level, process, logger, message, the ids, and `trace` if there is a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line of JSON."""
        document: dict[str, object] = {
            "time": _when(record),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": _message(record),
            **_fields(record),
        }
        trace = self._trace(record)
        if trace:
            document["trace"] = trace[-MESSAGE_LIMIT:]
        return orjson.dumps(document, default=str).decode()


def _message(record: logging.LogRecord) -> str:
    text = record.getMessage()
    # Lone surrogates (undecodable bytes of a client) cannot be encoded, neither as JSON nor to the terminal.
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= MESSAGE_LIMIT else text[:MESSAGE_LIMIT] + "..."


def _fields(record: logging.LogRecord) -> dict[str, str]:
    return {name: str(getattr(record, name)) for name in FIELDS if getattr(record, name, "") not in ("", None)}


def _when(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
