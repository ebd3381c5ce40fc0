"""Meta's model (H-MAS 3.4.1, C.1, C.2): long views in, policy decisions out, guarded by short views. Pure and bounded.

A proposal becomes a decision if all of these hold: it was the same in two evaluations in a row; the active policy has had its dwell time;
the proposed policy is in the pool and was not rolled back recently; the hour's budget of switches is not spent; and the twin, if it is
asked, does not expect it to be worse than what runs now. Eq. 12 watches each switch and undoes one that made things worse. Meta repeats
a decision that changes nothing at a slow pace, so that the gateway sees that meta is alive.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from hmas.agents.meta.candidate import Candidate, candidate
from hmas.agents.meta.cooldowns import Cooldowns
from hmas.agents.meta.guards import GuardSet, RollbackWindow, Verdict, has_engine
from hmas.agents.meta.journal import DecisionJournal
from hmas.agents.meta.judge import Judge, Ruling
from hmas.agents.meta.limits import Limits
from hmas.agents.meta.pending_work import Decisions, DecisionText, PendingWork, Then
from hmas.agents.meta.probation import Probation
from hmas.agents.meta.proposal_check import checked
from hmas.agents.meta.restored_state import past_of
from hmas.agents.meta.selectors.base import Pending, Proposal, Reward, Selector, Situation
from hmas.agents.meta.selectors.calls import SelectorCalls
from hmas.agents.meta.selectors.rules import RuleSelector
from hmas.controller.core.messages import LongView, MetaDecision, ShortView
from hmas.controller.scheduling.policies.registry import BYPASS_POLICY

SHORT_MAX = 256
HOUR_S = 3_600.0
ASKING_MOST_S = 60.0
"""Time after which meta stops waiting for a pending answer."""


class MetaModel:
    """The state of meta.

    Args:
        start: The configured policy: meta starts with it and returns to it.
        pool: Names of the policies that may be chosen (the whitelist Omega). `routers`: routers that may, besides the configured one.
        limits: See `Limits`. `guards`: the bypass and the watch over a switch.
        selector: The source of proposals; the rule map by default.
        judge: Checks other selectors' proposals before they are followed; None for no check. `journal`: joins decisions with outcomes.

    Attributes:
        asking: Work that the caller must do, until its `finish` or `failed` is called; None if there is none.
        selector_calls: The selector's errors, for the caller to log.
    """

    def __init__(
        self,
        *,
        start: str | Candidate,
        pool: Collection[str],
        limits: Limits | None = None,
        guards: GuardSet = GuardSet(),  # noqa: B008 - immutable
        selector: Selector | None = None,
        judge: Judge | None = None,
        journal: DecisionJournal | None = None,
        routers: Collection[str] = (),
    ) -> None:
        self._start = candidate(start) if isinstance(start, str) else start
        self._pool = frozenset(pool) | {self._start.policy}
        self._routers = ("", *routers) if routers else ()
        self._limits = limits or Limits()
        self._settle_s = min(self._limits.settle_s, self._limits.rollback_window_s / 2)
        self._rules = RuleSelector()
        self._selector: Selector = selector or self._rules
        self.selector_calls = SelectorCalls(self._selector)
        self._judge = judge
        self._journal = journal
        self._trusting = self._selector.trusted or guards.trusting
        self._probation = None if self._trusting else Probation(self._start, self._limits.dwell_s)
        self.asking: PendingWork | None = None
        self.current = self._start
        self._stable = self._start
        self._since_s = self._switched_s = self._evaluated_s = self._sent_s = float("-inf")
        self._switches: deque[float] = deque()
        self._agreed: tuple[Candidate, str, int] = (self._start, "", 0)
        self._bans = Cooldowns()
        self._watch: RollbackWindow | None = None
        self._guards = guards
        self._bypass = guards.bypass()
        self._short: deque[ShortView] = deque(maxlen=SHORT_MAX)
        self._situation: Situation | None = None
        self._sequence = 0
        self._said = DecisionText("start: nothing is measured yet")
        self._own_id = ""

    @property
    def policy(self) -> str:
        """The active policy, not counting a bypass."""
        return self.current.policy

    def restore(self, decisions: Sequence[MetaDecision], now_s: float) -> None:
        """Resumes from its own last decisions, oldest first; the dwell time starts again."""
        ban_s, configured = self._limits.ban_s, self._start.label
        past = past_of(decisions, self._pool, now_s, ban_s=ban_s, span_s=HOUR_S, routers=self._routers, configured=configured)
        self._bans, self._switches = past.bans, deque(past.switches)
        if past.bypass_s is not None:
            self._bypass.resume(past.bypass_s)
        if past.current is not None:
            self.current = self._stable = past.current
            self._switched_s = self._since_s = now_s

    def on_short(self, view: ShortView, now_s: float) -> Decisions:
        """Runs the guards (bypass and rollback), and repeats the decision between long views as a keep-alive."""
        self._short.append(view)
        if "policy" in view.forced:
            self._yield_to_operator(now_s)
            return self._keep_alive(now_s, "an operator holds the policy: followed")
        if self._bypass.observe(view, now_s):
            return self._enter_bypass(view, now_s) if self._bypass.active else self._leave_bypass(now_s)
        if self._bypass.active:
            return self._keep_alive(now_s)
        if self._watch is not None:
            verdict = self._watch.observe(view, now_s)
            if verdict is not None:
                return self._roll_back(verdict, now_s)
            if now_s >= self._watch.until_s:
                self._watch = None
                self._stable = self.current
        return self._keep_alive(now_s)

    def on_long(self, view: LongView, now_s: float) -> Decisions:
        """Runs the slow loop once per Delta T_meta. Afterwards `asking` holds work that takes longer."""
        if now_s < self._evaluated_s:
            # The clock went back: all timers start again.
            self._evaluated_s = self._switched_s = now_s
            self._watch = self.asking = None
        if now_s - self._evaluated_s < self._limits.period_s * 0.95:
            return []
        if self.asking is not None and now_s - self.asking.asked_s < ASKING_MOST_S:
            # The work still runs: another question would only queue behind it.
            return self._keep_alive(now_s)
        self.asking = None
        self._evaluated_s = now_s
        if "policy" in view.forced or self._bypass.active:
            return []
        if self._short and not has_engine(self._short[-1]):
            self._agreed = (self.current, "", 0)
            return self._say(now_s, self.policy, DecisionText("keep: no engine is healthy, so nothing can be judged", "hold"))
        outcomes: Decisions = list(self._journal.ended(view, self.current, self._since_s, now_s)) if self._journal is not None else []
        before, reward = self._situation, None
        if before is not None and before.current == self.current and view.ended:
            reward = Reward(situation=before, good=view.goodput_rate, requests=view.ended)
        self._situation = situation = self._look(view, now_s)
        if self._probation is not None:
            self._probation.follow(situation)
        said = self.selector_calls.propose(situation, reward)
        if isinstance(said, Proposal):
            return outcomes + self._consider(said, situation, now_s)
        self._ask(said, situation, now_s)
        return outcomes + self._keep_alive(now_s)

    def _look(self, view: LongView, now_s: float) -> Situation:
        return Situation(
            view=view,
            current=self.current,
            start=self._start,
            allowed=tuple(name for name in sorted(self._pool) if self._bans.allows(name, now_s)),
            since_s=self._since_s,
            now_s=now_s,
            routers=() if "routers" in view.forced else tuple(one for one in self._routers if self._bans.allows_router(one, now_s)),
        )

    def _ask(self, pending: Pending, situation: Situation, now_s: float) -> None:
        self._await(
            pending.compute,
            lambda found, at_s: self._answered(pending.finish(found), situation, at_s),
            lambda why, at_s: self._answered(pending.failed(why), situation, at_s),
            now_s,
        )

    def _await(self, compute: Callable[[], Any], finish: Then, failed: Then, now_s: float) -> None:
        """Requests work. `asking` is cleared before the answer is used, so that work that fails is retried at the next evaluation."""

        def over(then: Then) -> Then:
            def call(found: Any, at_s: float) -> Decisions:
                self.asking = None
                return then(found, at_s)

            return call

        self.asking = PendingWork(compute, over(finish), over(failed), now_s)

    def _answered(self, proposal: Proposal, situation: Situation, now_s: float) -> Decisions:
        """Takes a proposal that took a while; it counts only if the candidate that it was made for still runs."""
        if self._bypass.active or situation.current != self.current:
            return []
        return self._consider(proposal, situation, now_s)

    def _consider(self, proposal: Proposal, situation: Situation, now_s: float) -> Decisions:
        """Follows a proposal, has it judged, or reports why not."""
        probation = self._probation
        if probation is not None and self._judge is not None and self._is_settled(now_s) and probation.due(situation, now_s):
            reference = probation.reference
            return self._ask_judge(self._judge, reference, now_s, lambda ruling, at_s: self._held(ruling, reference, at_s))
        wanted, fault = checked(proposal, situation, self._pool, self._bans)
        word = DecisionText(proposal.reason, proposal.source, proposal.evidence, proposal.confidence, proposal.candidates)
        if fault:
            return self._keep(word, wanted, fault, now_s)
        # What stands in for an untrusted selector does not confirm an earlier proposal of it, nor the reverse.
        again = self._agreed[0] == wanted and (self._selector.trusted or self._agreed[1] == word.source)
        self._agreed = (wanted, word.source, self._agreed[2] + 1 if again else 1)
        if wanted == self.current:
            return self._say(now_s, self.policy, word)
        held = self._held_back(wanted, now_s)
        if held:
            return self._keep(word, wanted, held, now_s)
        if self._judge is None or proposal.source == "twin":
            # The twin's own proposal needs no judge. Without a judge, only trusted sources are followed.
            return self._switch(wanted, situation.view, word, now_s) if self._trusts(word) else self._unjudged(word, wanted, now_s)
        return self._ask_judge(
            self._judge, wanted, now_s, lambda ruling, at_s: self._ruled(ruling, wanted, situation, word, at_s), sure=not self._trusts(word)
        )

    def _held_back(self, wanted: Candidate, now_s: float) -> str:
        """Returns why a proposal is not followed now; empty if it is."""
        until_s = self._bans.until_s(wanted)
        if now_s < until_s:
            return f"it was rolled back and is left alone for another {until_s - now_s:.0f} s"
        if now_s - self._switched_s < self._limits.dwell_s:
            return f"{self.policy} has {self._limits.dwell_s - (now_s - self._switched_s):.0f} s of its dwell time left"
        if self._watch is not None:
            return "the last switch is still being watched"
        if self._agreed[2] < (needed := self._limits.agree):
            times = "one evaluation" if self._agreed[2] == 1 else f"{self._agreed[2]} evaluations"
            return f"proposed in {times} only; {'two' if needed == 2 else needed} in a row are needed"
        while self._switches and not 0.0 <= now_s - self._switches[0] < HOUR_S:
            self._switches.popleft()
        if len(self._switches) >= self._limits.switches_per_hour:
            return f"the hour's {self._limits.switches_per_hour} switches are spent"
        return ""

    def _ask_judge(
        self, judge: Judge, other: Candidate, now_s: float, then: Callable[[Ruling, float], Decisions], *, sure: bool = False
    ) -> Decisions:
        """Has another candidate compared with what runs, and calls `then` with the ruling if the same candidate still runs."""
        current = self.current
        case = judge.case(current, other, self._since_s, now_s)
        if isinstance(case, Ruling):
            return then(case, now_s)

        def ruled(ruling: Ruling, at_s: float) -> Decisions:
            return [] if self._bypass.active or self.current != current else then(ruling, at_s)

        self._await(
            judge.compute(case),
            lambda answer, at_s: ruled(judge.rule(current, other, answer, sure=sure), at_s),
            lambda why, at_s: ruled(Ruling(None, f"the twin is silent: the replay broke: {why}"), at_s),
            now_s,
        )
        return self._keep_alive(now_s)

    def _is_settled(self, now_s: float) -> bool:
        return self._watch is None and now_s - self._switched_s >= self._limits.dwell_s

    def _held(self, ruling: Ruling, reference: Candidate, now_s: float) -> Decisions:
        """Ends a probation: what runs stays only if the twin expects the rule map's choice to be worse."""
        if ruling.passes is False:
            return self._keep_alive(now_s)
        previous, was = self.policy, self.current.label
        self._switches.append(now_s)
        self._put_in_force(reference, now_s)
        self._stable = self.current
        self._agreed = (self.current, "", 0)
        reason = f"{was} is not expected to do better than the rule map's choice: {ruling.reason}"
        return self._say(now_s, previous, DecisionText(reason, "rules", candidates=ruling.outlooks), changed=True)

    def _ruled(self, ruling: Ruling, wanted: Candidate, situation: Situation, word: DecisionText, now_s: float) -> Decisions:
        reason, candidates = f"{word.reason}; {ruling.reason}", ruling.outlooks or word.candidates
        judged = DecisionText(reason, word.source, word.evidence, word.confidence, candidates)
        if ruling.passes or (ruling.passes is None and self._trusts(word)):
            return self._switch(wanted, situation.view, judged, now_s)
        return self._keep(judged, wanted, "it does not pass the judge", now_s)

    def _trusts(self, word: DecisionText) -> bool:
        """Whether a proposal is followed without a judge: a trusted selector's is, and the rule map's even as a fallback."""
        return self._trusting or word.source == self._rules.name

    def _unjudged(self, word: DecisionText, wanted: Candidate, now_s: float) -> Decisions:
        return self._keep(word, wanted, f"nobody can judge it, and {self._selector.name} is not followed unjudged", now_s)

    def _keep(self, word: DecisionText, wanted: Candidate, why: str, now_s: float) -> Decisions:
        reason = f"keep {self.current.label}: {wanted.label if wanted != self.current else 'another'} proposed ({word.reason}), but {why}"
        return self._say(now_s, self.policy, DecisionText(reason, word.source, word.evidence, word.confidence, word.candidates))

    def _switch(self, wanted: Candidate, view: LongView, word: DecisionText, now_s: float) -> Decisions:
        self._watch = self._guards.watched(self._short, view, self._limits, self._settle_s, now_s)
        previous = self.policy
        self._switches.append(now_s)
        self._put_in_force(wanted, now_s)
        return self._say(now_s, previous, word, changed=True)

    def _put_in_force(self, wanted: Candidate, now_s: float) -> None:
        self.current = wanted
        self._switched_s = self._since_s = now_s

    def _roll_back(self, verdict: Verdict, now_s: float) -> Decisions:
        failed, what = self.policy, self.policy if self.policy != self._stable.policy else self.current.label
        self._bans.forget(now_s)
        self._bans.add(self.current, self._stable, now_s + self._limits.ban_s)
        self._watch = self.asking = None
        self._put_in_force(self._stable, now_s)
        self._agreed = (self.current, "", 0)
        word = DecisionText(f"{what} made things worse: {verdict.reason}", "rollback", verdict.evidence)
        return self._say(now_s, failed, word, changed=True)

    def _enter_bypass(self, view: ShortView, now_s: float) -> Decisions:
        self._watch = self.asking = None
        self._put_in_force(self._stable, now_s)
        self._forget_spans()
        evidence = {
            "queued": float(view.queued),
            "oldest_wait_ms": view.oldest_wait_ms,
            "in_flight": float(sum(i.in_flight for i in view.instances)),
        }
        why = "the telemetry contradicts itself" if view.anomalies else "beyond what any policy can serve"
        word = DecisionText(f"emergency bypass on: {why} ({', '.join(self._bypass.names)})", "bypass", evidence)
        return self._say(now_s, self.policy, word, changed=True)

    def _leave_bypass(self, now_s: float) -> Decisions:
        self._switched_s = self._since_s = now_s
        self._agreed = (self.current, "", 0)
        reason = f"clear: {', '.join(self._bypass.names) or 'nothing'} not seen any more; back to {self.policy}"
        return self._say(now_s, BYPASS_POLICY, DecisionText(reason, "bypass"), changed=True)

    def _yield_to_operator(self, now_s: float) -> None:
        """Suspends all judging while an operator holds the policy: meta's choice does not cause what happens then."""
        self._watch = self.asking = self._situation = None
        self._stable = self.current
        self._agreed = (self.current, "", 0)
        self._switched_s = self._since_s = now_s
        self._bypass = self._guards.bypass()
        self._forget_spans()

    def _forget_spans(self) -> None:
        if self._journal is not None:
            self._journal.clear()

    def _keep_alive(self, now_s: float, reason: str = "") -> Decisions:
        if 0 <= now_s - self._sent_s < self._limits.keep_alive_s:
            return []
        said = self._said
        word = DecisionText(reason or said.reason, said.source, said.evidence, said.confidence)
        decision = self._decision(now_s, self.policy, word, repeats=self._own_id)
        # After a start the first decision may be a keep-alive; later ones then repeat this one.
        self._own_id = self._own_id or decision.decision_id
        return [decision]

    def _say(self, now_s: float, previous: str, word: DecisionText, *, changed: bool = False) -> Decisions:
        self._said = word
        decision = self._decision(now_s, previous, word, changed=changed)
        self._own_id = decision.decision_id
        if self._journal is not None and not decision.bypass:
            self._journal.made(decision, self.current)
        return [decision]

    def _decision(self, now_s: float, previous: str, word: DecisionText, *, repeats: str = "", changed: bool = False) -> MetaDecision:
        self._sequence += 1
        self._sent_s = now_s
        bypass = self._bypass.active
        return MetaDecision(
            sent_s=now_s,
            decision_id=f"meta-{int(now_s * 1000):x}-{self._sequence}",
            policy=BYPASS_POLICY if bypass else self.policy,
            previous=previous,
            parameters={} if bypass else dict(self.current.parameters),
            n_run=0 if bypass else self.current.n_run,
            router="" if bypass else self.current.router,
            bypass=bypass,
            reason=word.reason,
            source=word.source,
            evidence=dict(word.evidence or {}),
            confidence=word.confidence,
            candidates=list(word.candidates),
            changed=changed,
            repeats=repeats,
            previous_parameters=dict(self.current.parameters) if bypass else {},
            previous_n_run=self.current.n_run if bypass else 0,
            previous_router=self.current.router if bypass else "",
            configured=self._start.label,
        )
