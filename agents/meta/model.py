"""Meta's model (H-MAS 3.4.1, C.1, C.2): long views in, policy decisions out, guarded by short views. Pure and bounded.

A wish of the rule map becomes a decision when it has been the same in two evaluations in a row, the policy in force has had its dwell time,
the wished one is in the pool and was not rolled back lately. A switch is watched by Eq. 12 and undone where it made things worse. A
decision that changes nothing is repeated at a slow pace, so that the gateway sees that someone is there.
"""

from collections import deque
from collections.abc import Collection, Mapping

from agents.meta.guards import BypassGuard, RollbackWindow, Verdict, baseline, recent
from agents.meta.rules import Wish, choose, figures
from controller.core.messages import LongView, MetaDecision, ShortView

BYPASS_POLICY = "fcfs"
AGREE = 2
"""Evaluations in a row that have to wish for the same policy."""
BAN_DWELLS = 8
"""A policy that was rolled back is left alone for so many dwell times."""
SHORT_MAX = 256


class MetaModel:
    """State of meta.

    Args:
        start: The configured policy: where it begins and returns to.
        pool: Names that may be chosen (the whitelist Omega).
        period_s: Delta T_meta.
        dwell_s: Least time between two switches.
        rollback_window_s: How long a switch is watched.
        rollback_ratio: Rho of Eq. 12.
        settle_s: Span of the short view: until then it still holds requests from before the switch.
        keep_alive_s: Longest time without a decision while views come in.
    """

    def __init__(
        self,
        *,
        start: str,
        pool: Collection[str],
        period_s: float = 10.0,
        dwell_s: float = 30.0,
        rollback_window_s: float = 15.0,
        rollback_ratio: float = 1.5,
        settle_s: float = 5.0,
        keep_alive_s: float = 5.0,
    ) -> None:
        self._start = start
        self._pool = frozenset(pool) | {start}
        self._period_s = period_s
        self._dwell_s = dwell_s
        self._rollback_window_s = rollback_window_s
        self._rollback_ratio = rollback_ratio
        self._settle_s = min(settle_s, rollback_window_s / 2)
        self._keep_alive_s = keep_alive_s
        self.policy = start
        self._hints: Mapping[str, float] = {}
        self._stable: tuple[str, Mapping[str, float]] = (start, {})
        self._switched_s = float("-inf")
        self._evaluated_s = float("-inf")
        self._sent_s = float("-inf")
        self._agreed: tuple[str, int] = (start, 0)
        self._banned_until_s: dict[str, float] = {}
        self._watch: RollbackWindow | None = None
        self._bypass = BypassGuard()
        self._short: deque[ShortView] = deque(maxlen=SHORT_MAX)
        self._sequence = 0
        self._said: tuple[str, dict[str, float], str] = ("", {}, "rules")

    @property
    def bypassed(self) -> bool:
        """Whether the emergency bypass is on."""
        return self._bypass.active

    def restore(self, decision: MetaDecision, now_s: float) -> None:
        """Takes its own last decision from before a restart: policy and bypass go on; dwell begins anew."""
        if decision.bypass:
            self._bypass.resume(now_s)
            decision_policy = decision.previous
        else:
            decision_policy = decision.policy
        if decision_policy not in self._pool:
            return
        self.policy = decision_policy
        self._hints = {} if decision.bypass else dict(decision.hints)
        self._stable = (self.policy, self._hints)
        self._switched_s = now_s

    def on_short(self, view: ShortView, now_s: float) -> list[MetaDecision]:
        """Guards: bypass and rollback; and the sign of life between long views."""
        self._short.append(view)
        if "policy" in view.forced:
            self._yield_to_operator(now_s)
            return self._keep_alive(now_s, "an operator holds the policy: followed")
        if self._bypass.observe(view, now_s):
            return [self._enter_bypass(view, now_s) if self._bypass.active else self._leave_bypass(now_s)]
        if self._bypass.active:
            return self._keep_alive(now_s, self._said[0])
        if self._watch is not None:
            verdict = self._watch.observe(view, now_s)
            if verdict is not None:
                return [self._roll_back(verdict, now_s)]
            if now_s >= self._watch.until_s:
                self._watch = None
                self._stable = (self.policy, self._hints)
        return self._keep_alive(now_s, self._said[0] or f"keep: {self.policy}")

    def on_long(self, view: LongView, now_s: float) -> list[MetaDecision]:
        """The slow loop: evaluated once per Delta T_meta."""
        if now_s < self._evaluated_s:
            # The clock has gone back: what is timed by it begins anew.
            self._evaluated_s = self._switched_s = now_s
            self._watch = None
        if now_s - self._evaluated_s < self._period_s * 0.95:
            return []
        self._evaluated_s = now_s
        if "policy" in view.forced or self._bypass.active:
            return []
        if self._short and not _has_engine(self._short[-1]):
            self._agreed = (self.policy, 0)
            return self._say(now_s, self.policy, "keep: no engine is healthy, so nothing can be judged", "hold", {})
        wish = choose(view, current=self.policy, start=self._start)
        self._count(wish.policy)
        if wish.policy == self.policy:
            return self._say(now_s, self.policy, wish.reason, "rules", figures(view))
        held = self._held_back(wish.policy, now_s)
        if held:
            return self._say(
                now_s, self.policy, f"keep {self.policy}: {wish.policy} is wished ({wish.reason}), but {held}", "rules", figures(view)
            )
        return self._switch(wish, view, now_s)

    def _count(self, wished: str) -> None:
        name, times = self._agreed
        self._agreed = (wished, times + 1 if name == wished else 1)

    def _held_back(self, wished: str, now_s: float) -> str:
        """Why a wish is not followed now, empty where it is."""
        if wished not in self._pool:
            return "it is not in the pool"
        if now_s < self._banned_until_s.get(wished, float("-inf")):
            return f"it was rolled back and is left alone for another {self._banned_until_s[wished] - now_s:.0f} s"
        if now_s - self._switched_s < self._dwell_s:
            return f"{self.policy} has {self._dwell_s - (now_s - self._switched_s):.0f} s of its dwell time left"
        if self._watch is not None:
            return "the last switch is still being watched"
        if self._agreed[1] < AGREE:
            return "it has been wished only once"
        return ""

    def _switch(self, wish: Wish, view: LongView, now_s: float) -> list[MetaDecision]:
        before = baseline(recent(self._short, now_s, self._settle_s), view)
        self._watch = RollbackWindow(
            before, ratio=self._rollback_ratio, from_s=now_s + self._settle_s, until_s=now_s + self._rollback_window_s
        )
        previous = self.policy
        self.policy, self._hints = wish.policy, dict(wish.hints)
        self._switched_s = now_s
        return self._say(now_s, previous, wish.reason, "rules", figures(view))

    def _roll_back(self, verdict: Verdict, now_s: float) -> MetaDecision:
        failed = self.policy
        self._watch = None
        self.policy, self._hints = self._stable
        self._switched_s = now_s
        self._agreed = (self.policy, 0)
        self._banned_until_s = {name: until_s for name, until_s in self._banned_until_s.items() if until_s > now_s}
        self._banned_until_s[failed] = now_s + BAN_DWELLS * self._dwell_s
        return self._say(now_s, failed, f"{failed} made things worse: {verdict.reason}", "rollback", verdict.evidence)[0]

    def _enter_bypass(self, view: ShortView, now_s: float) -> MetaDecision:
        self._watch = None
        self.policy, self._hints = self._stable
        evidence = {
            "queued": float(view.queued),
            "oldest_wait_ms": view.oldest_wait_ms,
            "in_flight": float(sum(i.in_flight for i in view.instances)),
        }
        return self._say(now_s, self.policy, f"the control loop is not to be trusted: {', '.join(view.anomalies)}", "bypass", evidence)[0]

    def _leave_bypass(self, now_s: float) -> MetaDecision:
        self._switched_s = now_s
        self._agreed = (self.policy, 0)
        reason = f"clear: {', '.join(self._bypass.names) or 'nothing'} not seen any more; back to {self.policy}"
        return self._say(now_s, BYPASS_POLICY, reason, "bypass", {})[0]

    def _yield_to_operator(self, now_s: float) -> None:
        """Nothing is judged while an operator decides: what happens is not this policy's doing."""
        self._watch = None
        self._stable = (self.policy, self._hints)
        self._agreed = (self.policy, 0)
        self._switched_s = now_s
        self._bypass = BypassGuard()

    def _keep_alive(self, now_s: float, reason: str) -> list[MetaDecision]:
        if 0 <= now_s - self._sent_s < self._keep_alive_s:
            return []
        return self._say(now_s, self.policy, reason, self._said[2], self._said[1])

    def _say(self, now_s: float, previous: str, reason: str, source: str, evidence: dict[str, float]) -> list[MetaDecision]:
        self._sequence += 1
        self._sent_s = now_s
        self._said = (reason, evidence, source)
        bypass = self._bypass.active
        return [
            MetaDecision(
                sent_s=now_s,
                decision_id=f"meta-{int(now_s * 1000):x}-{self._sequence}",
                policy=BYPASS_POLICY if bypass else self.policy,
                previous=previous,
                hints={} if bypass else dict(self._hints),
                bypass=bypass,
                reason=reason,
                source=source,
                evidence=evidence,
            )
        ]


def _has_engine(view: ShortView) -> bool:
    return not view.instances or any(instance.engine is None or instance.engine.healthy for instance in view.instances)
