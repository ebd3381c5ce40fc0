"""Every discipline of the pool a second time, from its definition: plain lists, all looked at on every call, time where it counts."""

from collections import defaultdict, deque

from controller.scheduling.queue_entry import QueueEntry


def clamp(value: float, low: float, high: float) -> float:
    return max(low, min(high, value))


def offset_s(entry: QueueEntry) -> float:
    return clamp(entry.request.priority, -100, 100)


class Listed:
    """A list, searched for the lowest `rank` at the moment of the pop."""

    def __init__(self, rank=None):
        self.list: list[QueueEntry] = []
        self.rank = rank

    def push(self, entry, now_s):
        self.list.append(entry)

    def pop(self, now_s):
        if not self.list:
            return None
        entry = min(self.list, key=lambda one: (self.rank(one, now_s), one.seq))
        self.list.remove(entry)
        return entry

    def discard(self, request_id):
        for entry in self.list:
            if entry.request.id == request_id:
                self.list.remove(entry)
                return entry
        return None

    def rekey(self, entry, now_s):
        pass

    def served(self, entry, output_tokens, now_s):
        pass

    def ahead(self, request_id):
        return 0 if any(entry.request.id == request_id for entry in self.list) else None

    def entries(self):
        return iter(self.list)

    def __len__(self):
        return len(self.list)


def fcfs():
    return Listed(lambda entry, now_s: 0)


def edf():
    return Listed(lambda entry, now_s: entry.request.arrival_s + entry.estimates.slo.ttft_ms / 1000 + offset_s(entry))


def whole_deadline_s(entry):
    slo, request = entry.estimates.slo, entry.request
    return request.arrival_s + slo.ttft_ms / 1000 + slo.tpot_ms / 1000 * entry.estimates.output_tokens


def service_s(entry):
    return (entry.estimates.ttft_ms + entry.estimates.tpot_ms * entry.estimates.output_tokens) / 1000


def edf_whole():
    return Listed(lambda entry, now_s: whole_deadline_s(entry) + offset_s(entry))


def llf():
    """Laxity as of now: what is left of the time to the first token once its service is taken off."""

    def laxity_s(entry, now_s):
        left_s = entry.request.arrival_s + entry.estimates.slo.ttft_ms / 1000 - now_s
        return left_s - entry.estimates.ttft_ms / 1000 + offset_s(entry)

    return Listed(laxity_s)


def slack():
    """Eq. 5 in full, with a system delay that grows as time goes on."""

    def slack_s(entry, now_s):
        system_delay_s = now_s + 0.37 * (now_s % 1000)
        return whole_deadline_s(entry) - system_delay_s - service_s(entry) + offset_s(entry)

    return Listed(slack_s)


def sjf():
    """Service less 20 ms for every second waited so far."""
    return Listed(lambda entry, now_s: service_s(entry) - 0.020 * (now_s - entry.request.arrival_s) + offset_s(entry))


def srtf():
    return Listed(lambda entry, now_s: service_s(entry) + offset_s(entry))


def srtf_kept():
    """Nobody who comes back has to be prefilled again."""

    def remaining_s(entry, now_s):
        return service_s(entry) - (entry.estimates.ttft_ms / 1000 if entry.tried else 0.0) + offset_s(entry)

    return Listed(remaining_s)


class Jumping(Listed):
    """Head of the line with jumps: whoever has been in a class for 30 s joins the end of the next better one, one jump at a time."""

    def __init__(self):
        super().__init__()
        self.standing: dict[str, tuple[int, float]] = {}

    def push(self, entry, now_s):
        super().push(entry, now_s)
        self.standing[entry.request.id] = (entry.request.priority, entry.request.arrival_s)

    def pop(self, now_s):
        for entry in self.list:
            step, joined_s = self.standing[entry.request.id]
            while joined_s + 30.0 <= now_s:
                step, joined_s = step - 1, joined_s + 30.0
            self.standing[entry.request.id] = (step, joined_s)
        self.rank = lambda entry, now_s: self.standing[entry.request.id]
        return super().pop(now_s)


class TwoLanes(Listed):
    """Least slack within a lane, split at 2.5 s of service; the fast lane has four turns of five while both wait."""

    def __init__(self):
        super().__init__()
        self.slow: dict[str, bool] = {}
        self.start = {True: 0.0, False: 0.0}
        self.virtual = 0.0

    def lane(self, slow):
        return [entry for entry in self.list if self.slow[entry.request.id] is slow]

    def push(self, entry, now_s):
        slow = service_s(entry) > 2.5
        if not self.list:
            self.start = {True: 0.0, False: 0.0}
            self.virtual = 0.0
        if not self.lane(slow):
            self.start[slow] = max(self.start[slow], self.virtual)
        super().push(entry, now_s)
        self.slow[entry.request.id] = slow

    def pop(self, now_s):
        lanes = {slow: self.lane(slow) for slow in (False, True)}
        waiting = [slow for slow in (False, True) if lanes[slow]]
        if not waiting:
            return None
        slow = min(waiting, key=lambda slow: self.start[slow])
        self.virtual = max(self.virtual, self.start[slow])
        self.start[slow] += 5.0 if slow else 1.25
        entry = min(lanes[slow], key=lambda one: (whole_deadline_s(one) - service_s(one) + offset_s(one), one.seq))
        self.list.remove(entry)
        return entry

    def rekey(self, entry, now_s):
        self.discard(entry.request.id)
        self.push(entry, now_s)


class Shared(Listed):
    """Flows: tenants, or sessions. `tag` is where a flow stands; subclasses say how it moves."""

    sessions = False

    def __init__(self):
        super().__init__()
        self.tag: dict[str, float] = {}
        self.charged: dict[str, tuple[float, float]] = {}

    def flow(self, entry):
        request = entry.request
        return (request.tenant, request.session) if self.sessions and request.session else (request.tenant, "")

    def head(self, flow):
        mine = [entry for entry in self.list if self.flow(entry) == flow]
        return min(mine, key=lambda one: (one.request.priority, one.seq)) if mine else None

    def waiting(self):
        return {self.flow(entry) for entry in self.list}

    def push(self, entry, now_s):
        flow = self.flow(entry)
        if entry.request.id in self.charged:
            amount, _ = self.charged.pop(entry.request.id)
            self.correct(flow, -amount)
        if flow not in self.waiting():
            self.wake(flow, entry)
        super().push(entry, now_s)

    def turn(self, flow):
        """What orders the flows."""
        return self.tag[flow], self.head(flow).seq

    def pop(self, now_s):
        if not self.list:
            return None
        flow = min(self.waiting(), key=self.turn)
        entry = self.head(flow)
        weight = self.weight(entry)
        amount = self.cost(entry, entry.estimates.output_tokens) / weight
        self.take(flow, amount)
        self.charged[entry.request.id] = (amount, weight)
        self.list.remove(entry)
        self.left(flow)
        return entry

    def discard(self, request_id):
        entry = super().discard(request_id)
        if entry is not None:
            self.left(self.flow(entry))
        return entry

    def left(self, flow):
        if flow not in self.waiting():
            self.sleep(flow)

    def served(self, entry, output_tokens, now_s):
        if entry.request.id in self.charged:
            amount, weight = self.charged.pop(entry.request.id)
            self.correct(self.flow(entry), self.cost(entry, output_tokens) / weight - amount)

    def weight(self, entry):
        return entry.weight

    def cost(self, entry, output_tokens):
        return entry.request.prompt_tokens + output_tokens

    def correct(self, flow, more):
        self.tag[flow] += more

    def sleep(self, flow):
        pass


class Wfq(Shared):
    virtual = 0.0

    def wake(self, flow, entry):
        if not self.list:
            self.tag.clear()
            self.charged.clear()
            self.virtual = 0.0
        self.tag[flow] = max(self.tag.get(flow, 0.0), self.virtual)

    def take(self, flow, amount):
        self.virtual = max(self.virtual, self.tag[flow])
        self.tag[flow] += amount


class WfqByTime(Wfq):
    def cost(self, entry, output_tokens):
        return entry.estimates.ttft_ms + entry.estimates.tpot_ms * output_tokens


class Vtc(Shared):
    last_left = 0.0

    def cost(self, entry, output_tokens):
        return entry.request.prompt_tokens + 2.0 * output_tokens

    def wake(self, flow, entry):
        others = [self.tag[other] for other in self.waiting()]
        self.tag[flow] = max(self.tag.get(flow, 0.0), min(others) if others else self.last_left)

    def take(self, flow, amount):
        self.tag[flow] += amount

    def sleep(self, flow):
        self.last_left = self.tag[flow]


class Cfs(Shared):
    sessions = True
    lowest = 0.0

    def weight(self, entry):
        return entry.weight / 1.25 ** clamp(entry.request.priority, -20, 20)

    def cost(self, entry, output_tokens):
        return entry.estimates.ttft_ms + entry.estimates.tpot_ms * output_tokens

    def wake(self, flow, entry):
        self.tag[flow] = max(self.tag[flow], self.lowest) if flow in self.tag else self.lowest + 1000.0 / self.weight(entry)

    def take(self, flow, amount):
        self.lowest = max(self.lowest, self.tag[flow])
        self.tag[flow] += amount


def tickets(entry):
    return round(1000 * entry.weight * 2 ** (-entry.request.priority / 10))


class Stride(Shared):
    global_pass = 0.0

    def __init__(self):
        super().__init__()
        self.remain: dict[object, float] = {}

    def weight(self, entry):
        return tickets(entry)

    def cost(self, entry, output_tokens):
        return 1.0

    def wake(self, flow, entry):
        self.tag[flow] = self.global_pass + self.remain.get(flow, 1.0 / tickets(entry))

    def take(self, flow, amount):
        self.global_pass += 1.0 / sum(tickets(self.head(one)) for one in self.waiting())
        self.tag[flow] += amount

    def sleep(self, flow):
        self.remain[flow] = self.tag[flow] - self.global_pass

    def correct(self, flow, more):
        self.tag[flow] += more
        if flow in self.remain:
            self.remain[flow] += more


class RoundRobin(Shared):
    """A round that flows join at its end."""

    def __init__(self):
        super().__init__()
        self.round: deque = deque()

    def wake(self, flow, entry):
        self.round.append(flow)

    def turn(self, flow):
        return self.round.index(flow)

    def take(self, flow, amount):
        self.round.remove(flow)
        self.round.append(flow)

    def sleep(self, flow):
        self.round.remove(flow)

    def correct(self, flow, more):
        pass


class Mlfq(Shared):
    """Levels that flows are moved between; a boost moves them all to the top, one after the other."""

    sessions = True

    def __init__(self):
        super().__init__()
        self.used: dict[object, float] = defaultdict(float)
        self.place: dict[object, tuple[int, int]] = {}
        self.placed = 0
        self.boosts = 0.0

    def boost(self, now_s):
        if now_s // 30.0 > self.boosts:
            self.boosts = now_s // 30.0
            self.used.clear()
            self.charged.clear()
            for flow in sorted(self.waiting(), key=self.turn):
                self.line_up(flow)

    def level(self, flow):
        level, left = 0, self.used[flow]
        while level < 4 and left >= 2048 * 2**level:
            left -= 2048 * 2**level
            level += 1
        return level

    def line_up(self, flow):
        self.placed += 1
        self.place[flow] = (self.level(flow), self.placed)

    def push(self, entry, now_s):
        self.boost(now_s)
        super().push(entry, now_s)

    def pop(self, now_s):
        self.boost(now_s)
        return super().pop(now_s)

    def served(self, entry, output_tokens, now_s):
        self.boost(now_s)
        super().served(entry, output_tokens, now_s)

    def wake(self, flow, entry):
        self.line_up(flow)

    def turn(self, flow):
        return self.place[flow]

    def take(self, flow, amount):
        self.used[flow] += amount
        self.line_up(flow)

    def correct(self, flow, more):
        self.used[flow] += more
        if flow in self.place:
            self.place[flow] = (self.level(flow), self.place[flow][1])


class Lottery(Shared):
    """Tickets laid out in a row, seat by seat; who comes takes the seat that was left last, else a new one."""

    def __init__(self):
        super().__init__()
        self.seats: list[object] = []
        self.left_seats: list[int] = []
        self.drawn = 0

    def weight(self, entry):
        return 1.0

    def cost(self, entry, output_tokens):
        return 1.0

    def wake(self, flow, entry):
        if self.left_seats:
            self.seats[self.left_seats.pop()] = flow
        else:
            self.seats.append(flow)

    def sleep(self, flow):
        seat = self.seats.index(flow)
        self.seats[seat] = None
        self.left_seats.append(seat)

    def turn(self, flow):
        return flow != self.winner

    def take(self, flow, amount):
        pass

    def correct(self, flow, more):
        pass

    def pop(self, now_s):
        row = [(flow, tickets(self.head(flow))) for flow in self.seats if flow is not None]
        if row:
            self.drawn += 1
            bits = splitmix64(self.drawn) * sum(held for _, held in row) // 2**64
            for flow, held in row:
                if bits < held:
                    self.winner = flow
                    break
                bits -= held
        return super().pop(now_s)


def splitmix64(number):
    """The published generator, seeded with 0: its state after so many steps, mixed."""
    bits = number * 0x9E3779B97F4A7C15 % 2**64
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % 2**64
    return bits ^ bits >> 31


REFERENCES = {
    "fcfs": ("fcfs", {}, fcfs),
    "edf": ("edf", {}, edf),
    "edf by D_r": ("edf", {"key": 1.0}, edf_whole),
    "llf": ("llf", {}, llf),
    "slack": ("slack", {}, slack),
    "sjf": ("sjf", {}, sjf),
    "srtf": ("srtf", {}, srtf),
    "srtf with a shared cache": ("srtf", {"kept_prefill": 1.0}, srtf_kept),
    "two-lane": ("two-lane", {"threshold_ms": 2500.0, "fast_share": 0.8}, TwoLanes),
    "priority": ("priority", {}, Jumping),
    "wfq": ("wfq", {}, Wfq),
    "wfq by time": ("wfq", {"cost": 1.0}, WfqByTime),
    "vtc": ("vtc", {}, Vtc),
    "stride": ("stride", {}, Stride),
    "lottery": ("lottery", {}, Lottery),
    "rr": ("rr", {}, RoundRobin),
    "cfs": ("cfs", {}, Cfs),
    "mlfq": ("mlfq", {}, Mlfq),
}
"""By case: the policy, its hints, and what it must do."""
