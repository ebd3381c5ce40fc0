"""Converts telemetry to training data: recorded messages are replayed through the agent's model."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from hmas.agents.prediction.experience import Table
from hmas.agents.prediction.model import PredictionModel
from hmas.agents.prediction.regressor import CatBoostRegressor
from hmas.controller.bus.codec import decode, encode
from hmas.controller.core.errors import MessageError, TraceError
from hmas.controller.core.messages import Completion, Message, RequestFeatures, SystemSnapshot

MAX_LINES = 2_000_000


def read_messages(paths: Sequence[Path]) -> list[Message]:
    """Reads messages of files with one bus payload per line, as `hmas train prediction --record` writes them.

    Raises:
        TraceError: A file cannot be read, a line is no message, or there are too many; names file and line.
    """
    found: list[Message] = []
    for path in paths:
        at = 0
        try:
            with path.open("rb") as source:
                for line in source:
                    at += 1
                    if line.strip():
                        found.append(decode(line))
                    if len(found) > MAX_LINES:
                        raise TraceError(f"{path}: more than {MAX_LINES} messages; allowed: up to that")
        except OSError as error:
            raise TraceError(f"{path}: {error.strerror}") from error
        except MessageError as error:
            raise TraceError(f"{path}, line {at}: {error}") from error
    return found


def write_messages(path: Path, messages: Iterable[Message]) -> int:
    """Writes messages one per line and returns their number.

    Raises:
        TraceError: The file cannot be written.
    """
    count = 0
    try:
        with path.open("wb") as target:
            for message in messages:
                target.write(encode(message) + b"\n")
                count += 1
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    return count


def labelled_of(messages: Iterable[Message], regressor: CatBoostRegressor | None) -> Table:
    """Returns what the agent would have learnt from the snapshots, features and completions, in the order of their times."""
    model = PredictionModel(regressor)
    kept = [message for message in messages if isinstance(message, SystemSnapshot | RequestFeatures | Completion)]
    for message in sorted(kept, key=lambda one: one.sent_s):
        if isinstance(message, SystemSnapshot):
            model.observe(message)
        elif isinstance(message, RequestFeatures):
            model.predict([message], message.sent_s)
        else:
            model.learn(message)
    return model.experience.table()
