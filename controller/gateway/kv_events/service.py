"""The exact index of a gateway: its sources, the prompts whose tokens are known, and what operators see of them."""

import asyncio
import importlib.util
import logging
from collections.abc import Coroutine, Iterable
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from hmas.controller.config.schema import Config
from hmas.controller.core.errors import ConfigError
from hmas.controller.core.request_body import CHAT, COMPLETIONS, Call
from hmas.controller.gateway.instances.monitor import Fleet
from hmas.controller.gateway.kv_events.prompt_tokens import BODY_BYTES_MOST, PromptTokens, Wanted
from hmas.controller.gateway.kv_events.source import Fault, KvSource
from hmas.controller.observability.observer import Observers
from hmas.controller.routing.exact_index import ExactIndex
from hmas.controller.routing.known_prompts import CachedOf, KnownPrompt, KnownPrompts

TICK_S = 1.0
MISSING = "engines.{}.kv_events: the package pyzmq is not installed; allowed: no kv_events, or `pip install 'h-mas[kv-events]'` first"
log = logging.getLogger(__name__)


class KvEvents(Collector):
    """What the engines with `kv_events` report of their caches.

    Attributes:
        index: Which instance has which block.
        tokens: Tokenizes prompts.
    """

    def __init__(self, config: Config, fleet: Fleet, observer: Observers, registry: CollectorRegistry) -> None:
        """Opens nothing yet.

        Raises:
            ConfigError: pyzmq is not installed.
        """
        chosen = [(engine.name, engine.kv_events) for engine in config.engines if engine.kv_events is not None]
        if importlib.util.find_spec("zmq") is None:
            raise ConfigError(MISSING.format(chosen[0][0]))
        # Its library is an extra.
        from hmas.controller.gateway.kv_events.listener import KvListener  # noqa: PLC0415

        self._fleet = fleet
        self._observer = observer
        self.index = ExactIndex()
        self.tokens = PromptTokens(fleet)
        self._prompts = KnownPrompts()
        self._sources = {name: self._source(name, replays=bool(events.replay_endpoint)) for name, events in chosen}
        self._listener = KvListener([(self._sources[name], events) for name, events in chosen], self.index, fleet.now_s)
        registry.register(self)

    def start(self) -> Coroutine[Any, Any, None]:
        """Opens the sockets; returns what has to run from then on.

        Raises:
            ConfigError: An endpoint cannot be used.
        """
        self._listener.start()
        return self._run()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.tokens.run())
            group.create_task(self._tick())

    def close(self) -> None:
        """Closes the sockets."""
        self._listener.close()

    def cached_of(self, call: Call, body: bytes) -> CachedOf | None:
        """What to look a request's prompt up by; has its tokens fetched if more of its text is new than its last piece.

        None where the exact index can say nothing: the API has another form than `/tokenize` takes, the hash of the engine's blocks
        depends on more than tokens (pictures, `cache_salt`), or no engine has reported a block yet.
        """
        index = self.index
        if not index.sizes or not call.blocks or call.images or call.path not in (CHAT, COMPLETIONS):
            return None
        if len(body) > BODY_BYTES_MOST or b'"cache_salt"' in body:
            return None
        prompts, sizes, blocks = self._prompts, index.sizes, call.blocks
        cached = CachedOf(index, prompts, blocks)
        found = prompts.find(blocks)
        if found is None or prompts.depth(blocks) < len(blocks) or not all(size in found[0].keys for size in sizes):
            adapter = self._fleet.adapter(call.model)

            def take(ids: Any) -> None:
                prompt = KnownPrompt(ids, sizes, adapter)
                prompts.learn(blocks, prompt)
                cached.tell(prompt)

            self.tokens.want(Wanted(call.path, call.model, body, take))
        return cached

    def report(self, instance: str) -> dict[str, Any] | None:
        """The state of an instance's events, for operators; None if it has none."""
        source = self._sources.get(instance)
        if source is None:
            return None
        now_s = self._fleet.now_s()
        return {
            "state": source.state(now_s),
            "age_s": None if source.heard_s is None else now_s - source.heard_s,
            "blocks": self.index.blocks_of(instance),
            "sequence": None if source.expected is None else source.expected - 1,
            "messages": source.messages,
            "events": source.events,
            "ignored": source.ignored,
            "gaps": source.gaps,
            "replayed": source.replayed,
            "restarts": source.restarts,
            "faults": dict(source.faults),
        }

    def collect(self) -> Iterable[Metric]:
        """The metrics, for Prometheus."""
        now_s = self._fleet.now_s()
        live = GaugeMetricFamily("hmas_kv_events_live", "1 while every cached block of the engine is known.", labels=["instance"])
        blocks = GaugeMetricFamily("hmas_kv_events_blocks", "Cached blocks that the engine has reported.", labels=["instance"])
        age = GaugeMetricFamily("hmas_kv_events_age_seconds", "Time since the newest message.", labels=["instance"])
        counts = CounterMetricFamily(
            "hmas_kv_events",
            "Events applied or ignored, messages fetched again, gaps and restarts in their sequence.",
            labels=["instance", "kind"],
        )
        faults = CounterMetricFamily("hmas_kv_events_faults", "Times that the events could not be trusted.", labels=["instance", "cause"])
        for name, source in self._sources.items():
            live.add_metric([name], float(name in self.index.complete))
            blocks.add_metric([name], float(self.index.blocks_of(name)))
            if source.heard_s is not None:
                age.add_metric([name], max(0.0, now_s - source.heard_s))
            for kind in ("events", "ignored", "replayed", "gaps", "restarts"):
                counts.add_metric([name, "applied" if kind == "events" else kind], float(getattr(source, kind)))
            for cause, count in source.faults.items():
                faults.add_metric([name, cause], float(count))
        prompts = CounterMetricFamily("hmas_kv_events_prompts", "Prompts sent to /tokenize, by result.", labels=["result"])
        for result, count in self.tokens.results.items():
            prompts.add_metric([result], float(count))
        memory = GaugeMetricFamily("hmas_kv_events_index_bytes", "Memory of the exact index, about.", value=float(self.index.size_bytes()))
        return live, blocks, age, counts, faults, prompts, memory

    def _source(self, name: str, *, replays: bool) -> KvSource:
        def on_fault(kind: Fault, reason: str, first: bool) -> None:
            # One event a cause: the count is in the metrics.
            if first:
                self._observer.note("kv_events.fault", name, after="not listened to for a while", reason=reason, severity="warning")
                log.warning("KV events of %s (%s): %s; its prefixes are known approximately meanwhile", name, kind, reason)

        return KvSource(name, self.index, replays=replays, on_fault=on_fault)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for name, source in self._sources.items():
                try:
                    self._look_at(name, source)
                except Exception:
                    log.exception("a look at the KV events of %s failed", name)
            self._listener.sweep()

    def _look_at(self, name: str, source: KvSource) -> None:
        snapshot = self._fleet.instances[name].snapshot
        computed = snapshot.prompt_tokens_total if snapshot is not None else 0
        missing = source.tick(self._fleet.now_s(), computed, drained=self._listener.drained(source))
        if missing is not None:
            self._listener.fetch(source, missing)
