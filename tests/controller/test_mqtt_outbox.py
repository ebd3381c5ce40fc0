"""What waits for the MQTT broker: a bounded queue that counts what it drops, and the newest state of each topic."""

from collections.abc import Callable

import pytest

from hmas.controller.observability.exporters import mqtt_outbox
from hmas.controller.observability.exporters.mqtt_outbox import BREAKS_MOST, Outbox, Outgoing


def event(number: int) -> Outgoing:
    return Outgoing("event", str(number).encode())


def test_the_oldest_is_dropped_and_counted():
    outbox = Outbox(3)
    dropped: list[int] = []
    outbox.dropped = dropped.append
    for number in range(5):
        outbox.add(event(number))
    assert [message.payload for message in outbox.take(10)] == [b"2", b"3", b"4"]
    assert sum(dropped) == 2


def test_what_is_dropped_while_it_is_sent_takes_nothing_else_with_it():
    outbox = Outbox(3)
    for number in range(3):
        outbox.add(event(number))
    sending = outbox.take(2)
    outbox.add(event(3))
    outbox.sent(sending)
    assert [message.payload for message in outbox.take(10)] == [b"2", b"3"]


def test_what_was_not_sent_is_taken_again():
    outbox = Outbox(3)
    outbox.add(event(1))
    outbox.keep("state", b"a")
    assert outbox.take(10) == outbox.take(10)
    outbox.sent(outbox.take(10))
    assert not len(outbox)


def test_only_the_newest_state_counts():
    outbox = Outbox(3)
    outbox.keep("state", b"a")
    sending = outbox.take(10)
    outbox.keep("state", b"b")
    outbox.sent(sending)
    assert [message.payload for message in outbox.take(10)] == [b"b"]
    outbox.sent(outbox.take(10))
    outbox.keep("state", b"b")
    assert outbox.take(10) == [], "it has not changed"
    outbox.send_all_state()
    assert [message.payload for message in outbox.take(10)] == [b"b"], "a new session gets it again"


def through(outbox: Outbox, is_bad: Callable[[Outgoing], bool], sessions: int = 50) -> tuple[list[bytes], list[Outgoing]]:
    """What a broker has that hangs up on bad messages, and what was given up, once all is sent or the sessions are over."""
    had: list[bytes] = []
    given_up: list[Outgoing] = []
    for _ in range(sessions):
        outbox.send_all_state()
        while messages := outbox.take(5):
            if any(is_bad(message) for message in messages):
                given_up += [message for message in [outbox.broke()] if message is not None]
                break
            had += [message.payload for message in messages]
            outbox.sent(messages)
        else:
            break
    return had, given_up


@pytest.mark.parametrize("bad", [{3}, {0, 1}, {2, 7, 11}, {0, 4, 19}])
def test_a_message_on_which_the_broker_hangs_up_is_given_up_and_no_other(bad):
    outbox = Outbox(100)
    outbox.keep("state/health", b"fine")
    wrong = {event(number) for number in bad}
    for number in range(20):
        outbox.add(event(number))
    had, given_up = through(outbox, wrong.__contains__)
    assert [message for message in had if message != b"fine"] == [event(number).payload for number in range(20) if number not in bad]
    assert given_up == [event(number) for number in sorted(bad)]
    assert not len(outbox)


def test_a_state_on_which_the_broker_hangs_up_is_left_out_for_a_while(monkeypatch):
    monkeypatch.setattr(mqtt_outbox, "ASIDE_FOR", 3)
    outbox = Outbox(100)
    for topic in ("policy", "windows", "health"):
        outbox.keep(topic, topic.encode())
    outbox.add(event(1))
    had, given_up = through(outbox, lambda message: message.topic == "windows")
    assert {b"policy", b"health", b"1"} == set(had)
    assert given_up == [Outgoing("windows", b"windows", retain=True)]
    for value in (b"a", b"b", b"c"):
        outbox.keep("windows", value)
        assert not len(outbox)
    outbox.keep("windows", b"d")
    assert [message.payload for message in outbox.take(5)] == [b"d"], "it gets another chance"


def test_breaks_that_other_things_cause_cost_no_message():
    outbox = Outbox(100)
    outbox.keep("health", b"fine")
    for number in range(3 * BREAKS_MOST):
        outbox.add(event(number))
        assert outbox.take(1)
        assert outbox.broke() is None, "the broker has gone while one message was under way"
        assert outbox.broke() is None, "and again while none was"
        had, given_up = through(outbox, lambda _: False)
        assert event(number).payload in had
        assert given_up == []


def test_a_message_that_was_dropped_meanwhile_takes_no_other_with_it():
    outbox = Outbox(1)
    outbox.add(event(0))
    for _ in range(BREAKS_MOST - 1):
        outbox.take(1)
        assert outbox.broke() is None
    outbox.take(1)
    outbox.add(event(1))
    outbox.broke()
    assert outbox.take(1) == [event(1)]
