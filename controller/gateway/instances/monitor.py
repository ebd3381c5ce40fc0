"""The engines behind the gateway: their health, models, ceilings and live knobs."""

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec

from hmas.controller.config.schema import EngineConfig
from hmas.controller.control.resolve import Ceiling
from hmas.controller.core.messages import Severity
from hmas.controller.core.types import Controls
from hmas.controller.gateway.instances.instance import Instance, contexts_of, model_entries_of
from hmas.controller.gateway.instances.served_models import ServedModels
from hmas.controller.gateway.instances.stall import PROBE_S, patience_s
from hmas.controller.observability.observer import Observers
from hmas.controller.runtime.clock import Clock
from hmas.engines.base import SNAPSHOT_EVERY_S, Engine, EngineSnapshot, Knobs
from hmas.engines.errors import AnswerBroken, EngineError, EngineSilent, EngineUnavailable, StaleConnection

MODELS_EVERY_S = 10.0
RETRY_REFUSED_S = 10.0
"""Seconds after which a refused knob is tried again: the engine may only have been too busy to answer."""
GIVE_UP_AFTER_S = 10.0
"""How long an instance does not answer before the requests that it has not begun to answer are taken back from it."""
STALL_S = 60.0
"""Seconds without a computed token after which an engine that reports running requests counts as hung, unless configured."""
AVOID_S, AVOID_MOST_S = 5.0, 15.0
"""How long an instance that refused a request is not preferred: without a `Retry-After`, and at most with one."""
__all__ = ["Fleet", "Instance"]
log = logging.getLogger(__name__)


class Fleet(ServedModels):
    """Polls every engine and sets its knobs as the directives require.

    `on_snapshot` is called with every reading, and whether it is confirmed, `on_ceiling` when an instance's ceiling has changed,
    `on_models` when its models have changed, `on_probing` when an instance is to be probed with one request, or has passed the probe,
    `on_lost` when an instance has hung or has not answered for `GIVE_UP_AFTER_S`, with the reason, `on_avoided` when the set of instances
    that are not preferred has changed.
    `longest_prompt` has to return the tokens of the longest prompt that an instance was sent and has answered with no token yet.
    """

    def __init__(
        self, instances: Iterable[tuple[EngineConfig, Engine]], clock: Clock, observer: Observers, *, stall_s: float = STALL_S
    ) -> None:
        super().__init__(clock)
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self.on_snapshot: Callable[[EngineSnapshot, bool], None] = lambda _snapshot, _confirmed: None
        self.on_ceiling: Callable[[str], None] = lambda _: None
        self.on_models: Callable[[Instance], None] = lambda _instance: None
        self.on_probing: Callable[[str, bool], None] = lambda _name, _probing: None
        self.on_lost: Callable[[str, str], None] = lambda _name, _reason: None
        self.on_avoided: Callable[[frozenset[str]], None] = lambda _names: None
        self.longest_prompt: Callable[[str], int] = lambda _name: 0
        self._observer = observer
        self._stall_s = stall_s
        for config, engine in instances:
            self.add(config, engine)

    def add(self, config: EngineConfig, engine: Engine) -> Instance:
        """Adds an instance; one that joins others is polled once `poll_regularly` is called."""
        instance = self.instances[config.name] = Instance(config=config, engine=engine, ceiling=Ceiling(config.n_run_max))
        self._models_changed()
        return instance

    def remove(self, name: str) -> Engine:
        """Removes an instance and returns its engine, which the caller closes."""
        instance = self.instances.pop(name)
        if (task := self._polls.pop(name, None)) is not None:
            task.cancel()
        self._models_changed()
        self._set_avoided(self._avoided - {name})
        return instance.engine

    @property
    def ceilings(self) -> dict[str, Ceiling]:
        """The ceiling of each instance."""
        return {name: instance.ceiling for name, instance in self.instances.items()}

    def mark_down(self, name: str, reason: str, *, confirmed: bool = True) -> None:
        """Marks an instance that did not answer a request as down until a poll, which starts at once, finds it healthy.

        `confirmed`: as in `Scheduler.observe`.
        """
        instance = self.instances[name]
        self._record(instance, EngineSnapshot(engine=name, taken_s=self._clock.now_s(), healthy=False, detail=reason), confirmed=confirmed)
        instance.poll_now.set()

    def connection_failed(self, name: str, error: EngineError) -> None:
        """Polls an instance at once that lost the connection of a request; it counts as down until then if no answer had begun.

        Half an answer tells less: vLLM ends the streams of some mistaken requests so, and serves all others. If the instance counts as down
        already, another lost connection does not confirm that; only the next poll does.
        """
        instance = self.instances[name]
        lost = isinstance(error, EngineUnavailable) and not isinstance(error, EngineSilent | StaleConnection | AnswerBroken)
        if lost and instance.healthy:
            self.mark_down(name, str(error), confirmed=False)
        elif lost or isinstance(error, AnswerBroken):
            instance.poll_now.set()

    def answer_began(self, name: str, sent_s: float) -> None:
        """Records that an instance has begun to answer a request sent at `sent_s`."""
        if self.instances[name].breaker.began(sent_s):
            self._note_circuit(self.instances[name], "half-open", "the answer to a request has begun")

    def request_succeeded(self, name: str, sent_s: float) -> None:
        """Records that an instance served a request sent at `sent_s`."""
        breaker = self.instances[name].breaker
        if breaker.failures or breaker.doubted:
            before = breaker.state
            if breaker.succeeded(sent_s):
                self._note_circuit(self.instances[name], before, "a request was served")

    def request_failed(self, name: str, sent_s: float, reason: str, body: bytes) -> None:
        """Records that an instance failed a request sent at `sent_s`, in any way; `body` identifies the request.

        A refusal counts once another instance has answered, and the one that refused may be gone by then.
        """
        if (instance := self.instances.get(name)) is None:
            return
        before = instance.breaker.state
        if instance.breaker.failed(hash(body), sent_s, reason, self._clock.now_s()):
            self._note_circuit(instance, before, instance.breaker.detail)
            self.mark_down(name, instance.breaker.detail)

    def avoid(self, name: str, reason: str, retry_after: str = "") -> None:
        """Prefers other instances for a while: this one refused a request for a reason of its own (a wrong key, its own limit).

        Args:
            name: The instance.
            reason: What it answered.
            retry_after: Its `Retry-After`, used if it is a number of seconds.
        """
        instance = self.instances[name]
        for_s = min(float(retry_after), AVOID_MOST_S) if retry_after.isdecimal() else AVOID_S
        instance.avoid_until_s = max(instance.avoid_until_s, self._clock.now_s() + for_s)
        if name not in self._avoided:
            self._observer.note(
                "engine.avoided", name, after=f"not preferred until it has refused none for {for_s:g} s", reason=reason, severity="warning"
            )
            self._set_avoided(self._avoided | {name})

    def _set_avoided(self, names: frozenset[str]) -> None:
        self._avoided = names
        self.on_avoided(names)

    def _note_circuit(self, instance: Instance, before: str, reason: str) -> None:
        state = instance.breaker.state
        severity: Severity = "info" if state == "closed" else "warning"
        self._observer.note("engine.circuit", instance.name, before=before, after=state, reason=reason, severity=severity)
        if state != "open":
            self.on_probing(instance.name, state == "half-open")

    def set_controls(self, name: str, controls: Controls) -> None:
        """Sets the controls that the directives require; the live knobs of the instance follow at once."""
        instance = self.instances[name]
        # The guard's factor and the source of the window concern only the gateway: the engine has no such knobs.
        controls = msgspec.structs.replace(controls, guard=1.0, advised=False)
        before = instance.wanted
        if before != controls:
            instance.wanted = controls
            # The engine refused one value of one knob: a change of another knob is no reason to try that value again.
            for knob in [knob for knob in instance.refused if getattr(before, knob, None) != getattr(controls, knob, None)]:
                del instance.refused[knob]
            instance.poll_now.set()

    async def run(self) -> None:
        """Polls all instances, those that join later too, until cancelled: a group that ends takes no task."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for instance in self.instances.values():
                self.poll_regularly(instance)
            try:
                await asyncio.Event().wait()
            finally:
                self._group = None

    def poll_regularly(self, instance: Instance) -> None:
        """Polls an instance from now on, if the others are polled."""
        if self._group is not None and instance.name not in self._polls:
            self._polls[instance.name] = self._group.create_task(self._watch(instance), name=f"poll {instance.name}")

    async def poll_all(self) -> None:
        """Reads every instance once."""
        await asyncio.gather(*(self.poll(instance) for instance in self.instances.values()))

    async def _watch(self, instance: Instance) -> None:
        """Polls at regular times, and in between when `poll_now` is set."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            instance.poll_now.clear()
            reading, instance.next_reading = instance.next_reading, asyncio.Event()
            try:
                await self.poll(instance)
            except Exception:
                log.exception("polling engine %s failed", instance.name)
            reading.set()
            # Timers may fire a little early, by the clock's resolution.
            if (now_s := loop.time()) >= due_s - 1e-3:
                due_s = max(due_s + SNAPSHOT_EVERY_S, now_s)
            try:
                async with asyncio.timeout_at(due_s):
                    await instance.poll_now.wait()
            except TimeoutError:
                continue

    async def poll(self, instance: Instance) -> None:
        """Reads an instance once, and sets its knobs."""
        snapshot = await instance.engine.snapshot(self._clock.now_s())
        if snapshot.healthy and self._clock.now_s() - instance.models_read_s > MODELS_EVERY_S:
            await self._read_models(instance)
            if not instance.known:
                # Requests for the models of other engines would go to it.
                snapshot = msgspec.structs.replace(snapshot, healthy=False, detail="its models cannot be read")
        instance.answers = snapshot.healthy
        self._watch_stall(instance, snapshot)
        self._record(instance, snapshot)
        self._give_up(instance, snapshot)
        if instance.name in self._avoided and self._clock.now_s() >= instance.avoid_until_s:
            self._observer.note(
                "engine.avoided", instance.name, before="not preferred", after="as the others", reason="it refused none lately"
            )
            self._set_avoided(self._avoided - {instance.name})
        if snapshot.healthy:
            await self._keep_knobs(instance, snapshot)

    def _watch_stall(self, instance: Instance, snapshot: EngineSnapshot) -> None:
        """Opens the circuit of an engine that reports running requests and computes nothing."""
        stalled_s, before = instance.stall.stalled_s(snapshot), instance.breaker.state
        if before == "open" or not instance.engine.capabilities.token_counters:
            return
        limit_s = min(self._stall_s, PROBE_S) if before == "half-open" else self._stall_s
        if stalled_s > limit_s and stalled_s > patience_s(limit_s, self.longest_prompt(instance.name)):
            reason = f"it reports {snapshot.running} running requests and has computed no token for {stalled_s:.0f} s"
            instance.breaker.trip(reason, self._clock.now_s())
            self._note_circuit(instance, before, reason)
            self.on_lost(instance.name, reason)

    def _give_up(self, instance: Instance, snapshot: EngineSnapshot) -> None:
        """Takes back, once, what an instance that has not answered for a while has not begun to answer."""
        if instance.healthy:
            instance.given_up = False
        elif not (instance.answers or instance.given_up) and instance.down_for_s(self._clock.now_s()) >= GIVE_UP_AFTER_S:
            instance.given_up = True
            self.on_lost(instance.name, snapshot.detail)

    def _record(self, instance: Instance, snapshot: EngineSnapshot, *, confirmed: bool = True) -> None:
        if snapshot.healthy and instance.breaker.state == "open":
            if instance.breaker.probe_when_due(snapshot.taken_s):
                instance.stall.restart(snapshot.taken_s)
                self._note_circuit(instance, "open", "one request is let through, to see whether it serves again")
            else:
                snapshot = msgspec.structs.replace(snapshot, healthy=False, detail=instance.breaker.detail)
        was_healthy, known = instance.healthy, instance.snapshot is not None
        instance.snapshot = snapshot
        if snapshot.healthy:
            instance.down_since_s = None
        elif was_healthy:
            instance.down_since_s = snapshot.taken_s
            instance.models_read_s = float("-inf")
        if was_healthy != snapshot.healthy or not known:
            self._observer.note(
                "engine.health",
                instance.name,
                before="" if not known else ("up" if was_healthy else "down"),
                after="up" if snapshot.healthy else "down",
                reason=snapshot.detail,
                severity="info" if snapshot.healthy else "warning",
            )
        ceiling = instance.ceiling_by(snapshot)
        changed = ceiling != instance.ceiling
        instance.ceiling = ceiling
        self.on_snapshot(snapshot, confirmed)
        if changed:
            self.on_ceiling(instance.name)

    async def _read_models(self, instance: Instance) -> None:
        try:
            status, body = await instance.engine.call("GET", "/v1/models")
        except EngineError:
            status, body = 502, b""
        if status >= 500 and not instance.known:
            # The next poll asks again: an engine that starts, or a proxy before it, says nothing of its models so.
            return
        instance.models_read_s = self._clock.now_s()
        if not instance.known:
            instance.known = True
            self._models_changed()
        if status != 200:
            # What is known stays: where nothing is, as with a server that has no such path, it may serve any model.
            return
        instance.entries = entries = model_entries_of(body)
        served = instance.models, instance.context
        instance.context = contexts_of(entries)
        instance.models = frozenset(entry["id"] for entry in entries) or None
        if served != (instance.models, instance.context):
            self._models_changed()
            self.on_models(instance)

    async def _keep_knobs(self, instance: Instance, snapshot: EngineSnapshot) -> None:
        """Sets the engine's live knobs to the wanted values, also after an engine has restarted with its own values."""
        if (wanted := self._wanted_knobs(instance, snapshot)) == Knobs():
            return
        report = await instance.engine.apply_knobs(wanted)
        instance.applied.update(report.applied)
        for knob in report.applied:
            instance.refused.pop(knob, None)
        if report.refused:
            instance.refused_s = self._clock.now_s()
        for knob, reason in report.refused.items():
            if instance.refused.get(knob) != reason:
                self._observer.note("knobs.refused", f"{instance.name}.{knob}", reason=reason, severity="warning")
        instance.refused.update(report.refused)

    def _wanted_knobs(self, instance: Instance, snapshot: EngineSnapshot) -> Knobs:
        controls, able = instance.wanted, instance.engine.capabilities
        live = able.live_knobs
        refused = instance.refused if self._clock.now_s() - instance.refused_s < RETRY_REFUSED_S else {}
        if controls is None:
            return Knobs()
        n_run: int | None = controls.n_run
        budget = controls.token_budget or instance.ceiling.token_budget or None
        if budget is not None:
            budget = max(able.budget_least, budget - budget % able.budget_step)
        if "n_run" not in live or "n_run" in refused or snapshot.max_num_seqs == n_run:
            n_run = None
        if "token_budget" not in live or "token_budget" in refused or snapshot.max_num_batched_tokens == budget:
            budget = None
        return Knobs(n_run=n_run, token_budget=budget)
