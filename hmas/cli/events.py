"""`hmas events`: prints each change with its source, its reason, and the values before and after."""

import asyncio
import json
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import click
import msgspec

from hmas.cli.admin import admin_url_option, config_option, connect, read_for_client
from hmas.cli.output import clock_words, example, hint, json_option, say, say_json
from hmas.controller.admin.client import AdminClient
from hmas.controller.bus.redis_bus import RedisBus
from hmas.controller.config.derived import bus_url
from hmas.controller.config.loader import STATE_DIR
from hmas.controller.config.schema import Config
from hmas.controller.core.errors import AdminUnreachable, BusError
from hmas.controller.core.messages import EVENTS, MAXLEN, Event

BUS = (STATE_DIR, ("bus", "url"), ("bus", "key_prefix"))
POLL_S = 1.0
CONNECT_S = 5.0
KEPT = 2000
"""Events that the gateway keeps."""
REMEMBERED = 4096
STEP_S = 10.0
"""Longest time between two steps of a knob that are shown as one change."""


@click.command(epilog=example("hmas events --follow"))
@click.option("--limit", type=click.IntRange(1, KEPT), default=30, show_default=True, help="How many of the newest to show.")
@click.option("--follow", "-f", is_flag=True, help="Go on printing what happens, until interrupted.")
@click.option("--kind", default="", help="Only kinds that begin like this: `knobs`, `override`, `agent.aside`.")
@click.option("--all", "everything", is_flag=True, help="Read the bus, which has the agents' and the supervisor's events too.")
@json_option
@admin_url_option
@config_option
def events(*, limit: int, follow: bool, kind: str, everything: bool, as_json: bool, admin_url: str | None, config_file: str | None) -> None:
    """Print the newest events, oldest first; steps by which an agent moves a knob are one line, except with --json and --all.

    With --follow --json: one JSON object per line.
    """
    if everything:
        config = read_for_client(config_file, BUS, "HMAS_STATE_DIR, HMAS_BUS__URL and HMAS_BUS__KEY_PREFIX")
        asyncio.run(_from_bus(config, limit, kind, follow=follow, as_json=as_json))
        return
    client = connect(admin_url, config_file)
    newest = client.events(KEPT)
    found = _of_kind(newest, kind)
    _print((found if as_json else joined(found))[-limit:], as_json=as_json, lines=follow)
    if follow:
        for event in _news(client, newest):
            _print(_of_kind([event], kind), as_json=as_json, lines=True)


def joined(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events with the steps of one knob together: a step that goes on from the one before, soon after it, is not shown apart."""
    found: dict[int, dict[str, Any]] = {}
    last: dict[tuple[str, str, str], int] = {}
    for number, event in enumerate(events):
        key = (event["source"], event["kind"], event["subject"])
        step = found.get(last.get(key, -1), {}) if event["kind"].startswith("knobs.") else {}
        more = {}
        if step and step["after"] == event["before"] and 0.0 <= event["sent_s"] - step["sent_s"] <= STEP_S:
            more = {"before": step["before"], "steps": step.get("steps", 1) + 1}
            del found[last[key]]
        last[key], found[number] = number, event | more
    return list(found.values())


def event_line(event: dict[str, Any]) -> str:
    """One event as a line of text."""
    mark = {"warning": "! ", "error": "!! "}.get(event.get("severity", "info"), "")
    change = " -> ".join(part for part in (event.get("before", ""), event.get("after", "")) if part)
    text = f"{clock_words(event['sent_s'])}  {mark}{event['source']}: {event['kind']} {event['subject']}"
    text += f": {change}" if change else ""
    text += f" in {event['steps']} steps" if "steps" in event else ""
    return text + (f" ({event['reason']})" if event.get("reason") else "")


def _print(found: Iterable[dict[str, Any]], *, as_json: bool, lines: bool) -> None:
    if as_json and not lines:
        say_json(list(found))
        return
    for event in found:
        say(json.dumps(event, ensure_ascii=False) if as_json else event_line(event))


def _news(client: AdminClient, newest: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields new events without end. If the gateway is unreachable, waits until it is back."""
    seen = deque((_identity(event) for event in newest), maxlen=REMEMBERED)
    away = False
    while True:
        time.sleep(POLL_S)
        try:
            found = client.events(KEPT)
        except AdminUnreachable as error:
            if not away:
                hint(f"{error}; waiting for it")
            away = True
            continue
        away = False
        known = set(seen)
        for event in found:
            if _identity(event) not in known:
                seen.append(_identity(event))
                yield event


def _identity(event: dict[str, Any]) -> str:
    return json.dumps(event, sort_keys=True)


def _of_kind(events: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["kind"].startswith(kind)]


async def _from_bus(config: Config, limit: int, kind: str, *, follow: bool, as_json: bool) -> None:
    bus = RedisBus(bus_url(config), config.bus.key_prefix)
    await bus.start()
    try:
        deadline_s = time.monotonic() + CONNECT_S
        while not bus.health.connected:
            if time.monotonic() > deadline_s:
                raise BusError(f"the bus does not answer: {bus.health.detail}; name it with bus.url or HMAS_BUS__URL")
            await asyncio.sleep(0.02)
        found = [
            msgspec.to_builtins(message)
            for message in await bus.latest(EVENTS, MAXLEN[EVENTS] if kind else limit)
            if isinstance(message, Event)
        ]
        _print(_of_kind(found, kind)[-limit:], as_json=as_json, lines=follow)
        if follow:
            async for batch in bus.follow([EVENTS]):
                news = [msgspec.to_builtins(delivery.message) for delivery in batch if isinstance(delivery.message, Event)]
                _print(_of_kind(news, kind), as_json=as_json, lines=True)
    finally:
        await bus.close()
