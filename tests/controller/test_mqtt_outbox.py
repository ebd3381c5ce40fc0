"""What waits for the MQTT broker: a bounded queue that counts what it drops, and the newest state of each topic."""

from hmas.controller.observability.exporters.mqtt_outbox import Outbox, Outgoing


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
