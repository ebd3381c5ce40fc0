"""The stream of one instance's KV events: gaps, replays, restarts, floods, silence and lies."""

import pytest
from kv_events_kit import BLOCK, CLEARED, batch, removed, stored

from hmas.controller.gateway.kv_events import source as module
from hmas.controller.gateway.kv_events.source import KvSource
from hmas.controller.routing.exact_index import ExactIndex

TOKENS = list(range(BLOCK * 8))


class Bench:
    """A source and what it is asked for."""

    def __init__(self, *, replays: bool = False, **bounds: int) -> None:
        self.index = ExactIndex(**bounds)
        self.faults: list[tuple[str, str, bool]] = []
        self.source = KvSource("a", self.index, replays=replays, on_fault=lambda *fault: self.faults.append(fault))

    def applied(self, now_s: float) -> None:
        while self.source.pending:
            self.source.apply(now_s)

    def message(self, sequence: int, *events: object, now_s: float = 0.0, payload: bytes | None = None) -> int | None:
        missing = self.source.message(sequence, batch(*events) if payload is None else payload, now_s)
        self.applied(now_s)
        return missing

    def replay(self, sequence: int, *events: object, now_s: float = 0.0) -> bool:
        fits = self.source.replay(sequence, batch(*events), now_s)
        self.applied(now_s)
        return fits

    def tick(self, now_s: float, prompt_tokens: int = 0, *, drained: bool = True) -> int | None:
        return self.source.tick(now_s, prompt_tokens, drained=drained)

    @property
    def blocks(self) -> int:
        return self.index.blocks_of("a")


def test_from_the_first_message_on_every_block_is_known():
    bench = Bench()
    assert bench.source.state(0.0) == "waiting"
    assert bench.message(0, stored(TOKENS)) is None
    assert bench.message(1, removed(TOKENS, [128])) is None
    bench.tick(1.0)
    assert (bench.source.state(1.0), bench.blocks, bench.index.complete) == ("live", 7, {"a"})


def test_a_source_that_began_earlier_is_partial_until_its_cache_is_cleared():
    bench = Bench()
    bench.message(70, stored(TOKENS))
    bench.tick(1.0)
    assert (bench.source.state(1.0), bench.blocks, bench.index.complete) == ("partial", 8, set())
    bench.message(71, CLEARED, stored(TOKENS[:32]))
    bench.tick(2.0)
    assert (bench.source.state(1.0), bench.blocks, bench.index.complete) == ("live", 2, {"a"})


def test_a_gap_without_a_replay_forgets_the_instance():
    bench = Bench()
    bench.message(0, stored(TOKENS))
    bench.tick(1.0)
    assert bench.message(2, stored(TOKENS[:16])) is None
    assert (bench.source.gaps, bench.blocks, bench.index.complete) == (1, 1, set())
    bench.tick(2.0)
    assert bench.source.state(2.0) == "partial"


def test_a_gap_is_filled_by_a_replay_and_what_comes_twice_counts_once():
    bench = Bench(replays=True)
    bench.message(0, stored(TOKENS[:16]), now_s=10.0)
    bench.tick(10.0)
    assert bench.message(3, now_s=10.0) == 1
    bench.source.begin_replay(10.0)
    assert (bench.source.state(10.0), bench.index.complete, bench.blocks) == ("replaying", set(), 1)
    assert bench.replay(0, CLEARED)
    for sequence in range(1, 5):
        assert bench.replay(sequence, stored(TOKENS[: 16 * (sequence + 1)], start=16 * sequence))
    bench.source.end_replay(11.0, whole=True)
    assert bench.message(4, CLEARED, now_s=11.0) is None
    bench.message(5, stored(TOKENS[:96], start=80), now_s=11.0)
    bench.tick(12.0)
    assert (bench.source.state(12.0), bench.blocks, bench.source.replayed) == ("live", 6, 4)


def test_a_replay_whose_beginning_the_engine_has_dropped_is_partial():
    bench = Bench(replays=True)
    assert bench.message(90, now_s=5.0) == 0
    bench.source.begin_replay(5.0)
    assert bench.replay(50, stored(TOKENS))
    bench.source.end_replay(5.0, whole=True)
    bench.tick(6.0)
    assert (bench.source.state(6.0), bench.blocks) == ("partial", 8)


def test_a_replay_with_a_hole_is_asked_for_again_from_there():
    bench = Bench(replays=True)
    bench.source.begin_replay(0.0)
    assert bench.replay(0, stored(TOKENS[:16]))
    assert not bench.replay(5, CLEARED)
    assert (bench.source.expected, bench.blocks) == (1, 1)
    bench.source.begin_replay(0.0)
    assert bench.replay(1, stored(TOKENS[:32], start=16))
    bench.source.end_replay(0.0, whole=True)
    bench.tick(1.0)
    assert (bench.source.state(1.0), bench.blocks) == ("live", 2)


def test_an_engine_that_has_published_nothing_yet_is_known_to_be_empty():
    bench = Bench(replays=True)
    bench.source.begin_replay(0.0)
    bench.source.end_replay(0.0, whole=True)
    bench.tick(1.0)
    assert (bench.source.state(1.0), bench.index.complete) == ("live", {"a"})
    bench.message(0, stored(TOKENS), now_s=20.0)
    assert bench.blocks == 8


def test_a_replay_that_cannot_be_had_leaves_the_source_partial_and_is_tried_again_later():
    bench = Bench(replays=True)
    bench.source.begin_replay(0.0)
    bench.source.end_replay(5.0, whole=False)
    assert bench.message(3, stored(TOKENS), now_s=6.0) is None
    assert bench.tick(7.0) is None
    assert (bench.source.state(7.0), bench.blocks) == ("partial", 8)
    assert bench.tick(5.0 + module.REPLAY_AGAIN_S) == 0
    assert bench.blocks == 0


@pytest.mark.parametrize("replays", [False, True])
def test_an_engine_that_restarts_has_an_empty_cache(replays):
    bench = Bench(replays=replays)
    for sequence in range(4):
        bench.message(sequence, stored(TOKENS[: 16 * (sequence + 1)], start=16 * sequence), now_s=10.0)
    assert bench.blocks == 4
    bench.message(0, stored(TOKENS[:16]), now_s=20.0)
    bench.tick(21.0)
    assert (bench.source.state(21.0), bench.blocks, bench.source.restarts) == ("live", 1, 1)


def test_a_restart_whose_first_messages_were_missed_is_fetched_from_the_start():
    bench = Bench(replays=True)
    bench.message(0, stored(TOKENS), now_s=10.0)
    bench.message(1, now_s=10.0)
    bench.message(2, now_s=10.0)
    assert bench.message(1, now_s=20.0) == 0
    assert bench.blocks == 0
    bench.source.begin_replay(20.0)
    assert bench.replay(0, stored(TOKENS[:32]))
    assert bench.replay(1)
    bench.source.end_replay(20.0, whole=True)
    bench.tick(21.0)
    assert (bench.source.state(21.0), bench.blocks) == ("live", 2)


def test_a_source_that_jumps_with_every_message_is_not_replayed_each_time():
    bench = Bench(replays=True)
    asked = 0
    for number in range(1000):
        now_s = 100.0 + number / 100
        if bench.message(7 * number + 1, stored(TOKENS[:16]), now_s=now_s) is not None:
            asked += 1
            bench.source.begin_replay(now_s)
            bench.source.end_replay(now_s, whole=True)
    assert asked <= 10.0 / module.REPLAY_EVERY_S + 1
    assert bench.blocks <= 1
    assert (bench.source.state(110.0), bench.source.faults) == ("off", {"jumps": 1})


def test_garbage_stops_the_source_for_a_while_longer_each_time_and_is_told_once():
    bench = Bench()
    now_s, offs = 0.0, []
    for _ in range(8):
        bench.message(0, stored(TOKENS), now_s=now_s)
        assert bench.blocks == 8
        bench.message(1, payload=b"garbage", now_s=now_s)
        assert (bench.blocks, bench.source.state(now_s)) == (0, "off")
        begun_s = now_s
        bench.message(0, stored(TOKENS), now_s=now_s + 1.0)
        assert bench.blocks == 0, "it is not listened to"
        while bench.source.off(now_s):
            now_s += 1.0
        offs.append(now_s - begun_s)
    assert offs == [10, 20, 40, 80, 160, 300, 300, 300]
    assert [first for _, _, first in bench.faults] == [True, *[False] * 7]
    assert bench.source.faults == {"format": 8}
    now_s += module.WELL_AFTER_S
    bench.message(0, {"type": "BlockStored", "block_hashes": [1], "token_ids": [5], "block_size": 16}, now_s=now_s)
    assert bench.source.off(now_s + 9)
    assert not bench.source.off(now_s + 11)


def test_an_event_that_cannot_be_stops_the_source_and_drops_the_rest_of_its_message():
    bench = Bench()
    bench.message(0, stored(TOKENS), {"type": "BlockRemoved", "block_hashes": [None]}, stored(TOKENS))
    assert (bench.blocks, bench.source.faults) == (0, {"format": 1})
    assert "no KV events" in bench.faults[0][1]


def test_a_source_that_stores_more_than_can_be_is_forgotten():
    bench = Bench(instance_blocks_most=20)
    tokens = list(range(BLOCK * 30))
    bench.message(0, stored(tokens[: BLOCK * 15]))
    assert bench.blocks == 15
    bench.message(1, stored(tokens, start=BLOCK * 15))
    assert (bench.blocks, bench.source.faults) == (0, {"size": 1})
    assert "15 of this instance" in bench.faults[0][1]


def test_a_flood_is_first_not_used_and_then_stopped():
    bench = Bench()
    bench.message(0, stored(TOKENS))
    bench.tick(1.0)
    assert bench.index.complete == {"a"}
    states = []
    for second in range(2, 70):
        bench.message(second - 1, now_s=float(second))
        bench.tick(float(second), drained=False)
        states.append(bench.source.state(float(second)))
    assert states.count("live") == 5
    assert states.count("behind") == 55
    assert (states[-1], bench.source.faults, bench.index.complete) == ("off", {"flood": 1}, set())


def test_an_engine_that_did_not_answer_for_a_while_has_computed_nothing_meanwhile():
    bench = Bench(replays=True)
    bench.message(0, stored(TOKENS), now_s=100.0)
    for now_s, counted in ((101.0, 50_000), (129.0, 0), (131.0, 0), (132.0, 50_000)):
        assert bench.tick(now_s, counted) is None
    assert bench.source.state(132.0) == "live"


def test_a_source_that_falls_silent_while_its_engine_computes_is_not_used_and_asked_again():
    bench = Bench(replays=True)
    bench.message(0, stored(TOKENS), now_s=100.0)
    assert bench.tick(101.0, 1000) is None
    assert bench.source.state(101.0) == "live"
    assert bench.tick(110.0, 50_000) is None
    assert bench.tick(140.0, 50_000 + 16 * BLOCK) is None
    assert bench.source.state(140.0) == "live", "so few blocks may well have been cached before"
    assert bench.tick(141.0, 50_001 + 16 * BLOCK) == 1
    assert (bench.source.state(141.0), bench.index.complete, bench.blocks) == ("silent", set(), 8)
    bench.source.begin_replay(141.0)
    assert bench.replay(1, removed(TOKENS, [128]), now_s=141.0)
    bench.source.end_replay(141.0, whole=True)
    bench.tick(142.0, 60_000)
    assert (bench.source.state(142.0), bench.blocks) == ("live", 7)
    bench.tick(500.0, 60_000)
    assert bench.source.state(500.0) == "live", "an idle engine sends nothing"


def test_a_source_that_has_nothing_to_send_is_not_silent_once_it_has_said_so():
    bench = Bench(replays=True)
    bench.message(0, stored(TOKENS), now_s=100.0)
    bench.tick(110.0, 50_000)
    assert bench.tick(141.0, 60_000) == 1, "prompts that are all cached count in the engine's tokens, too"
    bench.source.begin_replay(141.0)
    bench.source.end_replay(141.0, whole=True)
    bench.tick(142.0, 60_100)
    assert (bench.source.state(142.0), bench.blocks) == ("live", 8)


def test_an_engine_that_starts_again_without_its_events_falls_silent():
    bench = Bench()
    bench.message(0, stored(TOKENS), now_s=100.0)
    bench.tick(101.0, 50_000_000)
    bench.tick(200.0, 0)
    assert bench.source.state(200.0) == "live", "it does not answer, which says nothing"
    bench.tick(201.0, 1000)
    bench.tick(202.0, 100_000)
    assert bench.source.state(202.0) == "silent"


def test_of_several_groups_of_layers_one_counts():
    bench = Bench()
    bench.message(0, stored(TOKENS, group_idx=1), stored(TOKENS, group_idx=0))
    bench.message(1, removed(TOKENS, [128]) | {"group_idx": 0})
    assert bench.blocks == 8
    bench.message(2, removed(TOKENS, [128]) | {"group_idx": 1})
    assert bench.blocks == 7
