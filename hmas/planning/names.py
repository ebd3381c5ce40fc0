"""Which of several things a study is about, as its options say it."""

from typing import TypeVar

from hmas.controller.core.errors import ConfigError

Name = TypeVar("Name", bound=str)


def read_names(what: str, text: str, allowed: tuple[Name, ...]) -> tuple[Name, ...]:
    """Names with commas between, in the order of those allowed; empty for all.

    Raises:
        ConfigError: A name is not allowed; `what` says of which option.
    """
    wanted = {name.strip() for name in text.split(",") if name.strip()} or set(allowed)
    unknown = sorted(wanted - set(allowed))
    if unknown:
        raise ConfigError(f"{what}: {', '.join(unknown)}; allowed: {', '.join(allowed)}")
    return tuple(name for name in allowed if name in wanted)
