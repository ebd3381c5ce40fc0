"""Recorded telemetry: read, written, and replayed through the agent's model, to learn from it or to measure the model."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

from hmas.agents.prediction.experience import Table
from hmas.agents.prediction.model import PredictionModel
from hmas.agents.prediction.regressor import CatBoostRegressor
from hmas.controller.bus.codec import decode, encode
from hmas.controller.core.errors import MessageError, TraceError
from hmas.controller.core.messages import Completion, Message, RequestCost, RequestFeatures, SystemSnapshot
from hmas.controller.core.types import OutcomeKind

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
    for _ in _replayed(messages, model):
        pass
    return model.experience.table()


def measured(messages: Iterable[Message], regressor: CatBoostRegressor | None) -> dict[str, dict[str, float]]:
    """Returns how far the agent's predictions would have been from the outcomes, each made before its outcome.

    Args:
        messages: Snapshots, features and completions.
        regressor: The learnt correction; None leaves formula and residuals.

    Returns:
        By `ttft_ms`, `tpot_ms` and `total_ms` (from dispatch, as policies compute it): `n` and `median_error` (relative, of the medians).
        Quantities without an outcome are left out.
    """
    pairs: dict[str, list[tuple[float, float]]] = {"ttft_ms": [], "tpot_ms": [], "total_ms": []}
    for cost, ended in _replayed(messages, PredictionModel(regressor)):
        name = ended.instance
        total_ms = cost.ttft_ms[name] + cost.tpot_ms[name] * cost.output_tokens
        pairs["ttft_ms"].append((ended.service_ttft_ms, cost.ttft_ms[name]))
        pairs["tpot_ms"].append((ended.tpot_ms, cost.tpot_ms[name]))
        pairs["total_ms"].append((ended.total_ms - max(0.0, ended.queue_ms), total_ms))
    found = {}
    for quantity, values in pairs.items():
        kept = [value for value in values if value[0] > 0.0]
        if kept:
            found[quantity] = {
                "n": len(kept),
                "median_error": median(abs(said - came) / came for came, said in kept),
            }
    return found


def _replayed(messages: Iterable[Message], model: PredictionModel) -> Iterator[tuple[RequestCost, Completion]]:
    """Replays messages in the order of their times; yields each completed request that had a prediction for its instance."""
    costs: dict[str, RequestCost] = {}
    kept = [message for message in messages if isinstance(message, SystemSnapshot | RequestFeatures | Completion)]
    for message in sorted(kept, key=lambda one: one.sent_s):
        if isinstance(message, SystemSnapshot):
            model.observe(message)
        elif isinstance(message, RequestFeatures):
            costs |= {cost.request_id: cost for cost in model.predict([message], message.sent_s)}
        else:
            cost = costs.pop(message.request_id, None)
            if cost is not None and message.outcome is OutcomeKind.COMPLETED and message.instance in cost.ttft_ms:
                yield cost, message
            model.learn(message)
