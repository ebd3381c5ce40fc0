"""Compiles the scheduler, the engine model and the simulation's loop with mypyc where HMAS_COMPILE=1 asks for it.

One source for both: the modules run as they are without it, and give the same results, to the last bit. What is compiled is what a
simulation spends its time in. Records (msgspec structs), which compile to nothing better, stay as they are.
"""

import os
from pathlib import Path

from setuptools import setup

COMPILED = (
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
    "controller/scheduling/backlog.py",
    "controller/scheduling/drain_rate.py",
    "controller/scheduling/endings.py",
    "controller/scheduling/group.py",
    "controller/scheduling/instance.py",
    "controller/scheduling/lazy_heap.py",
    "controller/scheduling/pace.py",
    "controller/scheduling/prefix_credit.py",
    "controller/scheduling/queue_entry.py",
    "controller/scheduling/queues.py",
    "controller/scheduling/retired.py",
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

if os.environ.get("HMAS_COMPILE") == "1":
    from mypyc.build import mypycify

    setup(ext_modules=mypycify(list(COMPILED), opt_level="3"))
else:
    setup()
