import io

from hmas.demo.progress import Reporter


class Clock:
    def __init__(self):
        self.now = 100.0

    def now_s(self):
        return self.now


def make(tty=False):
    stream = io.StringIO()
    stream.isatty = lambda: tty
    clock = Clock()
    return Reporter(clock, [("one", 10.0), ("two", 20.0)], stream), clock, stream


def test_what_is_left_is_this_phase_and_all_that_follow():
    reporter, clock, _ = make()
    reporter.phase("one")
    clock.now += 4.0
    assert reporter.left_s() == 26.0
    reporter.phase("two")
    clock.now += 25.0
    assert reporter.left_s() == 0.0
    assert reporter.elapsed_s == 29.0


def test_phases_may_come_in_any_order():
    reporter, clock, _ = make()
    assert reporter.left_s() == 30.0
    reporter.phase("two")
    clock.now += 5.0
    assert reporter.left_s() == 25.0
    reporter.phase("one")
    assert reporter.left_s() == 10.0


def test_plain_streams_get_a_line_now_and_then():
    reporter, clock, stream = make()
    reporter.phase("one")
    for _ in range(20):
        clock.now += 0.5
        reporter.tick("3 of 9")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[1] == "[  5.0 s, about  25 s left] one: 3 of 9"
    assert "\r" not in stream.getvalue()


def test_terminals_get_one_line_that_moves():
    reporter, clock, stream = make(tty=True)
    reporter.phase("one")
    clock.now += 0.1
    reporter.tick("x")
    reporter.say("done with it")
    reporter.done()
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().endswith("\r")
