"""An order inside SGLang's `set_internal_state` message, which carries nothing but numbers by name. Pure.

Any client of SGLang's own `/set_internal_state` could write such names, past the guard of this plugin's route: so an order counts only
with the seal, a number that the server's process draws at its start and that the scheduler's process inherits.
"""

import hmac
import secrets
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field

SEAL = "HMAS_CONTROL_SEAL"
"""Environment variable that holds the seal; the server's process sets it for the processes it starts."""

PREFIX = "hmas."
_SEAL, _SERIAL = PREFIX + "seal", PREFIX + "serial"
_KNOB, _PRIORITY, _EVICT = PREFIX + "knob.", PREFIX + "priority.", PREFIX + "evict."

STATE = "hmas"
"""Where the plugin's state stands in the answer to its own `get_internal_state`."""

READ = "hmas.read"
"""The id of that message, by which the scheduler knows it from others' questions."""


@dataclass(frozen=True)
class Message:
    """An order on its way to the scheduler; the report that answers it carries the same serial."""

    serial: int
    knobs: dict[str, int] = field(default_factory=dict)
    priorities: dict[str, int] = field(default_factory=dict)
    evict: list[str] = field(default_factory=list)


def new_serial() -> int:
    """A number that no other order has."""
    return secrets.randbits(53)


def ensure_seal(environment: MutableMapping[str, str]) -> None:
    """Draws the seal where no parent process has."""
    environment.setdefault(SEAL, str(secrets.randbits(62)))


def encode(message: Message, seal: str) -> dict[str, int]:
    """The message as numbers by name."""
    return {
        _SEAL: int(seal),
        _SERIAL: message.serial,
        **{_KNOB + name: value for name, value in message.knobs.items()},
        **{_PRIORITY + name: value for name, value in message.priorities.items()},
        **{_EVICT + name: 1 for name in message.evict},
    }


def decode(numbers: Mapping[str, float], seal: str) -> Message | None:
    """The message; None where there is none, or one without the right seal: SGLang then refuses its names as unknown."""
    if not seal or not hmac.compare_digest(str(numbers.get(_SEAL, "")), seal):
        return None
    message = Message(int(numbers.get(_SERIAL, 0)))
    for name, value in numbers.items():
        if name.startswith(_KNOB):
            message.knobs[name.removeprefix(_KNOB)] = int(value)
        elif name.startswith(_PRIORITY):
            message.priorities[name.removeprefix(_PRIORITY)] = int(value)
        elif name.startswith(_EVICT):
            message.evict.append(name.removeprefix(_EVICT))
    return message
