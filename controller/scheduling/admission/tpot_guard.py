"""Holds a dispatch back while its prefill would make requests in flight miss their TPOT target."""

from collections.abc import Collection
from math import inf

from hmas.controller.core.types import Request
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.instances.lateness import is_last_chance
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry

OWN_MARGIN, _MORE_SEQUENCES = 1.1, 1
"""A request may join if its TPOT target is at least so many times the instance's pace, or at least the pace beside it and so many further
sequences, at its last moment too: late or too slow, it is lost, and too slow it costs the others. Where a sequence costs the others little,
as on a GPU, the margin alone keeps an engine a tenth below what it can: 81 % in time instead of 94 (`lab/benchmarks/guard_study.py --gpu`).
With `--steep` 1.0 gives 2 to 5 points fewer, and with tight targets 1.2 gives 2 fewer."""
_FLOOD_MARGIN = 1.8
"""The same for a request whose tenant floods, which has to suit the strictest target of the others too. With real bodies on embedded
engines (`hmas-lab tenants`, weights of 1:1, a flood that comes at once) a tenant within its share keeps 96 % with 1.2 and 98 with 1.8; the
flood has 798 and 543 requests in time. `lab/benchmarks/guard_study.py --flood`, of shorter chats, shows none for the tenant."""
_FLOOD_SHARE = 0.15
"""Part of the usual share of the room of other tenants' requests that is open to a request whose tenant floods. In simulated floods of
mixed sizes, a tenant within its share keeps 68 % of what it has alone without the rules for floods (weights of 4:1; 47 % with equal ones),
91 % (92) with 0.25 and 95 % (93) with 0.15. With 0.15 a burst of several tenants has as much goodput as without the rules; with 0.1, or
where the room counts with a higher pace than the present one, a tenant keeps up to 97 %, and bursts lose."""
_CACHED_STEPS = 1.5
"""Least stop of a prompt that is cached, in steps: it takes one, and the sequence more costs the others. Where 8,000 tokens are cached of
every prompt, 89 % instead of 64 % are in time at 1.3 of capacity (workload `one-prompt` of `hmas-lab prefix`). If it counted as the usual
prompt near the targets, a request would go to an engine that has to compute it: 38 % instead of 46 are in time then where users chat with
two slow engines (`lab/benchmarks/closed_chats.py --seeds 12`). The time of a first token is the usual one, as where lateness is decided."""
_LATE_MS = 100.0
"""By how much the prompts ahead have to make a stream late: the time that they take is an estimate. With 0, where a machine's speed changes
by itself, the P95 TTFT up to half of capacity is 5.1 instead of 4.1 s (`guard_study.py --phases --seeds 2`; 3.9 without the rule, and as
many in time). With prompts of 2,000 tokens at twice the capacity 41 % are in time with this rule, 34 without (`door_simulated.py`)."""
_APART_MARGIN = 2.0
"""A request whose TPOT target is so many times the pace passes a full fence even where the pace is above the targets of others. With 1.5,
the steep engine serves 2 points fewer in time (`guard_study.py --steep`). Without this rule one strict target would close the fence."""
_STOPS_FEW = 0.15
"""Share of the time up to which the stops that the pace holds do not count. With 0, where prompts take little time, 1.2 points fewer are in
time (`guard_study.py --steep`) and 0.5 with tight targets; where they take much (`--prompts`), 1 to 2 fewer."""
_GIVE_WAY_S = 3.0
_WAITED_S = 1.0
"""Seconds without a denial after which a wait counts as over: while a request waits for the instance, the guard is asked at every tick."""


class TpotGuard:
    """Admits a request to an instance only if the requests in flight there can bear its prefill. A window only counts requests.

    A prefill stops the decoding of all other requests for its duration. A request in flight that has produced n of about L tokens can bear
    a stop of `SLO_tpot (L - 1) - elapsed - (L - n) pace`; this is its room, with one usual stop more as far as the pace holds stops itself
    (`Stops`): where prompts take a good part of the time, a prefill would else count twice. A whole answer, which does not stream, has one
    target for all of it; nothing is heard of it before its end, so it is taken to get a token with each step of the engine. A new request
    may join an instance if its prefill fits into a share of the smallest room there, and if it would keep its own target. Requests that
    cannot keep their target any more are not protected. Of a request with several answers, n and L are the mean over them: they are
    decoded side by side.

    Three rules keep the guard from doing harm; the last one is for requests that need not leave room for stricter targets (`KeptPace`). An
    instance with nothing in flight takes every request. The guard gives way once it has blocked every dispatch to an instance for 3 s while
    requests in time waited for it: otherwise one long answer with a tight target could hold up all others until it ends. And a request at
    the last moment for its TTFT target joins if its prefill makes no other request miss its target, even if it takes more than its share of
    the room; or if it is likelier to keep its own target than to cost others theirs. A whole answer needs no last moment for that: while it
    waits, it loses what it could give to slower decoding. Where users of slow engines stream nothing, 71 instead of 65 % are in time with
    that (`lab/benchmarks/closed_chats.py --whole 8`). The pace does not tell what a request will get where the machine's speed changes by
    itself: to wait for a better pace then loses more requests by their TTFT than it saves by their TPOT
    (`lab/benchmarks/guard_study.py --phases`: 52.7 % in time up to half of capacity without that last rule, 54.9 with it).

    Attributes:
        share: Share of the smallest room that a prefill may take, above 0 to 1; 0 switches the guard off. Each instance multiplies it by a
            factor of its own (`Instance.guard`), unless the share was set explicitly.
    """

    __slots__ = ("_denied", "_least", "share")

    def __init__(self, share: float) -> None:
        self.share = share
        self._least: dict[str, tuple[float, int, Collection[str], float, float]] = {}
        self._denied: dict[str, tuple[float, float]] = {}

    def admits(
        self,
        entry: QueueEntry,
        instance: Instance,
        now_s: float,
        *,
        late: bool,
        flooding: Collection[str],
        kept_ms: float = inf,
        is_easy: bool = False,
        cached_tokens: int | None = None,
    ) -> bool:
        """Whether the request may join the instance now.

        Args:
            entry: The request.
            instance: The instance.
            now_s: The time.
            late: Whether it has missed its TTFT target. It has no last moment then, and the guard does not give way for it. It needs a pace
                that suits its TPOT target all the same: a batch that is slower is of no use to those in time either.
            flooding: Tenants that flood. Their requests leave those of other tenants more of their room, have no last moment, and are not
                protected from the requests of other tenants.
            kept_ms: A TPOT target that the pace has to suit too: the strictest one of the other tenants for a request of a flood, that of
                `KeptPace` for others. A request whose own target is looser joins only at a pace that suits it, late or not.
            is_easy: As `KeptPace.is_easy`: such a request has its last moment then.
            cached_tokens: As `Choice.cached_tokens`.
        """
        if self.share <= 0.0 or not instance.in_flight:
            return True
        floods = entry.request.tenant in flooding
        if floods:
            cached_tokens = None
        stop_ms = instance.prefill_ms(entry, cached_tokens)
        if cached_tokens and instance.token_ms is not None:
            stop_ms = max(stop_ms, _CACHED_STEPS * instance.token_ms)
        share = self.share if instance.guard_overridden else self.share * instance.guard
        room_ms = self._least_rooms_ms(instance, now_s, flooding)[floods]
        spent_ms = 0.0
        if not entry.request.stream:
            spent_ms = 1000.0 * (now_s - entry.request.arrival_s) + stop_ms + instance.prompts.left_ms(now_s)
        own_ms = own_target_ms(entry, spent_ms)
        keeps_own = _keeps(own_ms, entry.request, instance, floods=floods)
        # Each by itself: an instance that is too slow for the kept target leaves no room for it.
        keeps_own = keeps_own and (own_ms <= kept_ms or _keeps(kept_ms, entry.request, instance, floods=floods))
        if keeps_own and stop_ms <= share * room_ms:
            return True
        if late:
            return False
        last_chance = not floods and is_last_chance(entry, instance.first_token_ms(entry), now_s)
        if last_chance and keeps_own and stop_ms <= room_ms:
            return True
        weighs = last_chance or not (floods or entry.request.stream)
        weighs = weighs and (own_ms <= kept_ms or (is_easy and last_chance))
        if weighs and self._is_worth_it(own_ms, entry.request.sequences, instance, stop_ms, now_s):
            return True
        since_s, last_s = self._denied.get(instance.name, (now_s, now_s))
        if now_s - last_s > _WAITED_S:
            since_s = now_s
        self._denied[instance.name] = (since_s, now_s)
        return now_s - since_s > _GIVE_WAY_S

    def _is_worth_it(self, own_ms: float, sequences: int, instance: Instance, stop_ms: float, now_s: float) -> bool:
        """Whether a request is likelier to keep its own target than to cost others theirs, by the instance's `Foresight`. O(in flight).

        `own_ms`: that target, as time per token.
        Where requests get just the pace that was expected, every chance is 0 or 1: the target has to be at least the pace then.
        """
        token_ms, chance = instance.token_ms, instance.pace.foresight.chance
        if token_ms is None:
            return False
        instance.refresh(now_s)
        after_ms = token_ms + instance.pace.rise_ms(token_ms) * sequences
        worth, pending_ms, steps = chance(own_ms / after_ms), instance.prompts.left_ms(now_s), instance.pace.foresight.steps
        for run in instance.running.values():
            if run.streams:
                tokens = max(1.0, run.tokens / run.sequences)
                left = max(run.length - tokens, 1.0)
                due_ms = run.tpot_slo_ms * (tokens + left - 1.0)
                if run.first_s is not None:
                    due_ms -= 1000.0 * (now_s - run.first_s) + pending_ms
            else:
                due_ms, left = run.whole_left(now_s, steps)
                due_ms -= pending_ms
            if due_ms > 0.0:
                worth -= chance(due_ms / token_ms / left) - chance((due_ms - stop_ms) / after_ms / left)
                if worth < 0.0:
                    return False
        return worth > 0.0

    def is_late_behind(self, entry: QueueEntry, instance: Instance, cached_tokens: int | None, now_s: float) -> bool:
        """Whether a stream would be late by `_LATE_MS` behind the prompts that it finds there, unless its own takes its whole target.

        It would hold up the others, too, and go to the instance that is flooded already, where nobody is left to protect. `cached_tokens`:
        as in `admits`.
        """
        ahead = instance.prompts.streamed_tokens
        if self.share <= 0.0 or not ahead or not entry.request.stream:
            return False
        own_ms = instance.prefill_ms(entry, cached_tokens)
        if own_ms > entry.estimates.slo.ttft_ms:
            return False
        return now_s + (own_ms + instance.pace.computed_ms(ahead, 0, 0.0) - _LATE_MS) / 1000.0 > entry.ttft_deadline_s

    def suits_all(self, entry: QueueEntry, instance: Instance) -> bool:
        """Whether the pace beside the request suits the declared TPOT targets in flight, or its own target is far above it. O(in flight).

        It is the pace of now that counts: a request that a pause has cost its target says nothing about what the instance can serve. Nor
        does a target below the best pace that waiting can bring, or one that no client declared.
        """
        token_ms = instance.pace.token_ms(instance.sequences + entry.request.sequences)
        if self.share <= 0.0 or token_ms is None or token_ms * _APART_MARGIN <= entry.estimates.slo.tpot_ms:
            return True
        best_ms = instance.pace.best_ms() or 0.0
        running = instance.running.values()
        return not any(run.entry.request.declared_slo is not None and best_ms <= run.target_ms() < token_ms for run in running)

    def dispatched(self, instance: Instance) -> None:
        """Records that a request was sent to the instance."""
        self._denied.pop(instance.name, None)

    def forget(self, instance: str) -> None:
        """Forgets an instance that has left."""
        self._denied.pop(instance, None)
        self._least.pop(instance, None)

    def _least_rooms_ms(self, instance: Instance, now_s: float, flooding: Collection[str]) -> tuple[float, float]:
        """Smallest room of the requests in flight that have any, without those whose tenants flood; and what is open to such a tenant.

        O(in flight), once per state of the instance and model.
        """
        cached = self._least.get(instance.name)
        if cached is not None and cached[0] == now_s and cached[1] == instance.version and cached[2] is flooding:
            return cached[3], cached[4]
        instance.refresh(now_s)
        token_ms, pending_ms, steps = instance.token_ms, instance.prompts.left_ms(now_s), instance.pace.foresight.steps
        stopped, stop_ms = max(0.0, instance.pace.stops.share - _STOPS_FEW), instance.pace.stops.ms
        least = flood_least = float("inf")
        # Inlined on purpose: with 2,000 requests in flight this loop is the cost of a dispatch.
        for run in instance.running.values():
            if not run.streams:
                due_ms, left = run.whole_left(now_s, steps)
                room_ms = -1.0 if token_ms is None else due_ms - left * token_ms - pending_ms
            else:
                tokens, slo_ms = run.tokens / run.sequences, run.tpot_slo_ms
                pace_ms = run.tpot_ms if token_ms is None else token_ms
                length = run.length
                if length < tokens + 1.0:  # noqa: PLR1730 - a call would cost more than the rest
                    length = tokens + 1.0
                if length < 2.0:  # noqa: PLR1730 - likewise
                    length = 2.0
                if run.first_s is None:
                    room_ms = (slo_ms - pace_ms) * (length - 1.0)
                else:
                    # The prefill of other requests that has begun delays this one in any case.
                    room_ms = slo_ms * (length - 1.0) - 1000.0 * (now_s - run.first_s) - (length - tokens) * pace_ms - pending_ms
                # The pace holds the stops that are usual: one of them is the prefill that asks for room.
                held_ms = stopped * (length - tokens) * pace_ms
                room_ms += held_ms if held_ms < stop_ms else stop_ms  # noqa: FURB136 - a call would cost more than the rest
            if room_ms < 0.0:
                continue
            if flooding and run.entry.request.tenant in flooding:
                flood_least = min(flood_least, room_ms)
            elif room_ms < least:
                least = room_ms
        open_ms = min(flood_least, _FLOOD_SHARE * least) if flooding else least
        self._least[instance.name] = (now_s, instance.version, flooding, least, open_ms)
        return least, open_ms


def _keeps(target_ms: float, request: Request, instance: Instance, *, floods: bool) -> bool:
    """Whether the instance's pace suits a TPOT target, or waiting for that gains nothing."""
    token_ms, margin = instance.token_ms, _FLOOD_MARGIN if floods else OWN_MARGIN
    if token_ms is None or token_ms * margin <= target_ms:
        return True
    if not floods and (beside_ms := instance.pace.token_ms(instance.sequences + request.sequences + _MORE_SEQUENCES)) is not None:
        margin = min(margin, beside_ms / token_ms)
    best_ms = instance.pace.best_ms()
    # A target below the instance's best pace is missed whenever the request goes, and one just above it never has the margin. That pace has
    # to be measured first: otherwise an instance that was once flooded looks slow, takes every request that it cannot serve in time, and
    # never recovers.
    beyond = best_ms is not None and best_ms * margin > target_ms and (best_ms > target_ms or token_ms <= target_ms)
    return beyond or token_ms * margin <= target_ms


def own_target_ms(entry: QueueEntry, spent_ms: float = 0.0) -> float:
    """The time per token with which a request keeps its target, once so much time has passed before its first step.

    A whole answer has one target for all of it (`whole_due_ms`): what its first token does not need is left for the others. By its upper
    length, since there is less for each of many.
    """
    slo, request = entry.estimates.slo, entry.request
    if request.stream:
        return slo.tpot_ms
    return slo.tpot_ms + max(0.0, slo.ttft_ms - spent_ms) / max(1.0, entry.estimates.output_tokens_upper / request.sequences - 1.0)
