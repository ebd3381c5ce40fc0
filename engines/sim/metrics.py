"""Prometheus metrics under vLLM's names, so that tools for vLLM can also read the embedded engine."""

from collections.abc import Mapping

from hmas.engines.base import EngineSnapshot
from hmas.engines.sim.profile import Profile


def render(snapshot: EngineSnapshot, profile: Profile, *, model_name: str, ended: Mapping[str, int], stalled_s: float) -> bytes:
    """Renders the metrics in Prometheus text format.

    Args:
        snapshot: The engine's state.
        profile: The engine's profile, for the configuration of the cache.
        model_name: Label of every series.
        ended: Finished requests by finish reason.
        stalled_s: Time lost to a busy host, seconds.
    """
    labels = f'engine="0",model_name="{model_name}"'
    cache = f'block_size="{profile.block_size}",num_gpu_blocks="{profile.kv_blocks}",engine="0"'
    rows: list[tuple[str, str, str, list[tuple[str, float]]]] = [
        ("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", [(labels, snapshot.running)]),
        ("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", [(labels, snapshot.waiting)]),
        ("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", [(labels, snapshot.kv_usage or 0.0)]),
        ("vllm:cache_config_info", "gauge", "Information of the cache config.", [(cache, 1)]),
        ("vllm:num_preemptions_total", "counter", "Cumulative number of preemptions.", [(labels, snapshot.preemptions_total)]),
        ("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.", [(labels, snapshot.prompt_tokens_total)]),
        ("vllm:generation_tokens_total", "counter", "Number of generation tokens.", [(labels, snapshot.generation_tokens_total)]),
        (
            "vllm:request_success_total",
            "counter",
            "Count of finished requests.",
            [(f'{labels},finished_reason="{reason}"', count) for reason, count in sorted(ended.items())],
        ),
        ("sim:stalled_seconds_total", "counter", "Time lost because the host did not run the engine in time.", [(labels, stalled_s)]),
    ]
    lines = []
    for name, kind, text, samples in rows:
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{{{label}}} {value}" for label, value in samples]
    return ("\n".join(lines) + "\n").encode()
