"""The client of the control plugins: one HTTP interface for every engine that has a plugin (docs/engines.md).

    GET  /hmas/v1/control  ->  engine, engine_version, plugin_version, knobs {name: {value, min, max, start, step}}, priority, absent
    POST /hmas/v1/control  {"knobs": {}}  ->  applied, refused

A plugin carries out the whole order, or nothing of it if it refuses a field such as `knobs.n_run`. Knobs have H-MAS's own names
(`hmas.engines.base.KnobName`); the plugin maps them to the names of its engine.
"""

from collections.abc import Awaitable
from typing import TypeVar

import msgspec

from hmas.engines.base import EngineCapabilities, KnobName, KnobReport, Knobs
from hmas.engines.client import CONTROL_TIMEOUT_S, EngineClient
from hmas.engines.errors import EngineError
from hmas.engines.openai import OpenAIEngine

CONTROL_PATH = "/hmas/v1/control"
T = TypeVar("T")
KNOBS: tuple[KnobName, ...] = ("n_run", "token_budget")


class ControlKnob(msgspec.Struct, frozen=True):
    """One live knob: its active value, its allowed range, its start-up value, and what its values are multiples of."""

    value: int
    min: int
    max: int
    start: int | None = None
    step: int = 1


class ControlState(msgspec.Struct, frozen=True):
    """What a plugin reports about itself. A plugin of another version may report more fields, or leave out some of these.

    Attributes:
        priority: Whether the engine's own queue is ordered by the request's priority.
        absent: Why a knob, or that order, is missing, by name.
    """

    engine: str
    engine_version: str
    plugin_version: str
    knobs: dict[str, ControlKnob] = {}
    priority: bool = False
    absent: dict[str, str] = {}

    @property
    def words(self) -> str:
        """What is live and why the rest is not, as text for `hmas engines`."""
        live = ", ".join(name for name in KNOBS if name in self.knobs) or "nothing"
        return "; ".join([f"live: {live}", *(f"{name}: {why}" for name, why in self.absent.items())])


class _Refusal(msgspec.Struct, frozen=True):
    error: str = ""


class ControlRoute:
    """A plugin's route on one engine. Nothing here raises: an engine that does not answer has no live control meanwhile."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    async def read(self, timeout_s: float = CONTROL_TIMEOUT_S) -> ControlState | str:
        """Reads what the plugin can do; if there is no usable plugin, returns the reason as text."""
        return await _decoded(self._client.get(CONTROL_PATH, timeout_s=timeout_s), ControlState, "control document", (200,))

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
        body = msgspec.json.encode({"knobs": order})
        answer = await _decoded(self._client.post(CONTROL_PATH, body), KnobReport, "report", (200, 400))
        if isinstance(answer, str):
            return {}, dict.fromkeys(order, answer)
        named = {field.removeprefix("knobs."): reason for field, reason in answer.refused.items()}
        if named and not named.keys() & order.keys():
            # The plugin refused the order itself, not a knob.
            words = "; ".join(f"{field}: {reason}" for field, reason in named.items())
            return {}, dict.fromkeys(order, words)
        return {} if named else answer.applied, {name: reason for name, reason in named.items() if name in order}


async def _decoded(call: Awaitable[tuple[int, bytes]], kind: type[T], what: str, statuses: tuple[int, ...]) -> T | str:
    """A plugin's answer if its status is one of these; else the reason as text. `what`: the name of such a document."""
    try:
        status, data = await call
        return msgspec.json.decode(data, type=kind) if status in statuses else _words(status, data)
    except EngineError as error:
        return str(error)
    except msgspec.DecodeError as error:
        return f"{CONTROL_PATH} answers no {what}: {error}"


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
    """The base of adapters of engines that may have the control plugin: with it, knobs are live."""

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
            return self._usable(found).words
        return f"the control plugin does not answer: {found}" if self._plugin is not None else f"{without}: {found}"

    def _with_plugin(self, capabilities: EngineCapabilities) -> EngineCapabilities:
        """The capabilities of the engine with those of its plugin, if it has one."""
        if self._plugin is None:
            return capabilities
        state, budget = self._usable(self._plugin), self._knob("token_budget")
        return msgspec.structs.replace(
            capabilities,
            budget_least=budget.min if budget else 1,
            budget_step=max(1, budget.step) if budget else 1,
            live_knobs=tuple(name for name in KNOBS if name in state.knobs),
            # An engine without its plugin does not always show how its queue is ordered.
            priority=capabilities.priority or state.priority,
        )

    def _usable(self, state: ControlState) -> ControlState:
        """The part of what the plugin can do that is of use for this engine: all of it."""
        return state

    def _knob(self, name: KnobName) -> ControlKnob | None:
        return self._plugin.knobs.get(name) if self._plugin is not None else None
