"""The format of an order inside SGLang's `set_internal_state` message, which carries only numbers by name. Pure.

Any client of SGLang's own `/set_internal_state` could send such names and bypass the guard of this plugin's route. So an order is accepted
only with the seal, a random number that the server's process draws at its start and that the scheduler's process inherits.
"""

import hmac
import secrets
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

SEAL = "HMAS_CONTROL_SEAL"
"""Environment variable that holds the seal; the server's process sets it for its child processes."""

PREFIX = "hmas."
_SEAL, _SERIAL = PREFIX + "seal", PREFIX + "serial"
_KNOB = PREFIX + "knob."

STATE = "hmas"
"""The key of the plugin's state in the answer to its own `get_internal_state`."""

READ = "hmas.read"
"""The id of the plugin's own `get_internal_state` message, by which the scheduler distinguishes it from others."""


@dataclass(frozen=True)
class Message:
    """An order to the scheduler; its report carries the same serial."""

    serial: int
    knobs: dict[str, int]


def new_serial() -> int:
    """A random number that identifies an order."""
    return secrets.randbits(53)


def ensure_seal(environment: MutableMapping[str, str]) -> None:
    """Draws the seal unless a parent process has done so."""
    environment.setdefault(SEAL, str(secrets.randbits(62)))


def encode(message: Message, seal: str) -> dict[str, int]:
    """The message as numbers by name."""
    return {_SEAL: int(seal), _SERIAL: message.serial, **{_KNOB + name: value for name, value in message.knobs.items()}}


def decode(numbers: Mapping[str, float], seal: str) -> Message | None:
    """Reads the message; None if there is none or its seal is wrong: SGLang then refuses the names as unknown."""
    if not seal or not hmac.compare_digest(str(numbers.get(_SEAL, "")), seal):
        return None
    knobs = {name.removeprefix(_KNOB): int(value) for name, value in numbers.items() if name.startswith(_KNOB)}
    return Message(int(numbers.get(_SERIAL, 0)), knobs)
