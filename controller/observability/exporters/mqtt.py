"""State, events and decisions of a gateway as MQTT messages. docs/mqtt.md lists topics and documents."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import orjson
from prometheus_client import CollectorRegistry, Gauge

from hmas.controller.control.resolve import KNOBS
from hmas.controller.observability.counters import Counter
from hmas.controller.observability.exporters.mqtt_outbox import Outbox, Outgoing
from hmas.controller.observability.observer import Directives, Event, MetaDecision, Observer, SystemSnapshot

VERSION = 1
GOODPUT_EVERY_S = 5.0
"""How often goodput is summed up."""


class MqttExporter(Observer):
    """Fills the outbox. Does nothing per request: state is read from the snapshot at each tick, at most once per period.

    Attributes:
        goodput: Sums up the requests of the last minute by task type.
        on_close: Ends the connection.
    """

    def __init__(self, outbox: Outbox, *, prefix: str, period_s: float) -> None:
        self.goodput: Callable[[], Mapping[str, Any]] = dict
        self.on_close: Callable[[], Any] | None = None
        self._outbox = outbox
        self._prefix = prefix
        self._period_s = period_s
        self._state_s = self._goodput_s = 0.0
        self._directives: Directives | None = None

    def count(self, registry: CollectorRegistry, connected: Callable[[], bool]) -> Counter:
        """Registers the metrics, and returns the counter of commands by their result."""
        up = Gauge("hmas_mqtt_connected", "1 while the MQTT broker is connected.", registry=registry)
        up.set_function(lambda: float(connected()))
        help_text = "Messages dropped as the MQTT broker was away or did not take them."
        dropped = Counter("hmas_mqtt_dropped_messages", help_text, registry=registry)
        self._outbox.dropped = dropped.inc
        return Counter("hmas_mqtt_commands", "Commands over MQTT, by result (done, refused).", ["result"], registry=registry)

    def control_changed(self, before: Directives | None, after: Directives, now_s: float) -> None:
        """See `Observer.control_changed`. A changed policy is sent with the next tick."""
        self._directives = after
        if before is None or before.policy != after.policy:
            self._state_s = 0.0

    def noted(self, event: Event) -> None:
        """See `Observer.noted`."""
        self._outbox.add(Outgoing(f"{self._prefix}/event/{event.kind}", document(msgspec.structs.asdict(event))))

    def decided(self, decision: MetaDecision) -> None:
        """See `Observer.decided`."""
        self._outbox.add(Outgoing(f"{self._prefix}/decision", document(msgspec.to_builtins(decision))))

    def sampled(self, snapshot: SystemSnapshot) -> None:
        """See `Observer.sampled`."""
        if snapshot.sent_s - self._state_s < self._period_s:
            return
        self._state_s = snapshot.sent_s
        state = {"health": _health(snapshot)}
        if self._directives is not None:
            state |= {"policy": _policy(self._directives), "windows": _windows(self._directives)}
        if snapshot.sent_s - self._goodput_s >= GOODPUT_EVERY_S:
            self._goodput_s = snapshot.sent_s
            state["goodput"] = dict(self.goodput())
        for name, values in state.items():
            self._outbox.keep(f"{self._prefix}/state/{name}", document(values))

    async def close(self) -> None:
        """See `Observer.close`."""
        if self.on_close is not None:
            await self.on_close()


def document(values: Mapping[str, Any]) -> bytes:
    """The payload of a message."""
    return orjson.dumps({"version": VERSION, **values}, default=str, option=orjson.OPT_NON_STR_KEYS)


def _policy(directives: Directives) -> dict[str, Any]:
    policy = directives.policy
    return {
        "name": policy.value,
        "parameters": dict(directives.parameters),
        "source": policy.source,
        "reason": policy.reason,
        "decision_id": policy.decision_id,
        "forced": list(directives.forced),
    }


def _windows(directives: Directives) -> dict[str, Any]:
    instances = {}
    for name, one in directives.instances.items():
        settings = {knob: getattr(one, knob) for knob in KNOBS}
        instances[name] = {
            knob: {"value": getattr(one.controls, knob), "source": setting.source, "reason": setting.reason}
            for knob, setting in settings.items()
        }
    return {"instances": instances, "draining": sorted(directives.draining)}


def _health(snapshot: SystemSnapshot) -> dict[str, Any]:
    return {
        "gateway": snapshot.gateway,
        "queued": snapshot.queued,
        "overdue": snapshot.overdue,
        "oldest_wait_ms": round(snapshot.oldest_wait_ms),
        "instances": {
            view.name: {
                "healthy": view.engine is not None and view.engine.healthy,
                "detail": "not reached yet" if view.engine is None else view.engine.detail,
                "draining": view.draining,
                "in_flight": view.in_flight,
                "kv_usage": None if view.engine is None else view.engine.kv_usage,
            }
            for view in snapshot.instances
        },
    }
