"""Parses lists of names in a study's options."""

from typing import TypeVar

from hmas.controller.core.errors import ConfigError

Name = TypeVar("Name", bound=str)


def read_names(what: str, text: str, allowed: tuple[Name, ...]) -> tuple[Name, ...]:
    """Reads names separated by commas; returns them in the order of `allowed`. An empty text stands for all.

    Raises:
        ConfigError: A name is not allowed; the error names the option `what`.
    """
    wanted = {name.strip() for name in text.split(",") if name.strip()} or set(allowed)
    unknown = sorted(wanted - set(allowed))
    if unknown:
        raise ConfigError(f"{what}: {', '.join(unknown)}; allowed: {', '.join(allowed)}")
    return tuple(name for name in allowed if name in wanted)
