"""How late a process wakes that has slept, on each core, beside whatever else runs: what a machine does to a gateway.

Run it beside a load, before a live measurement is believed. A few milliseconds are usual on a busy machine. Tenths of a second mean that
something takes a core and does not give it back, such as vLLM's loops of `sched_yield` (docs/engines.md, "On few cores").

    python lab/benchmarks/wakeups.py --seconds 30
"""

import argparse
import os
import threading
import time

SLEEP_S = 0.005
LATE_S = 0.1


def lateness_s(core: int, seconds: float) -> list[float]:
    """By how much each sleep on this core was longer than asked for, sorted."""
    os.sched_setaffinity(threading.get_native_id(), {core})
    late_s, end_s = [], time.monotonic() + seconds
    while (began_s := time.monotonic()) < end_s:
        time.sleep(SLEEP_S)
        late_s.append(time.monotonic() - began_s - SLEEP_S)
    return sorted(late_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    args = parser.parse_args()
    found: dict[int, list[float]] = {}

    def watch(core: int) -> None:
        found[core] = lateness_s(core, args.seconds)

    watchers = [threading.Thread(target=watch, args=(core,)) for core in sorted(os.sched_getaffinity(0))]
    for watcher in watchers:
        watcher.start()
    for watcher in watchers:
        watcher.join()
    for core, late_s in sorted(found.items()):
        p99_ms, most_ms = 1e3 * late_s[int(0.99 * len(late_s))], 1e3 * late_s[-1]
        often = sum(one > LATE_S for one in late_s)
        print(f"core {core}: {len(late_s)} sleeps, late by {p99_ms:.1f} ms at p99, {most_ms:.0f} at most, {often} by over 0.1 s")


if __name__ == "__main__":
    main()
