"""Checks whether a class fulfils the whole contract of a queueing policy, before it may enter the pool."""

import inspect
import math
import re
from collections.abc import Iterator, Mapping

from hmas.controller.core.errors import PolicyError
from hmas.controller.scheduling.policy_base.declaration import Signal
from hmas.controller.scheduling.policy_base.queue_entry import QueuePolicy

NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
HINT = re.compile(r"[a-z][a-z0-9_]{0,63}")
WORDS = ("summary", "starvation", "complexity", "source")
ORDER: Mapping[str, int] = {"push": 2, "pop": 1, "discard": 1, "entries": 0, "__len__": 0}
"""The methods that make an order, which every policy defines, and the number of arguments of each."""
METHODS: Mapping[str, int] = {
    **ORDER,
    "load": 2,
    "undo_pop": 2,
    "serve": 2,
    "rekey": 2,
    "rank": 1,
    "on_overdue": 2,
    "on_finished": 3,
    "close_tenant": 2,
    "open_tenant": 2,
}
"""These and the methods that have a default."""


def check_policy(policy: object) -> None:
    """Checks a class against the whole contract of `QueuePolicy`.

    Raises:
        PolicyError: The contract is broken; the message names the class and every missing or wrong member, with what is allowed.
    """
    label = f"{getattr(policy, '__module__', '?')}.{getattr(policy, '__qualname__', repr(policy))}"
    # Not by issubclass: compiled abstract classes share one cache of its answers.
    if not isinstance(policy, type) or QueuePolicy not in policy.__mro__:
        base = f"{QueuePolicy.__module__}.{QueuePolicy.__qualname__}"
        raise PolicyError(f"{label} is no policy; allowed: a class that derives from {base}, or from KeyedPolicy or FlowPolicy")
    found = [*_words(policy), *_parameters(policy), *_methods(policy)]
    if not found:
        found = list(_instance(policy))
    if found:
        raise PolicyError(f"{label} is no policy: " + "; ".join(found))


def _words(policy: type) -> Iterator[str]:
    name = getattr(policy, "name", None)
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        yield f"name {_shown(policy, 'name')}; allowed: lower-case letters, digits and hyphens, 32 at most, the first a letter"
    for member in WORDS:
        text = getattr(policy, member, None)
        if not isinstance(text, str) or not text.strip() or "\n" in text:
            yield f"{member} {_shown(policy, member)}; allowed: a line of text"
    signals = getattr(policy, "signals", None)
    if not isinstance(signals, tuple) or not all(isinstance(signal, Signal) for signal in signals):
        yield f"signals {_shown(policy, 'signals')}; allowed: a tuple of {Signal.__module__}.{Signal.__qualname__}"


def _parameters(policy: type) -> Iterator[str]:
    defaults, ranges = getattr(policy, "default_parameters", None), getattr(policy, "parameter_ranges", None)
    for member, table in (("default_parameters", defaults), ("parameter_ranges", ranges)):
        if not isinstance(table, Mapping):
            yield f"{member} {_shown(policy, member)}; allowed: a mapping by parameter name, empty for none"
    if not isinstance(defaults, Mapping) or not isinstance(ranges, Mapping):
        return
    if set(defaults) != set(ranges):
        yield f"parameter_ranges has {sorted(ranges)}; allowed: the names of default_parameters, {sorted(defaults)}"
        return
    for parameter, default in defaults.items():
        if not isinstance(parameter, str) or HINT.fullmatch(parameter) is None:
            yield f"parameter {parameter!r}; allowed: lower-case letters, digits and underscores, 64 at most, the first a letter"
        bounds = ranges[parameter]
        if not (isinstance(bounds, tuple) and len(bounds) == 2 and all(_is_number(bound) for bound in bounds) and bounds[0] <= bounds[1]):
            yield f"parameter_ranges[{parameter!r}] is {bounds!r}; allowed: the lowest and the highest value, both finite"
        elif not _is_number(default) or not bounds[0] <= default <= bounds[1]:
            yield f"default_parameters[{parameter!r}] is {default!r}; allowed: a number from {bounds[0]:g} to {bounds[1]:g}"


def _methods(policy: type) -> Iterator[str]:
    for member, arguments in METHODS.items():
        method = getattr(policy, member, None)
        undefined = member in ORDER and method is getattr(QueuePolicy, member)
        if undefined or not callable(method):
            yield f"{member} {'is missing' if undefined else _shown(policy, member)}; allowed: a method with {arguments} arguments"
            continue
        try:
            inspect.signature(method).bind(*[None] * (arguments + 1))
        except TypeError as error:
            yield f"{member} does not take {arguments} arguments: {error}"
        except ValueError:
            continue  # a compiled method has no signature to check
    if getattr(policy, "shares_tenants", False) and getattr(policy, "close_tenant", None) is QueuePolicy.close_tenant:
        yield "close_tenant is missing; allowed: a method with 2 arguments where shares_tenants is true, as FlowPolicy has it"


def _instance(policy: type) -> Iterator[str]:
    """Checks what shows only on an empty policy with its default parameters."""
    defaults: dict[str, float] = dict(getattr(policy, "default_parameters", {}))
    try:
        made = policy(defaults)
        parameters, waiting, popped = getattr(made, "parameters", None), len(made), made.pop(0.0)
    except Exception as error:  # noqa: BLE001  user code: whatever it raises is reported as its fault
        yield f"an empty one with its default parameters failed: {type(error).__name__}: {error}"
        return
    if not isinstance(parameters, Mapping) or dict(parameters) != defaults:
        yield f"parameters of an instance are {parameters!r}; allowed: a mapping equal to those it was made with, {defaults!r}"
    if waiting != 0 or popped is not None:
        yield f"an empty one has len {waiting} and pops {popped!r}; allowed: 0 and None"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _shown(policy: type, member: str) -> str:
    missing = object()
    value = getattr(policy, member, missing)
    return "is missing" if value is missing else f"is {value!r}"
