"""The client of the control plugins: one HTTP interface for every engine that has a plugin (docs/engines.md).

    GET  /hmas/v1/control  ->  engine, engine_version, plugin_version, knobs {name: {value, min, max, start}}, actions, absent
    POST /hmas/v1/control  {"knobs": {}, "priorities": {}, "evict": []}  ->  applied, refused, reprioritized, evicted

A plugin carries out the whole order, or nothing of it if it refuses a field such as `knobs.n_run`. Knobs have H-MAS's own names
(`hmas.engines.base.KnobName`); the plugin maps them to the names of its engine.
"""

from collections.abc import Mapping, Sequence

import msgspec

from hmas.engines.base import EngineCapabilities, KnobName, KnobReport, Knobs
from hmas.engines.client import CONTROL_TIMEOUT_S, EngineClient
from hmas.engines.errors import EngineError
from hmas.engines.openai import OpenAIEngine

CONTROL_PATH = "/hmas/v1/control"
KNOBS: tuple[KnobName, ...] = ("n_run", "token_budget")
MAX_IDS = 1000
"""Request ids that a plugin accepts in one call."""


class ControlKnob(msgspec.Struct, frozen=True):
    """One live knob: its active value, its allowed range, and its start-up value."""

    value: int
    min: int
    max: int
    start: int | None = None


class ControlState(msgspec.Struct, frozen=True):
    """What a plugin reports about itself.

    Attributes:
        knobs: The live knobs by name.
        actions: The supported actions, of `reprioritize` and `evict`.
        absent: Why a knob or an action is missing, by name.
    """

    engine: str
    engine_version: str
    plugin_version: str
    knobs: dict[str, ControlKnob] = {}
    actions: list[str] = []
    absent: dict[str, str] = {}

    @property
    def words(self) -> str:
        """What is live and why the rest is not, as text for `hmas engines`."""
        live = ", ".join([*(name for name in KNOBS if name in self.knobs), *self.actions]) or "nothing"
        return "; ".join([f"live: {live}", *(f"{name}: {why}" for name, why in self.absent.items())])


class ControlAnswer(msgspec.Struct, frozen=True):
    """The result of an order: each field is in exactly one of `applied` and `refused`."""

    applied: dict[str, int] = {}
    refused: dict[str, str] = {}
    reprioritized: list[str] = []
    evicted: list[str] = []


class _Refusal(msgspec.Struct, frozen=True):
    error: str = ""


class ControlRoute:
    """A plugin's route on one engine. Nothing here raises: an engine that does not answer has no live control meanwhile.

    Args:
        client: Connections that carry the plugin's token.
    """

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    async def read(self, timeout_s: float = CONTROL_TIMEOUT_S) -> ControlState | str:
        """Reads what the plugin can do; if there is no usable plugin, returns the reason as text."""
        try:
            status, data = await self._client.get(CONTROL_PATH, timeout_s=timeout_s)
        except EngineError as error:
            return str(error)
        if status != 200:
            return _words(status, data)
        try:
            return msgspec.json.decode(data, type=ControlState)
        except msgspec.DecodeError as error:
            return f"{CONTROL_PATH} answers no control document: {error}"

    async def apply(self, knobs: Knobs) -> KnobReport:
        """Sets live knobs. A plugin carries out an order as a whole, so if it refuses some knobs, the rest is sent as a second order."""
        order: dict[str, int] = msgspec.to_builtins(knobs)
        applied, refused = await self._apply(order)
        rest = {name: value for name, value in order.items() if name not in applied and name not in refused}
        if rest and refused:
            applied, more = await self._apply(rest)
            refused |= more
        lost = (name for name in order if name not in applied and name not in refused)
        return KnobReport(applied=applied, refused=refused | dict.fromkeys(lost, "the control plugin does not say what became of it"))

    async def _apply(self, order: dict[str, int]) -> tuple[dict[str, int], dict[str, str]]:
        answer = await self._post({"knobs": order})
        if isinstance(answer, str):
            return {}, dict.fromkeys(order, answer)
        named = {field.removeprefix("knobs."): reason for field, reason in answer.refused.items()}
        if named and not named.keys() & order.keys():
            # The plugin refused the order itself, not a knob.
            words = "; ".join(f"{field}: {reason}" for field, reason in named.items())
            return {}, dict.fromkeys(order, words)
        return {} if named else answer.applied, {name: reason for name, reason in named.items() if name in order}

    async def reprioritize(self, priorities: Mapping[str, int]) -> frozenset[str]:
        """Changes priorities, given in the engine's own sign (the adapter has converted them); returns the ids that were changed."""
        changed: list[str] = []
        for part in _parts(list(priorities)):
            answer = await self._post({"priorities": {name: priorities[name] for name in part}})
            changed += [] if isinstance(answer, str) else answer.reprioritized
        return frozenset(changed)

    async def evict(self, request_ids: Sequence[str]) -> frozenset[str]:
        """Evicts requests and returns the ids that were evicted."""
        gone: list[str] = []
        for part in _parts(list(dict.fromkeys(request_ids))):
            answer = await self._post({"evict": part})
            gone += [] if isinstance(answer, str) else answer.evicted
        return frozenset(gone)

    async def _post(self, order: dict[str, object]) -> ControlAnswer | str:
        try:
            status, data = await self._client.post(CONTROL_PATH, msgspec.json.encode(order))
        except EngineError as error:
            return str(error)
        if status not in {200, 400}:
            return _words(status, data)
        try:
            return msgspec.json.decode(data, type=ControlAnswer)
        except msgspec.DecodeError as error:
            return f"{CONTROL_PATH} answers no report: {error}"


def _parts(names: list[str]) -> list[list[str]]:
    return [names[start : start + MAX_IDS] for start in range(0, len(names), MAX_IDS)]


def _words(status: int, data: bytes) -> str:
    """Why an answer cannot be used, as text."""
    if status in {404, 405}:
        return "no control plugin (`hmas engines plugin` has it)"
    if status in {401, 403}:
        return "token: the control plugin does not take it; set HMAS_CONTROL_TOKEN for the engine and engines[].control_token_env here"
    try:
        refusal = msgspec.json.decode(data, type=_Refusal)
    except msgspec.DecodeError:
        refusal = _Refusal()
    return f"{CONTROL_PATH} answers status {status}: {refusal.error or data[:80].decode('utf-8', 'replace')}"


class PluginEngine(OpenAIEngine):
    """The base of adapters of engines that may have the control plugin: with it, knobs and actions are live."""

    def __init__(self, client: EngineClient, control: EngineClient | None = None) -> None:
        super().__init__(client, control)
        self._route = ControlRoute(self._control)
        self._plugin: ControlState | None = None

    async def apply_knobs(self, knobs: Knobs) -> KnobReport:
        """Sets live knobs through the plugin; without one, as `_apply_stock`."""
        if self._plugin is None:
            return await self._apply_stock(knobs)
        report = await self._route.apply(knobs)
        held = self._plugin.knobs
        turned = {name: msgspec.structs.replace(held[name], value=value) for name, value in report.applied.items() if name in held}
        self._plugin = msgspec.structs.replace(self._plugin, knobs=held | turned)
        return report

    async def reprioritize(self, priorities: Mapping[str, int]) -> frozenset[str]:
        """Changes the priority of waiting requests and returns the ids that were changed."""
        if not self.capabilities.reprioritize:
            return frozenset()
        return await self._route.reprioritize({name: self._signed(priority) for name, priority in priorities.items()})

    async def evict(self, request_ids: Sequence[str]) -> frozenset[str]:
        """Puts running requests back into the engine's queue and returns their ids."""
        return await self._route.evict(request_ids) if self.capabilities.evict else frozenset()

    async def _apply_stock(self, knobs: Knobs) -> KnobReport:
        """Sets live knobs of an engine without the plugin: none."""
        return KnobReport(refused=dict.fromkeys(msgspec.to_builtins(knobs), self.capabilities.control or "not reached yet"))

    async def _read_plugin(self, without: str, timeout_s: float = CONTROL_TIMEOUT_S) -> str:
        """Reads what the plugin can do; returns the state of live control as text.

        Args:
            without: The text for an engine without the plugin. A plugin that has answered before is kept if it is too busy to answer now.
            timeout_s: How long to wait for it.
        """
        found = await self._route.read(timeout_s)
        if isinstance(found, ControlState):
            self._plugin = found
            return found.words
        return f"the control plugin does not answer: {found}" if self._plugin is not None else f"{without}: {found}"

    def _with_plugin(self, capabilities: EngineCapabilities) -> EngineCapabilities:
        """The capabilities of the engine with those of its plugin, if it has one."""
        state = self._plugin
        if state is None:
            return capabilities
        return msgspec.structs.replace(
            capabilities,
            live_knobs=tuple(name for name in KNOBS if name in state.knobs),
            reprioritize="reprioritize" in state.actions,
            evict="evict" in state.actions,
        )

    def _knob(self, name: KnobName) -> ControlKnob | None:
        return self._plugin.knobs.get(name) if self._plugin is not None else None

    def _signed(self, priority: int) -> int:
        """A priority in the engine's own sign."""
        return priority
