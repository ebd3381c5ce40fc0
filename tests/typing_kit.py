"""What a test knows of a value and its type does not say; each fails the test where the test is wrong about it."""

import re
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def known(value: T | None) -> T:
    """A value that is there."""
    assert value is not None
    return value


def of_type(kind: type[T], value: object) -> T:
    """A value of that type: which message came, which of several answers a model gave."""
    assert isinstance(value, kind)
    return value


def all_of_type(kind: type[T], values: Iterable[object]) -> list[T]:
    """Values that all have that type."""
    return [of_type(kind, value) for value in values]


def fenced(text: str, language: str) -> str:
    """The first fenced block of a language in a page of the documentation."""
    return known(re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)).group(1)
