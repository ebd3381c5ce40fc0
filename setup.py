"""Compiles the scheduler, a request's way through the gateway and the simulation with mypyc where HMAS_COMPILE=1 asks for it.

One source for both: the modules run as they are without it, and give the same results, to the last bit. What is compiled is what a
simulation and a busy gateway spend their time in. Records (msgspec structs), which compile to nothing better, stay as they are. So does
whatever awaits where it handles an error (`life`, `relay`, `fleet`, the sender of the bus): mypyc leaves the error in place, as the cause
of every later one. What mypy holds for true before an await, compiled code takes for true behind it: such a thing is looked at anew in a
method of its own. Adapters of engines, which others inherit from, stay interpreted too.
"""

import os
from pathlib import Path

from setuptools import setup

SIMULATION = (
    "hmas/engines/sim/sequence.py",
    "hmas/engines/sim/blocks.py",
    "hmas/engines/sim/decoding.py",
    "hmas/engines/sim/queueing.py",
    "hmas/engines/sim/stretch.py",
    "hmas/engines/sim/batch.py",
    "hmas/engines/sim/model.py",
    "hmas/controller/routing/least_loaded.py",
    "hmas/controller/scheduling/accounts.py",
    "hmas/controller/scheduling/admission.py",
    "hmas/controller/scheduling/assumed_targets.py",
    "hmas/controller/scheduling/backlog.py",
    "hmas/controller/scheduling/cutoff.py",
    "hmas/controller/scheduling/drain_rate.py",
    "hmas/controller/scheduling/endings.py",
    "hmas/controller/scheduling/given_up.py",
    "hmas/controller/scheduling/group.py",
    "hmas/controller/scheduling/instance.py",
    "hmas/controller/scheduling/lateness.py",
    "hmas/controller/scheduling/lazy_heap.py",
    "hmas/controller/scheduling/overcommit.py",
    "hmas/controller/scheduling/pace.py",
    "hmas/controller/scheduling/prefix_credit.py",
    "hmas/controller/scheduling/queue_entry.py",
    "hmas/controller/scheduling/queues.py",
    "hmas/controller/scheduling/retired.py",
    "hmas/controller/scheduling/running.py",
    "hmas/controller/scheduling/scheduler.py",
    "hmas/controller/scheduling/service_split.py",
    "hmas/controller/scheduling/shards.py",
    "hmas/controller/scheduling/swept_heap.py",
    "hmas/controller/scheduling/slots.py",
    "hmas/controller/scheduling/steering.py",
    "hmas/controller/scheduling/entrance.py",
    "hmas/controller/scheduling/tenancy.py",
    "hmas/controller/scheduling/tenant_gate.py",
    "hmas/controller/scheduling/token_bucket.py",
    "hmas/controller/scheduling/tpot_guard.py",
    "hmas/controller/scheduling/waiting_room.py",
    "hmas/controller/scheduling/walk.py",
    *sorted(str(path) for path in Path("hmas/controller/scheduling/policies").glob("*.py") if path.name != "__init__.py"),
    "hmas/controller/simulation/arrivals.py",
    "hmas/controller/simulation/kernel.py",
)

GATEWAY = (
    "hmas/controller/bus/codec.py",
    "hmas/controller/bus/wire.py",
    "hmas/controller/core/prompt_texts.py",
    "hmas/controller/core/request_body.py",
    "hmas/controller/gateway/requests/auth.py",
    "hmas/controller/control/estimates.py",
    "hmas/controller/gateway/requests/headers.py",
    "hmas/controller/gateway/requests/manager.py",
    "hmas/controller/observability/request_trace.py",
    "hmas/controller/gateway/errors.py",
    "hmas/controller/gateway/requests/event_relay.py",
    "hmas/controller/gateway/http/answer.py",
    "hmas/controller/gateway/http/body.py",
    "hmas/controller/gateway/http/chunked.py",
    "hmas/controller/gateway/http/connection.py",
    "hmas/controller/gateway/http/exchange.py",
    "hmas/controller/gateway/http/head.py",
    "hmas/controller/gateway/requests/ids.py",
    "hmas/controller/gateway/requests/parse.py",
    "hmas/controller/observability/completions.py",
    "hmas/controller/observability/metrics.py",
    "hmas/controller/gateway/requests/ratelimits.py",
    "hmas/controller/gateway/requests/sse.py",
    "hmas/controller/observability/counters.py",
    "hmas/controller/scheduling/history.py",
    "hmas/engines/client.py",
    "hmas/engines/http/connection.py",
    "hmas/engines/http/exchange.py",
    "hmas/engines/http/pool.py",
    "hmas/engines/tokens.py",
)
COMPILED = (*SIMULATION, *GATEWAY)

if os.environ.get("HMAS_COMPILE") == "1":
    from mypyc.build import mypycify

    setup(ext_modules=mypycify(list(COMPILED), opt_level="2"))
else:
    setup()
