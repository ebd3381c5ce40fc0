"""The scheduler's description of a configured engine."""

from hmas.controller.config.schema import EngineConfig
from hmas.controller.scheduling.settings import InstanceSpec
from hmas.engines.model_shape import model_kv_bytes

KV_BYTES_PER_TOKEN = 131_072
"""The value of Llama 3 8B in 16 bit, used if nothing is known. It only weighs instances against each other; capacities are unaffected."""


def instance_spec(engine: EngineConfig) -> InstanceSpec:
    """Returns the window and KV budget of one engine.

    Raises:
        ProfileError: The model's config.json cannot be used; the message names the file and the field.
    """
    per_token = engine.kv_bytes_per_token
    if not per_token and engine.model_config:
        per_token = model_kv_bytes(engine.model_config, tp=engine.tp, dtype=engine.kv_cache_dtype)
    per_token = per_token or KV_BYTES_PER_TOKEN
    return InstanceSpec(
        name=engine.name,
        capacity_n_run=engine.n_run_max,
        kv_capacity_tokens=engine.kv_capacity_tokens or engine.kv_capacity_bytes // per_token,
        kv_bytes_per_token=per_token,
        fence_margin=engine.fence_margin,
    )
