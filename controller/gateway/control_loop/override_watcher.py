"""Watches the override directory: reads it about twice a second, applies it as a whole, and keeps its last valid state."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from hmas.controller.bus.base import Bus
from hmas.controller.config.override_directory import OverrideDirectory
from hmas.controller.config.override_format import document_of
from hmas.controller.control.overrides import Override, effective
from hmas.controller.core.errors import OverrideError
from hmas.controller.core.messages import OverrideNotice
from hmas.controller.gateway.control_loop.apply import Control
from hmas.controller.observability.observer import Observers
from hmas.controller.runtime.clock import Clock

SCAN_S = 0.5
log = logging.getLogger(__name__)


class OverrideWatch:
    """Turns the files of the directory into the active notice.

    A file that is well formed but cannot be applied here (an unknown engine, a parameter out of range) is treated like a broken one: its
    last valid version stays active, and the reason is reported as an event and in `errors`. At a start, one whose only faults are
    engines that are not there is active all the same.

    Attributes:
        held: The active overrides, by id.
        errors: The faults of files, by file name.
        on_held: Called when the active overrides have changed, because waiting requests may be dispatched now.
    """

    def __init__(self, directory: Path, *, control: Control, bus: Bus, observer: Observers, clock: Clock) -> None:
        self.held: dict[str, Override] = {}
        self.errors: dict[str, str] = {}
        self.path = directory
        self.on_held: Callable[[], None] = lambda: None
        self._directory = OverrideDirectory(directory)
        self._control = control
        self._bus = bus
        self._observer = observer
        self._clock = clock
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """Scans until cancelled."""
        while True:
            await asyncio.sleep(SCAN_S)
            try:
                await self.scan()
            except Exception:
                log.exception("scanning the override directory failed")

    async def scan(self, *, announce: bool = False) -> None:
        """Reads the directory once and applies differences at once. `announce` publishes the notice even without a difference."""
        async with self._lock:
            now_s = self._clock.now_s()
            if announce:
                await asyncio.to_thread(self._directory.make)
            result = await asyncio.to_thread(self._directory.scan, now_s)
            errors = {error.file: error.message for error in result.errors}
            held: dict[str, Override] = {}
            for override in result.overrides:
                # One that has expired may name an engine that has left since.
                faults = self._control.faults(override) if override.active(now_s) else []
                if not faults:
                    held[override.id] = override
                    continue
                errors[f"{override.id}.json"] = "; ".join(faults)
                if override.id in self.held:
                    held[override.id] = self.held[override.id]
                elif announce and not self._control.faults(override, may_join=True):
                    # It was in force before this restart, perhaps; discovery may find its engine later.
                    held[override.id] = override
            self._note_errors(errors)
            self.held = {name: override for name, override in held.items() if override.active(now_s)}
            notice = effective(self.held.values(), now_s)
            if announce or not _same(notice, self._control.notice):
                self._control.hold(notice)
                self._bus.post(notice)
                self.on_held()

    def check(self, override: Override) -> None:
        """Checks that this gateway could apply an override.

        Raises:
            OverrideError: It cannot; the message names every JSON path at fault.
        """
        faults = self._control.faults(override)
        if faults:
            raise OverrideError("\n".join(f"{override.id}: {fault}" for fault in faults))

    async def put(self, override: Override) -> None:
        """Writes an override and applies it.

        Raises:
            OverrideError: It cannot be applied here, or cannot be written.
        """
        self.check(override)
        before = self.held.get(override.id)
        # One at a time: two that write the same override share a temporary file.
        async with self._lock:
            await asyncio.to_thread(self._directory.make_room, override.id, self._clock.now_s())
            await asyncio.to_thread(self._directory.write, override)
        self._observer.note(
            "override.put",
            override.id,
            before="" if before is None else msgspec.json.encode(document_of(before)).decode(),
            after=msgspec.json.encode(document_of(override)).decode(),
            reason=f"{override.author}: {override.reason}",
            source="operator",
        )
        await self.scan()

    async def remove(self, override_id: str) -> bool:
        """Removes one override. False if there is none with this id.

        Raises:
            OverrideError: The id is malformed or the file cannot be removed.
        """
        async with self._lock:
            removed = await asyncio.to_thread(self._directory.remove, override_id)
        if removed:
            self._observer.note("override.removed", override_id, source="operator")
            await self.scan()
        return removed

    def _note_errors(self, errors: dict[str, str]) -> None:
        for file, message in errors.items():
            if self.errors.get(file) != message:
                self._observer.note("override.refused", file, reason=message, severity="error")
        for file in self.errors.keys() - errors.keys():
            self._observer.note("override.mended", file)
        self.errors = errors


def _same(one: OverrideNotice, other: OverrideNotice) -> bool:
    """Whether two notices have the same content, regardless of when they were created."""
    return msgspec.structs.replace(one, sent_s=0.0) == msgspec.structs.replace(other, sent_s=0.0)
