"""Disciplines that share among flows a second time, from their definitions: plain lists and tables, all looked at on every call."""

from collections import defaultdict, deque

from reference_keys import Listed, clamp


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

    def wake(self, flow, entry):
        """A flow of which nothing waited has something waiting."""
        raise AssertionError("the reference of a policy says this")

    def take(self, flow, amount):
        """A flow is charged for what went."""
        raise AssertionError("the reference of a policy says this")

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

    def on_overdue(self, entry, now_s):
        pass

    def on_finished(self, entry, output_tokens, now_s):
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

    def on_finished(self, entry, output_tokens, now_s):
        self.boost(now_s)
        super().on_finished(entry, output_tokens, now_s)

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
