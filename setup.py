"""Compiles the scheduler, a request's way through the gateway and the simulation with mypyc where HMAS_COMPILE=1 asks for it.

One source for both: the modules run as they are without it, and give the same results, to the last bit. What is compiled is what a
simulation and a busy gateway spend their time in. Records (msgspec structs), which compile to nothing better, stay as they are. So does
whatever awaits where it handles an error (`completion`, `relay`, `monitor`, the sender of the bus): mypyc leaves the error in place, as the
cause of every later one. mypyc assumes that a type checked before an `await` still holds after it: what may have changed is read in a
method of its own. Adapters of engines, which others inherit from, stay interpreted too.
"""

import os
from pathlib import Path

from setuptools import setup

SIMULATION = (
    "hmas/engines/sim/sequence.py",
    "hmas/engines/sim/blocks.py",
    "hmas/engines/sim/decoding.py",
    "hmas/engines/sim/batch.py",
    "hmas/engines/sim/model.py",
    "hmas/controller/routing/block_table.py",
    "hmas/controller/routing/exact_index.py",
    "hmas/controller/routing/least_loaded.py",
    "hmas/controller/routing/prefix_index.py",
    "hmas/controller/routing/scored.py",
    "hmas/controller/routing/turns.py",
    "hmas/controller/routing/scorers/balance.py",
    "hmas/controller/routing/scorers/load.py",
    "hmas/controller/routing/scorers/prefix.py",
    "hmas/controller/routing/scorers/session.py",
    "hmas/controller/scheduling/accounts.py",
    "hmas/controller/scheduling/binding.py",
    "hmas/controller/scheduling/instances/kv_fence.py",
    "hmas/controller/scheduling/instances/likeness.py",
    "hmas/controller/scheduling/admission/assumed_targets.py",
    "hmas/controller/scheduling/queue/backlog.py",
    "hmas/controller/scheduling/policy_base/cost_threshold.py",
    "hmas/controller/scheduling/queue/drain_rate.py",
    "hmas/controller/scheduling/refusals.py",
    "hmas/controller/scheduling/retry.py",
    "hmas/controller/scheduling/queue/model_queue.py",
    "hmas/controller/scheduling/instances/instance.py",
    "hmas/controller/core/statistics/quantiles.py",
    "hmas/controller/core/statistics/rate.py",
    "hmas/controller/scheduling/instances/lateness.py",
    "hmas/controller/scheduling/policy_base/heap.py",
    "hmas/controller/scheduling/instances/overcommit.py",
    "hmas/controller/scheduling/instances/foresight.py",
    "hmas/controller/scheduling/instances/speed.py",
    "hmas/controller/scheduling/policy_base/queue_entry.py",
    "hmas/controller/scheduling/queue/model_queues.py",
    "hmas/controller/scheduling/instances/running.py",
    "hmas/controller/scheduling/reports.py",
    "hmas/controller/scheduling/routers.py",
    "hmas/controller/scheduling/scheduler.py",
    "hmas/controller/scheduling/policy_base/service_split.py",
    "hmas/controller/scheduling/instances/instance_group.py",
    "hmas/controller/scheduling/policy_control.py",
    "hmas/controller/scheduling/intake.py",
    "hmas/controller/scheduling/admission/quotas.py",
    "hmas/controller/scheduling/admission/flood_reserve.py",
    "hmas/controller/scheduling/admission/guard_pause.py",
    "hmas/controller/scheduling/admission/kept_pace.py",
    "hmas/controller/scheduling/queue/flood_watch.py",
    "hmas/controller/scheduling/queue/tenant_accounts.py",
    "hmas/controller/scheduling/queue/tenant_queues.py",
    "hmas/controller/scheduling/queue/tenant_share.py",
    "hmas/controller/scheduling/admission/token_bucket.py",
    "hmas/controller/scheduling/admission/tpot_guard.py",
    "hmas/controller/scheduling/queue/wait_queue.py",
    "hmas/controller/scheduling/dispatch.py",
    "hmas/controller/scheduling/policy_base/keyed.py",
    "hmas/controller/scheduling/policy_base/flow_policy.py",
    "hmas/controller/scheduling/policy_base/flow.py",
    "hmas/controller/scheduling/policy_base/recall.py",
    "hmas/controller/scheduling/policy_base/tickets.py",
    *sorted(
        str(path) for path in Path("hmas/controller/scheduling/policies").glob("*.py") if path.name not in {"__init__.py", "registry.py"}
    ),
    "hmas/controller/simulation/arrivals.py",
    "hmas/controller/simulation/kernel.py",
)

GATEWAY = (
    "hmas/controller/bus/codec.py",
    "hmas/controller/bus/wire.py",
    "hmas/controller/core/prompt_texts.py",
    "hmas/controller/core/bodies/messages.py",
    "hmas/controller/core/bodies/responses.py",
    "hmas/controller/core/request_body.py",
    "hmas/controller/gateway/requests/apis/api.py",
    "hmas/controller/gateway/requests/apis/messages.py",
    "hmas/controller/gateway/requests/apis/responses.py",
    "hmas/controller/gateway/requests/auth.py",
    "hmas/controller/control/estimates.py",
    "hmas/controller/gateway/requests/request_headers.py",
    "hmas/controller/gateway/requests/active_request.py",
    "hmas/controller/gateway/requests/manager.py",
    "hmas/controller/observability/observer.py",
    "hmas/controller/observability/request_trace.py",
    "hmas/controller/gateway/errors.py",
    "hmas/controller/gateway/requests/event_relay.py",
    "hmas/controller/gateway/http/answer.py",
    "hmas/controller/gateway/http/body.py",
    "hmas/controller/gateway/http/chunked.py",
    "hmas/controller/gateway/http/connection.py",
    "hmas/controller/gateway/http/exchange.py",
    "hmas/controller/gateway/http/head.py",
    "hmas/controller/gateway/http/server_state.py",
    "hmas/controller/gateway/requests/parse.py",
    "hmas/controller/observability/completions.py",
    "hmas/controller/observability/metrics.py",
    "hmas/controller/gateway/requests/response_headers.py",
    "hmas/controller/gateway/requests/sse.py",
    "hmas/controller/observability/counters.py",
    "hmas/controller/scheduling/default_estimates.py",
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
