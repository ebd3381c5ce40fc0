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
    "engines/sim/sequence.py",
    "engines/sim/blocks.py",
    "engines/sim/decoding.py",
    "engines/sim/queueing.py",
    "engines/sim/stretch.py",
    "engines/sim/batch.py",
    "engines/sim/model.py",
    "controller/routing/least_loaded.py",
    "controller/scheduling/accounts.py",
    "controller/scheduling/admission.py",
    "controller/scheduling/assumed_targets.py",
    "controller/scheduling/backlog.py",
    "controller/scheduling/cutoff.py",
    "controller/scheduling/drain_rate.py",
    "controller/scheduling/endings.py",
    "controller/scheduling/given_up.py",
    "controller/scheduling/group.py",
    "controller/scheduling/instance.py",
    "controller/scheduling/lateness.py",
    "controller/scheduling/lazy_heap.py",
    "controller/scheduling/overcommit.py",
    "controller/scheduling/pace.py",
    "controller/scheduling/prefix_credit.py",
    "controller/scheduling/queue_entry.py",
    "controller/scheduling/queues.py",
    "controller/scheduling/retired.py",
    "controller/scheduling/running.py",
    "controller/scheduling/scheduler.py",
    "controller/scheduling/service_split.py",
    "controller/scheduling/shards.py",
    "controller/scheduling/swept_heap.py",
    "controller/scheduling/slots.py",
    "controller/scheduling/steering.py",
    "controller/scheduling/entrance.py",
    "controller/scheduling/tenancy.py",
    "controller/scheduling/tenant_gate.py",
    "controller/scheduling/token_bucket.py",
    "controller/scheduling/tpot_guard.py",
    "controller/scheduling/waiting_room.py",
    "controller/scheduling/walk.py",
    *sorted(str(path) for path in Path("controller/scheduling/policies").glob("*.py") if path.name != "__init__.py"),
    "controller/simulation/arrivals.py",
    "controller/simulation/kernel.py",
)

GATEWAY = (
    "controller/bus/codec.py",
    "controller/bus/wire.py",
    "controller/core/prompt_texts.py",
    "controller/core/request_body.py",
    "controller/gateway/auth.py",
    "controller/gateway/beliefs.py",
    "controller/gateway/claims.py",
    "controller/gateway/desk.py",
    "controller/gateway/dossier.py",
    "controller/gateway/errors.py",
    "controller/gateway/event_relay.py",
    "controller/gateway/http/answer.py",
    "controller/gateway/http/body.py",
    "controller/gateway/http/chunked.py",
    "controller/gateway/http/connection.py",
    "controller/gateway/http/exchange.py",
    "controller/gateway/http/head.py",
    "controller/gateway/ids.py",
    "controller/gateway/intake.py",
    "controller/gateway/ledger.py",
    "controller/gateway/metrics.py",
    "controller/gateway/ratelimits.py",
    "controller/gateway/sse.py",
    "controller/gateway/tallies.py",
    "controller/scheduling/history.py",
    "engines/client.py",
    "engines/http/connection.py",
    "engines/http/exchange.py",
    "engines/http/pool.py",
    "engines/tokens.py",
)
COMPILED = (*SIMULATION, *GATEWAY)

if os.environ.get("HMAS_COMPILE") == "1":
    from mypyc.build import mypycify

    setup(ext_modules=mypycify(list(COMPILED), opt_level="2"))
else:
    setup()
