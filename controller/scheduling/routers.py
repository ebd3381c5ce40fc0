"""The router of each model, the hooks of its requests, and what replaces a ranking that cannot be followed."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from hmas.controller.core.placement import Choice, InstanceState, Router
from hmas.controller.core.types import Request
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry

ALL = "*"
"""Stands for all models without a router of their own."""
FALLBACK = "the router failed; the emptiest instance"
Ranked = TypeVar("Ranked", bound=InstanceState)


class Routers:
    """Ranks instances by the router of the request's model.

    Attributes:
        faults: Rankings that could not be followed, since the start.
        fault: What was wrong with the newest of them, empty if there was none.
        uses_blocks: Whether any router reads `Request.blocks`. `uses_times_alone`: whether any reads `Estimates.alone`.
    """

    __slots__ = ("_hooks", "_routers", "_sent_by", "fault", "faults", "uses_blocks", "uses_times_alone")

    def __init__(self, router: Router) -> None:
        self._routers: dict[str, Router] = {ALL: router}
        self._hooks: dict[str, Router] = {}
        self._sent_by: dict[str, Router] = {}
        self.faults = 0
        self.fault = ""
        self.uses_blocks = self.uses_times_alone = False
        self.set(ALL, router)

    def set(self, model: str, router: Router | None) -> None:
        """Replaces the router of a model, or of `ALL` others; None removes that of a model. What the old one has learned is lost."""
        if router is None:
            self._routers.pop(model, None)
        else:
            self._routers[model] = router
        # Routers without hooks cost nothing at a dispatch or an end.
        self._hooks = {model: router for model, router in self._routers.items() if hasattr(router, "sent") or hasattr(router, "ended")}
        self.uses_blocks, self.uses_times_alone = (
            any(getattr(router, name, False) for router in self._routers.values()) for name in ("uses_blocks", "uses_times_alone")
        )

    def ranking(self, entry: QueueEntry, instances: Sequence[Ranked], now_s: float) -> Iterator[tuple[Ranked, Choice]]:
        """The instances for a request in the order of its model's router; if it fails, the rest of them, the emptiest first."""
        model = entry.request.model
        router = self._routers[model] if model in self._routers else self._routers[ALL]
        named: set[str] = set()
        by_name: dict[str, Ranked] = {}
        fault = ""
        try:
            for choice in router.rank(entry, instances, now_s):
                name = choice.instance
                found: Ranked | None = None
                if named:
                    # Of a ranking that goes on beyond its first choice, all may be asked for.
                    by_name = by_name or {instance.name: instance for instance in instances}
                    found = by_name.get(name)
                else:
                    for instance in instances:
                        if instance.name == name:
                            found = instance
                            break
                if found is None or name in named:
                    fault = f"named {name!r}{' twice' if found else ''}; allowed: {_names(instances)}"
                    break
                named.add(name)
                yield found, choice
        except Exception as error:  # noqa: BLE001  a plugin's code: whatever it raises, requests go on
            fault = f"raised {type(error).__name__}: {error}"
        if not fault:
            return
        self.faults += 1
        self.fault = f"router {getattr(router, 'name', type(router).__name__)!r} of model {model!r} {fault}"
        for instance in sorted((one for one in instances if one.name not in named), key=_share):
            yield instance, Choice(instance.name, FALLBACK)

    def sent(self, entry: QueueEntry, instance: str, now_s: float) -> None:
        """Tells the request's router of its dispatch."""
        if self._hooks and (router := self._hook_of(entry.request.model)) is not None:
            self._sent_by[entry.request.id] = router
            self._tell("sent", router, lambda hook: hook(entry, instance, now_s))

    def ended(self, request: Request, instance: str, cached_tokens: int | None) -> None:
        """Tells the router that was told of the dispatch that the instance does not have the request any more.

        The request's model may have another router by now.
        """
        if (router := self._sent_by.pop(request.id, None)) is not None:
            self._tell("ended", router, lambda hook: hook(request, instance, cached_tokens))

    def left(self, instance: str) -> None:
        """Tells all routers that an instance has gone away."""
        for router in self._hooks.values():
            self._tell("left", router, lambda hook: hook(instance))

    def _hook_of(self, model: str) -> Router | None:
        """The router of a model, if it has hooks."""
        return self._hooks.get(model if model in self._routers else ALL)

    def _tell(self, name: str, router: Router, call: Callable[[Callable[..., None]], None]) -> None:
        hook = getattr(router, name, None)
        if hook is None:
            return
        try:
            call(hook)
        except Exception as error:  # noqa: BLE001  likewise
            self.faults += 1
            self.fault = f"router {getattr(router, 'name', '')!r}: {name} raised {type(error).__name__}: {error}"


def _share(instance: InstanceState) -> float:
    return instance.sequences / instance.n_run


def _names(instances: Sequence[InstanceState]) -> str:
    shown = ", ".join(instance.name for instance in instances[:8])
    return f"{shown} and {len(instances) - 8} more" if len(instances) > 8 else shown
