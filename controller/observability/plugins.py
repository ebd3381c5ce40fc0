"""Loads the exporters of installed packages: observers that they declare as entry points of the group `hmas.observers`."""

import logging
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from hmas.controller.observability.observer import Observer

GROUP = "hmas.observers"
EVENTS = tuple(name for name in vars(Observer) if not name.startswith("_") and name != "close")
"""The methods of an observer that are called on every event."""
log = logging.getLogger(__name__)


def load_exporters() -> tuple[dict[str, Observer], dict[str, str]]:
    """Creates every exporter. Returns them by entry point (`NAME = MODULE:CLASS`), and the reasons against those that cannot be used.

    An exporter never disturbs the gateway: where one of its methods raises, the first error is logged and the event goes on.
    """
    exporters: dict[str, Observer] = {}
    refused: dict[str, str] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        label = f"{point.name} = {point.value}"
        try:
            exporters[label] = _create(point)
        except Exception as error:  # noqa: BLE001  code of a plugin: any error is reported, and the service goes on
            refused[label] = f"{type(error).__name__}: {error}"
    return exporters, refused


def _create(point: EntryPoint) -> Observer:
    kind = point.load()
    if not (isinstance(kind, type) and issubclass(kind, Observer)):
        raise TypeError(f"{point.value} is {kind!r}; allowed: a class that derives from {Observer.__module__}.Observer")
    events = {
        name: _guarded(f"{point.name}.{name}", getattr(kind, name)) for name in EVENTS if getattr(kind, name) is not vars(Observer)[name]
    }
    created: Observer = type(kind.__name__, (kind,), events)()
    return created


def _guarded(name: str, method: Callable[..., None]) -> Callable[..., None]:
    """`method` with its errors logged: the first one as an error, later ones only for debugging."""
    failures = 0

    def call(*arguments: Any) -> None:
        nonlocal failures
        try:
            method(*arguments)
        except Exception:
            level = logging.DEBUG if failures else logging.ERROR
            failures += 1
            log.log(level, "exporter %s has failed; later errors of this method are logged at level DEBUG", name, exc_info=True)

    return call
