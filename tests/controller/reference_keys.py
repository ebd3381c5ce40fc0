"""Disciplines by key and by lane a second time, from their definitions: plain lists, all looked at on every call, time where it counts."""

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
