"""Disciplines by key and by lane a second time, from their definitions: plain lists, all looked at on every call, time where it counts."""

import math
from itertools import pairwise

from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry


def clamp(value: float, low: float, high: float) -> float:
    return max(low, min(high, value))


def offset_s(entry: QueueEntry) -> float:
    return clamp(entry.request.priority, -100, 100)


class Listed:
    """A list, searched for the lowest `key` at the moment of the pop."""

    def __init__(self, key=None):
        self.list: list[QueueEntry] = []
        self.key = key

    def push(self, entry, now_s):
        self.list.append(entry)

    def pop(self, now_s):
        if not self.list:
            return None
        entry = min(self.list, key=lambda one: (self.key(one, now_s), one.seq))
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

    def on_overdue(self, entry, now_s):
        pass

    def on_finished(self, entry, output_tokens, now_s):
        pass

    def rank(self, request_id):
        return 0 if any(entry.request.id == request_id for entry in self.list) else None

    def entries(self):
        return iter(self.list)

    def __len__(self):
        return len(self.list)


def fcfs():
    return Listed(lambda entry, now_s: 0)


def edf():
    return Listed(lambda entry, now_s: entry.request.arrival_s + entry.estimates.slo.ttft_ms / 1000 + offset_s(entry))


class RobustEdf(Listed):
    """Two ranks at the moment of the pop, by a threshold that is worked out in full with every arrival and every lapse."""

    def __init__(self):
        super().__init__()
        self.costs, self.log_value, self.moments = [], math.inf, []
        self.bounds = (0.0, math.inf)

    def cost(self, entry):
        return (entry.request.prompt_tokens + 2 * entry.estimates.output_tokens) / entry.weight

    def push(self, entry, now_s):
        self.moments.append(max(now_s, self.moments[-1]) if self.moments else now_s)
        self.costs.append(self.cost(entry))
        if len(self.costs) < 32 or (len(self.costs) - 31) % 32 == 0:
            lately = sorted(self.costs[-256:])
            low, high = (math.log(lately[int(share * len(lately))]) for share in (0.05, 0.98))
            self.bounds = (low, high)
        self.move(0.5 * self.gap_s() * 0.01)
        self.list.append(entry)

    def gap_s(self):
        """The moments that are over, but for the first, each with what came then, from the beginning."""
        gap_s, seen = 1.0, 0
        at = sorted(set(self.moments))
        for before, this in pairwise(at[:-1]):
            many = self.moments.count(this)
            seen += many
            gap_s += max(many / seen, min(0.125, many * gap_s / 10)) * (min(1.0, this - before) / many - gap_s)
        return gap_s

    def move(self, by):
        low, high = self.bounds
        if self.log_value < math.inf:
            self.log_value = max(low, self.log_value + by)
            self.log_value = math.inf if self.log_value > high else self.log_value

    def on_overdue(self, entry, now_s):
        if math.log(self.cost(entry)) <= self.log_value and len(set(self.moments)) > 2:
            self.log_value = min(self.log_value, self.bounds[1])
            self.move(-0.5 * self.gap_s() * 0.99)

    def pop(self, now_s):
        self.key = self.by_deadline
        return super().pop(now_s)

    def by_deadline(self, entry, now_s):
        deadline_s = entry.request.arrival_s + entry.estimates.slo.ttft_ms / 1000 + offset_s(entry)
        costly = math.log(self.cost(entry)) > self.log_value
        return (costly, self.cost(entry) if costly else deadline_s)


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
        self.key = lambda entry, now_s: self.standing[entry.request.id]
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
