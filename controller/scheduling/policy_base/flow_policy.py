"""The base of policies that share service among flows: tenants or sessions."""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping

from hmas.controller.scheduling.policy_base.declaration import mypyc_attr
from hmas.controller.scheduling.policy_base.flow import LEAST_WEIGHT, Flow, Turns, flow_name, order_within
from hmas.controller.scheduling.policy_base.heap import WHO, Place
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry, QueuePolicy
from hmas.controller.scheduling.policy_base.recall import Charge, Recall

IDLE_KEEP = 4096
"""Number of idle flows with a kept account; beyond it the flow idle for the longest is forgotten and starts anew."""
CHARGES_KEEP = 16_384
"""Pops remembered until their requests end: more than the windows of a fleet let run at once."""


@mypyc_attr(allow_interpreted_subclasses=True)
class FlowPolicy(QueuePolicy):
    """One queue for each flow, and a heap of the flows with waiting entries, lowest tag first.

    A subclass defines what a request costs (`_cost`), where a flow is placed that starts to wait again (`_wake`) and what a dispatch does
    to its account (`_take`). Push and pop are O(log n + log f) with n entries in f flows, re-keying and removal O(1) amortised: new
    estimates change the charge to come, not the place, so a wrong one costs its own flow only. When a request has ended, the prediction in
    its charge is replaced by the true length.

    Attributes:
        busy: Flows that have a waiting entry, by name.
        idle: Flows that have none, by name, the longest idle first; at most `IDLE_KEEP`.
        charges: What each popped request was charged, until it ends; at most `CHARGES_KEEP`.
    """

    def __init__(self, parameters: Mapping[str, float], *, sessions: bool = False) -> None:
        super().__init__(parameters)
        self._sessions = sessions
        self._clock = 0.0
        self.busy: dict[str, Flow] = {}
        self.idle: OrderedDict[str, Flow] = OrderedDict()
        self._live: dict[str, Place] = {}
        self._stamp = 0
        self._turns = Turns()
        self.charges: Recall[Charge] = Recall(CHARGES_KEEP)
        self._closed: set[str] = set()

    # -- what defines the policy ------------------------------------------------------------------------------------------

    @abstractmethod
    def _cost(self, entry: QueueEntry, output_tokens: float) -> float:
        """The cost of a request with `output_tokens` output tokens, before its weight counts."""

    @abstractmethod
    def _wake(self, flow: Flow, entry: QueueEntry, now_s: float) -> None:
        """Places a flow that had no waiting entry and now gets `entry`."""

    def _weight(self, entry: QueueEntry) -> float:
        """The weight that the cost of a request is divided by."""
        return max(LEAST_WEIGHT, entry.weight)

    def _claim(self, entry: QueueEntry) -> float:
        """The claim of the flow that has this as its next entry, relative to other flows, for the estimate of `rank`."""
        return self._weight(entry)

    def _take(self, flow: Flow, amount: float, now_s: float) -> None:  # noqa: ARG002  some policies count by time
        """Updates the accounts when the flow's next entry is taken: advances its tag, and the clock to the tag that was served."""
        self._clock = max(self._clock, flow.tag)
        flow.tag += amount

    def _correct(self, flow: Flow, charge: Charge, more: float, now_s: float) -> None:  # noqa: ARG002  some policies need the time
        """Corrects the account for a charge that was `more` too low; too high if `more` is negative."""
        flow.tag += more

    def _served(self, charge: Charge, now_s: float) -> None:
        """Updates the accounts when an entry of the flow is served out of turn: its tag advances, and the clock stays."""
        self._correct(charge.flow, charge, charge.amount, now_s)

    def _undone(self, flow: Flow, charge: Charge) -> None:
        """Called after a pop was undone: account and clock are restored, unless something has changed them since."""

    def _sleep(self, flow: Flow) -> None:
        """Called when the flow has no waiting entry any more."""

    def _close(self, flow: Flow) -> None:
        """Called when the flow's tenant is closed while entries wait: as if there were none."""
        self._sleep(flow)

    def _open(self, flow: Flow, entry: QueueEntry, now_s: float) -> None:
        """Sets the tag of a flow whose tenant is open again, with `entry` as its next one: as after a pause."""
        self._wake(flow, entry, now_s)

    def _restart(self) -> None:
        """Called when an entry comes while none waits."""

    def _next(self) -> Flow | None:
        """The flow that has the next turn, None if no entry waits."""
        return self._turns.first()

    def _stand(self, flow: Flow, first: QueueEntry, seq: int) -> None:  # noqa: ARG002  some policies need the first entry
        """Places a flow among the flows. `first`: its next entry, `seq`: the arrival number of that; it breaks ties of tags."""
        self._turns.stand(flow, seq)

    def _leave(self, flow: Flow) -> None:
        """Removes the flow from the turns."""
        self._turns.leave(flow)

    # -- the contract of a policy -----------------------------------------------------------------------------------------

    def push(self, entry: QueueEntry, now_s: float) -> None:
        """Adds a waiting entry to its flow. One that comes back was not served: its charge is dropped."""
        charge = self.charges.take(entry.request.id)
        if charge is not None and self._knows(charge.flow):
            self._amend(charge, -charge.amount, now_s)
        flow = self._entered(entry, now_s)
        if flow.push(self._new_place(entry)) or (flow.stands is None and not flow.tickets):
            self._place(flow)

    def load(self, entries: Iterable[QueueEntry], now_s: float) -> None:
        """Adds many entries at once; flows that were idle wake in the order of their first arrival."""
        flows: dict[str, tuple[Flow, list[Place]]] = {}
        for entry in entries:
            name = flow_name(entry, sessions=self._sessions)
            found = flows.get(name)
            if found is None:
                found = flows[name] = (self._entered(entry, now_s), [])
            found[1].append(self._new_place(entry))
        for flow, places in flows.values():
            flow.load(places)
            self._place(flow)

    def pop(self, now_s: float) -> QueueEntry | None:
        """Takes the next entry of the flow that has the next turn, None if empty."""
        clock = self._clock
        flow = self._next()
        if flow is None:
            return None
        entry = flow.pop()
        request_id = entry.request.id
        del self._live[request_id]
        before = (flow.tag, flow.used, flow.turn)
        weight = self._weight(entry)
        amount = self._cost(entry, entry.estimates.output_tokens) / weight
        self._take(flow, amount, now_s)
        self._place(flow)
        self.charges.note(request_id, Charge(flow, amount, weight, before, (flow.tag, flow.used, flow.turn), clock, self._clock))
        return entry

    def undo_pop(self, entry: QueueEntry, now_s: float) -> None:
        """Returns a popped entry to its place and takes its charge back."""
        charge = self.charges.take(entry.request.id)
        if charge is None or not self._knows(charge.flow):
            self.push(entry, now_s)
            return
        flow = charge.flow
        if flow.name not in self.busy:
            del self.idle[flow.name]
            self.busy[flow.name] = flow
        if flow.state() == charge.after:
            flow.tag, flow.used, flow.turn = charge.before
        else:
            self._correct(flow, charge, -charge.amount, now_s)
        if self._clock == charge.clock_after:
            self._clock = charge.clock_before
        flow.push(self._new_place(entry))
        self._place(flow)
        self._undone(flow, charge)

    def discard(self, request_id: str) -> QueueEntry | None:
        """Takes an entry out by id, None if it is not here."""
        place = self._live.pop(request_id, None)
        if place is None:
            return None
        entry: QueueEntry = place[WHO]
        flow = self._flow(entry)
        flow.drop(place)
        self._place(flow)
        return entry

    def serve(self, request_id: str, now_s: float) -> QueueEntry | None:
        """Takes out an entry that is served out of turn, and charges its flow; the clock of all flows stays."""
        place = self._live.get(request_id)
        if place is None:
            return None
        entry: QueueEntry = place[WHO]
        flow, weight = self._flow(entry), self._weight(entry)
        amount, state = self._cost(entry, entry.estimates.output_tokens) / weight, flow.state()
        charge = Charge(flow, amount, weight, state, state, self._clock, self._clock)
        self._served(charge, now_s)
        charge.after, charge.clock_after = flow.state(), self._clock
        self.charges.note(request_id, charge)
        return self.discard(request_id)

    def rekey(self, entry: QueueEntry, now_s: float) -> None:
        """Does nothing: new estimates change the charge to come, not the place."""

    def on_finished(self, entry: QueueEntry, output_tokens: int, now_s: float) -> None:
        """Corrects the flow's account by the error of its charge; does nothing if the pop is no longer remembered."""
        charge = self.charges.take(entry.request.id)
        if charge is not None and self._knows(charge.flow):
            self._amend(charge, self._cost(entry, output_tokens) / charge.weight - charge.amount, now_s)

    def rank(self, request_id: str) -> int | None:
        """An estimate: the entries before it in its flow, plus those that other flows get served meanwhile by their weights."""
        place = self._live.get(request_id)
        if place is None:
            return None
        mine = self._flow(place[WHO])
        rank = mine.rank(place)
        claim = self._claim(place[WHO])
        others = 0
        for flow in self.busy.values():
            first = flow.first()
            if flow is not mine and first is not None:
                others += min(flow.size, int((rank + 1) * self._claim(first[WHO]) / claim))
        return rank + others

    def close_tenant(self, tenant: str, now_s: float) -> None:  # noqa: ARG002  the contract's arguments
        """See `QueuePolicy.close_tenant`; for policies whose flows are tenants."""
        self._closed.add(tenant)
        flow = self.busy.get(tenant)
        if flow is not None:
            self._leave(flow)
            self._close(flow)

    def open_tenant(self, tenant: str, now_s: float) -> None:
        """See `QueuePolicy.open_tenant`; where the flow then stands is what `_open` says."""
        self._closed.discard(tenant)
        flow = self.busy.get(tenant)
        first = None if flow is None else flow.first()
        if flow is not None and first is not None:
            self._open(flow, first[WHO], now_s)
            self._place(flow)

    def entries(self) -> Iterator[QueueEntry]:
        """All waiting entries, in no particular order."""
        return (place[WHO] for place in self._live.values())

    def __len__(self) -> int:
        return len(self._live)

    # -- waiting flows and idle flows ---------------------------------------------------------------------------

    def _entered(self, entry: QueueEntry, now_s: float) -> Flow:
        """The entry's flow, woken if it was idle."""
        name = flow_name(entry, sessions=True) if self._sessions else entry.request.tenant
        flow = self.busy.get(name)
        if flow is None:
            if not self.busy:
                self._restart()
            flow = self.idle.pop(name, None) or Flow(name)
            self._wake(flow, entry, now_s)
            self.busy[name] = flow
        return flow

    def _flow(self, entry: QueueEntry) -> Flow:
        """The flow of a waiting entry."""
        return self.busy[flow_name(entry, sessions=self._sessions)]

    def _new_place(self, entry: QueueEntry) -> Place:
        self._stamp += 1
        place = (order_within(entry), entry.seq, self._stamp, entry)
        self._live[entry.request.id] = place
        return place

    def _place(self, flow: Flow) -> None:
        """Places a flow by its tag and its next entry, or moves it to the idle ones."""
        first = flow.first()
        if first is not None:
            if flow.name in self._closed:
                self._leave(flow)
            else:
                self._stand(flow, first[WHO], first[1])
            return
        self._leave(flow)
        if self.busy.pop(flow.name, None) is not None:
            self.idle[flow.name] = flow
            self._sleep(flow)
            if len(self.idle) > IDLE_KEEP:
                self.idle.popitem(last=False)

    def _amend(self, charge: Charge, more: float, now_s: float) -> None:
        if more:
            self._correct(charge.flow, charge, more, now_s)
            if charge.flow.size:
                self._place(charge.flow)

    def _knows(self, flow: Flow) -> bool:
        """Whether the flow's account is still kept."""
        return (self.busy.get(flow.name) or self.idle.get(flow.name)) is flow
