"""What requests of tenants that flood leave free of an instance, so that those of other tenants find room at once."""

from collections.abc import Collection

from hmas.controller.scheduling.admission.tpot_guard import OWN_MARGIN
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.queue.flood_watch import Reserve


class FloodReserve:
    """Whether an instance holds so much of a flood that it takes no more of it.

    The turns of tenants share what is dispatched, but an answer holds its place until it ends, minutes later perhaps. So a flood could fill
    an instance before another tenant's request comes. Its requests in flight may hold a part of each resource that an instance can be short
    of: places in the window, KV cache by the fence, and time per token, from the pace of a request alone up to the pace at which the
    strictest target of the others can be met. The rest is kept for the others (`Reserve`).
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, Collection[str], int, int]] = {}

    def forget(self, instance: str) -> None:
        """Forgets an instance that has left."""
        self._held.pop(instance, None)

    def spares(self, instance: Instance, flooding: Collection[str], reserve: Reserve) -> bool:
        """Whether the instance may take one more request of a flood. O(in flight), once per state of the instance and model."""
        held = self._held.get(instance.name)
        if held is None or held[0] != instance.version or held[1] is not flooding:
            runs = [run for run in instance.running.values() if run.entry.request.tenant in flooding]
            sequences = sum(run.entry.request.sequences for run in runs)
            kv_bytes = sum(instance.fence.booked_bytes(run.entry.request.id) for run in runs)
            held = self._held[instance.name] = (instance.version, flooding, sequences, kv_bytes)
        _, _, sequences, kv_bytes = held
        if not sequences:
            return True
        left = 1.0 - reserve.share
        if sequences >= left * instance.n_run or (instance.fence.limit_bytes and kv_bytes >= left * instance.fence.limit_bytes):
            return False
        token_ms, alone_ms = instance.token_ms, instance.pace.alone_ms
        if token_ms is None or alone_ms is None:
            return True
        slower_ms = max(0.0, reserve.tpot_ms / OWN_MARGIN - alone_ms)
        return (token_ms - alone_ms) * sequences / instance.sequences < left * slower_ms
