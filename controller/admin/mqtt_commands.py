"""Commands over MQTT: each is one of the changes that the operators' API makes, and is refused with the same errors."""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any

from hmas.controller.admin.changes import BadRequest, Changes, error_document, json_object, override_refused
from hmas.controller.core.errors import SHOWN_CHARS, OverrideError
from hmas.controller.runtime.clock import Clock
from hmas.controller.scheduling.admission.token_bucket import TokenBucket

VERSION = 1
MAX_BYTES = 64 * 1024
MESSAGE_MOST = 2000
"""Characters of an error: it may quote a command, and is kept as an event."""
EVENT = "mqtt.command"
STRANGERS = ""
"""Stands for all users that may send no commands, but whose topic the session at the broker still has."""
BY_DEFAULT = "commanded over MQTT"
"""The reason of a command that gives none."""
log = logging.getLogger(__name__)

Run = Callable[[str, dict[str, Any]], Awaitable[bool]]
"""Runs a command of a user; returns whether it changed anything."""


class MqttCommands:
    """Checks and runs the commands of configured users, and notes each as an event with its user."""

    def __init__(self, changes: Changes, *, users: Collection[str], per_minute: int, clock: Clock, note: Callable[..., None]) -> None:
        """Takes commands of `users`, `per_minute` of each; more are refused, so that a flood by one user keeps no other from sending."""
        self._changes = changes
        self._users = frozenset(users)
        self._buckets = {user: TokenBucket(per_minute, per_minute / 60.0, clock.now_s()) for user in (STRANGERS, *users)}
        self._clock = clock
        self._note = note
        self._flooding: set[str] = set()
        self._runs: Mapping[str, Run] = {
            "policy.force": partial(self._force, changes.force_policy),
            "policy.release": self._release_policy,
            "router.force": partial(self._force, changes.force_router),
            "router.release": partial(self._release, changes.release_router, "model"),
            "knobs.force": partial(self._force, changes.force_knobs),
            "knobs.release": partial(self._release, changes.release_knobs, "instance"),
            "override.apply": self._apply_override,
            "override.clear": self._clear_override,
            "engine.drain": self._drain,
            "engine.undrain": self._undrain,
        }

    async def answer(self, user: str, payload: bytes, *, retained: bool) -> dict[str, Any] | None:
        """Runs one command and returns the document of the answer; None for an empty message, with which MQTT clears a retained one.

        Args:
            user: Who sent it, by the topic that the broker keeps for this user.
            payload: The command, a JSON object.
            retained: Whether it is a retained message, which would come again with every new session and is never run.
        """
        if not payload:
            return None
        now_s, name, reason = self._clock.now_s(), "", ""
        bucket = self._buckets.get(user, self._buckets[STRANGERS])
        flooded = bucket.level(now_s) < 1.0
        try:
            if flooded:
                wait_s = bucket.wait_s(1.0, now_s)
                text = f"more than {bucket.capacity:g} commands in a minute; the next one may come in {wait_s:.1f} s"
                raise BadRequest(text, code="rate_limited")
            bucket.take(1.0, now_s)
            document = self._read(user, payload, retained=retained)
            name = document.pop("command")
            reason = str(document.get("reason") or "")[:SHOWN_CHARS]
            changed = await self._runs[name](user, document)
        except BadRequest as error:
            refusal = error
        except OverrideError as error:
            refusal = override_refused(error)
        except Exception:
            log.exception("command %r of %s failed", name, user)
            refusal = BadRequest("the gateway failed on this command; its log has the reason", code="internal_error")
        else:
            self._flooding.discard(user)
            self._note(EVENT, user, after=name, reason=reason, source="operator")
            return {"version": VERSION, "ok": True, "command": name, "changed": changed}
        shown = {key: text[:MESSAGE_MOST] for key, text in error_document(refusal).items()}
        # Of a flood, one event says that it began: the events would be a flood themselves.
        if not (flooded and user in self._flooding):
            self._note(EVENT, user, after=f"{name or 'command'} refused", reason=shown["message"], severity="warning", source="operator")
        if flooded:
            self._flooding.add(user)
        else:
            self._flooding.discard(user)
        return {"version": VERSION, "ok": False, "command": name, "error": shown}

    def _read(self, user: str, payload: bytes, *, retained: bool) -> dict[str, Any]:
        """The command, checked as far as all commands are alike."""
        if user not in self._users:
            raise BadRequest(f"user {user!r} may send no commands; allowed: mqtt.command_users", code="forbidden")
        if retained:
            raise BadRequest("the message is retained; allowed: commands that are not, as a retained one would run again", code="retained")
        if len(payload) > MAX_BYTES:
            raise BadRequest(f"the command has {len(payload)} bytes; allowed: {MAX_BYTES} at most", code="request_too_large")
        document = json_object(payload, "the command")
        version, name = document.pop("version", VERSION), document.get("command")
        if version != VERSION:
            raise BadRequest(f"version is {str(version)[:SHOWN_CHARS]}; allowed: {VERSION}", path="$.version")
        if not isinstance(name, str) or name not in self._runs:
            raise BadRequest(f"command is {str(name)[:SHOWN_CHARS]!r}; allowed: {', '.join(self._runs)}", path="$.command")
        if "author" in document:
            raise BadRequest("author is given; allowed: no author, as the user of the topic is the author", path="$.author")
        return document

    async def _force(self, force: Callable[[dict[str, Any]], Awaitable[None]], user: str, command: dict[str, Any]) -> bool:
        await force({"reason": BY_DEFAULT, **command, "author": user})
        return True

    async def _release(self, release: Callable[[str], Awaitable[bool]], of: str, _: str, command: dict[str, Any]) -> bool:
        """Releases what was forced for the model or instance that the key `of` names, by default for all."""
        _only(command, of, "reason")
        return await release(_text({of: "*", **command}, of))

    async def _release_policy(self, _: str, command: dict[str, Any]) -> bool:
        _only(command, "reason")
        return await self._changes.release_policy()

    async def _apply_override(self, user: str, command: dict[str, Any]) -> bool:
        _only(command, "id", "document", "reason")
        document = command.get("document")
        if not isinstance(document, dict):
            raise BadRequest(f"document is {str(document)[:SHOWN_CHARS]!r}; allowed: an override as a JSON object", path="$.document")
        # The document may name another author, who wrote it; who applied it is known from the broker.
        await self._changes.put_override(_text(command, "id"), {**document, "author": user})
        return True

    async def _clear_override(self, _: str, command: dict[str, Any]) -> bool:
        _only(command, "id", "reason")
        await self._changes.remove_override(_text(command, "id"))
        return True

    async def _drain(self, user: str, command: dict[str, Any]) -> bool:
        engine = command.pop("engine", None)
        await self._changes.drain(engine, {"reason": BY_DEFAULT, **command, "author": user})
        return True

    async def _undrain(self, _: str, command: dict[str, Any]) -> bool:
        _only(command, "engine", "reason")
        return await self._changes.undrain(command.get("engine"))


def _only(command: dict[str, Any], *keys: str) -> None:
    for key in command:
        if key not in keys:
            raise BadRequest(f"{key!r} is unknown; allowed: {', '.join(keys)}", path=f"$.{key}")


def _text(command: dict[str, Any], key: str) -> str:
    value = command.get(key)
    if not isinstance(value, str):
        raise BadRequest(f"{key} is {str(value)[:SHOWN_CHARS]!r}; allowed: a text", path=f"$.{key}")
    return value
