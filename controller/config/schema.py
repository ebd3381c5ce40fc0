"""Every setting of H-MAS: its name, type, range, default and meaning. docs/configuration.md is generated from this file."""

from typing import Annotated, Literal

from msgspec import Meta

from hmas.controller.config.mqtt import MqttConfig
from hmas.controller.config.section import (
    BusConfig,
    GatewayConfig,
    KvEventsConfig,
    ListedName,
    LoggingConfig,
    ModelConfig,
    Name,
    Seconds,
    Section,
    Share,
    SloConfig,
    TenantConfig,
    Weights,
    doc,
)
from hmas.controller.routing.registry import DEFAULT_ROUTER
from hmas.controller.scheduling.policies.registry import DEFAULT_POLICY
from hmas.controller.scheduling.settings import SHIPPED
from hmas.engines.registry import AUTO


class EngineConfig(Section, frozen=True):
    """One engine instance."""

    name: Name
    url: Annotated[str, doc("base address, without /v1", pattern=r"^https?://[^/\s]+$")]
    kind: Annotated[ListedName, doc("auto (detected), openai, vllm, sglang, sim, or a plugin's (docs/extending.md)")] = AUTO
    api_key_env: Annotated[str, doc("environment variable that holds the key towards this engine")] = ""
    control_token_env: Annotated[
        str, doc("environment variable that holds the token of this engine's control plugin (docs/engines.md)")
    ] = ""
    profile: Annotated[
        str,
        doc(
            "what predictions start from before anything was measured: a performance profile (a name of docs/profiles.md or the path "
            "of a .json file), or GPUs and model from data sheets, such as 2xA100/llama-2-13b; empty: nothing is known",
            max_length=4096,
        ),
    ] = ""
    n_run_max: Annotated[int, doc("ceiling of the dispatch window where the engine does not state its own", ge=1, le=4096)] = 256
    kv_capacity_tokens: Annotated[
        int,
        doc("tokens its KV cache holds, for the admission fence; 0 takes what the engine says, and no fence where it says nothing", ge=0),
    ] = 0
    kv_capacity_bytes: Annotated[
        int,
        doc(
            "memory of its KV cache on all its GPUs, where its tokens are not known: they follow from the bytes of one; "
            "kv_capacity_tokens goes before it",
            ge=0,
        ),
    ] = 0
    kv_bytes_per_token: Annotated[
        int,
        doc(
            "KV bytes of one token: 2 x layers x KV heads x head size x bytes per element; 0 works it out from model_config, "
            "and takes 131072 without one",
            ge=0,
        ),
    ] = 0
    model_config: Annotated[str, doc("path of the model's config.json, or the name of one in datasets/models; KV bytes follow from it")] = (
        ""
    )
    tp: Annotated[int, doc("GPUs that the model is split over; KV heads fewer than these are held twice", ge=1, le=1024)] = 1
    kv_cache_dtype: Annotated[
        Literal["auto", "bfloat16", "float16", "float32", "fp8"], doc("type of the KV cache; auto: that of the weights in config.json")
    ] = "auto"
    fence_margin: Annotated[
        Annotated[float, Meta(ge=0, lt=1)] | None, doc("delta_frag of Eq. 2 for this engine; null: that of scheduler")
    ] = None
    cost_per_hour: Annotated[float, doc("its price, for the cost of good requests in `hmas engines list`; 0: not told", ge=0, le=1e6)] = 0.0
    kv_events: Annotated[
        KvEventsConfig | None, doc("where it publishes what its prefix cache holds (docs/routing.md); null: routing goes by what was sent")
    ] = None


class EnginesDnsConfig(EngineConfig, frozen=True):
    """Engines found by a name in DNS, the host in `url`. `name` has 16 characters at most; https only with record SRV; no kv_events."""

    record: Annotated[
        Literal["A", "SRV"], doc("A: each address of the host (A and AAAA); SRV: each target, with its port (needs the extra `dns`)")
    ] = "A"
    every_s: Annotated[Seconds, doc("how often the name is asked for")] = 10.0


class SchedulerConfig(Section, frozen=True):
    """The queue, its policy and its admission."""

    policy: Annotated[
        ListedName, doc("policy at start, and whenever no agent and no operator names another; `hmas policy list` has the names")
    ] = DEFAULT_POLICY
    parameters: Annotated[dict[str, float], doc("parameters of `policy`, in place of its own defaults")] = {}  # noqa: RUF012 - likewise
    n_run: Annotated[int, doc("sequences in flight per instance at start; 0 for the instance's ceiling", ge=0, le=4096)] = 0
    queue_limit: Annotated[int, doc("waiting requests beyond which new ones get 429", ge=1, le=1_000_000)] = SHIPPED.queue_limit
    evict_lower_ranked: Annotated[
        bool,
        doc(
            "where the queue is full, a request that ranks better (priority, importance, in time before overdue) takes the place of "
            "the worst that waits, which gets 429"
        ),
    ] = SHIPPED.evict_lower_ranked
    overdue: Annotated[
        Literal["keep", "demote", "shed"],
        doc(
            "what becomes of a waiting request that can no longer meet its TTFT target: "
            "kept in order, served after all others, or dropped with 504"
        ),
    ] = SHIPPED.overdue
    late_service_share: Annotated[
        Share,
        doc(
            "share of the predicted service TTFT that must still fit before the deadline: with 0 a request is overdue only "
            "once its deadline has passed, with 1 the whole predicted time must fit"
        ),
    ] = SHIPPED.late_service_share
    overdue_wait_s: Annotated[Seconds, doc("with `demote`, most wait beyond the TTFT target; then 503 and Retry-After")] = (
        SHIPPED.overdue_wait_s
    )
    late_confidence: Annotated[
        float,
        doc(
            "probability of meeting the TTFT target, estimated from recent first tokens, below which a waiting request "
            "counts as overdue; 0 goes by `late_service_share` alone",
            ge=0,
            le=0.99,
        ),
    ] = SHIPPED.late_confidence
    tpot_guard: Annotated[
        Share,
        doc(
            "a request waits while its prefill would take more than this share of what those in flight can bear without "
            "missing their TPOT target; 0 switches the guard off and leaves TPOT to the window alone"
        ),
    ] = SHIPPED.tpot_guard
    fence: Annotated[bool, doc("hold requests back whose calibrated KV bytes would pass the instance's capacity (Eq. 2)")] = SHIPPED.fence
    fence_margin: Annotated[float, doc("delta_frag of Eq. 2", ge=0, lt=1)] = SHIPPED.fence_margin
    fence_overcommit: Annotated[
        bool,
        doc(
            "let a request past a full fence once waiting has cost what a preemption costs, while the engine's report shows room and "
            "its pace suits the declared TPOT targets in flight; off: Eq. 2 holds for all"
        ),
    ] = SHIPPED.fence_overcommit
    fence_in_bypass: Annotated[bool, doc("Eq. 2 holds in the emergency bypass, too")] = SHIPPED.fence_in_bypass
    idle_relief: Annotated[bool, doc("dispatch what waited 1 s beside a half-empty instance if the guard admits it")] = SHIPPED.idle_relief
    binding: Annotated[
        Literal["central", "arrival"],
        doc(
            "when a request is bound to an instance: central: when it is sent, from one queue of all; arrival: the router chooses at "
            "once, and the request waits in the queue of that instance"
        ),
    ] = SHIPPED.binding
    routing: Annotated[ListedName, doc("router, which chooses the instance; `hmas router list` has the names")] = DEFAULT_ROUTER
    routing_weights: Annotated[Weights, doc("weights of its scorers, in place of its own; 0 leaves one out")] = {}  # noqa: RUF012 - likewise
    tick_s: Annotated[Seconds, doc("how often deadlines are checked and telemetry is sent")] = 0.1


class AgentsConfig(Section, frozen=True):
    """The five agents and their pace."""

    enabled: Annotated[bool, doc("false: static control; policy and window stay as configured")] = True
    only: Annotated[
        str,
        doc(
            "agents that run, with commas between; empty: all five. What an agent that does not run would answer keeps the default "
            "that the gateway starts with"
        ),
    ] = ""
    nice: Annotated[
        int,
        doc(
            "niceness of the agents' processes; it counts beside the other threads of an agent only, wherever Linux shares processors "
            "among sessions (autogroup), units or containers first",
            ge=0,
            le=19,
        ),
    ] = 10
    spare_cpu_only: Annotated[
        bool,
        doc(
            "agents run in the class for idle processors (SCHED_IDLE on Linux). Where no processor is ever idle, they may post nothing, "
            "and the gateway uses its defaults. Off by default: beside an engine on the same few cores it costs goodput "
            "(docs/operations.md)"
        ),
    ] = False
    ask: Annotated[
        Literal["waiting", "all"],
        doc(
            "which requests perception and prediction are asked about: `waiting` (those that are not sent at once and of which targets or "
            "output length are not known, and a sample of the others, because an answer takes processor time), or `all`"
        ),
    ] = "waiting"
    ask_sample_rps: Annotated[float, doc("with `waiting`, most requests a second in that sample; 0: none", ge=0, le=10_000)] = 5.0
    set_aside: Annotated[bool, doc("ignore answers of an agent while they are worse than the defaults; off: all count")] = True
    perception_min_confidence: Annotated[Share, doc("below it a task type is `unknown`")] = 0.5
    perception_unknown: Annotated[
        Literal["history", "most-frequent"], doc("whose lengths and targets an `unknown` request has: all types', or the most frequent's")
    ] = "history"
    perception_reader: Annotated[
        str,
        doc(
            "what reads prompts: `store` (what `hmas models use perception` chose, else the shipped model), `shipped`, `rules`, "
            "one stored version such as `v3`, or the address of an OpenAI-compatible server with a trained model behind it",
            pattern=r"^(store|shipped|rules|v[1-9][0-9]{0,8}|https?://[^/\s]+)$",
        ),
    ] = "store"
    perception_endpoint_model: Annotated[
        str, doc("name of the model or LoRA adapter to ask for, where perception_reader is an address")
    ] = ""
    perception_endpoint_key_env: Annotated[str, doc("environment variable that holds the key towards that server; empty: none is sent")] = (
        ""
    )
    model_promotion: Annotated[
        Literal["manual", "auto"],
        doc(
            "what happens once live traffic shows a model in shadow mode (`hmas models shadow`) to be better: "
            "it is reported, or it is activated"
        ),
    ] = "manual"
    model_shadow_completions: Annotated[
        int, doc("completions on which a model in shadow mode is compared before it can count as better", ge=100, le=10_000_000)
    ] = 1000
    model_shadow_margin: Annotated[Share, doc("share by which its error must be lower than that of the active model")] = 0.02
    prediction_model: Annotated[
        str, doc("folder of a cost model; empty takes what `hmas models use prediction` chose, else the shipped one")
    ] = ""
    prediction_refit_completions: Annotated[
        int,
        doc(
            "completions after which the cost model is refitted on telemetry and runs in shadow mode; 0: never; "
            "model_promotion says what becomes of it",
            ge=0,
            le=10_000_000,
        ),
    ] = 5000
    qos_short_window_s: Annotated[Seconds, doc("span of V_short's latency figures")] = 5.0
    qos_long_window_s: Annotated[Seconds, doc("span of V_long")] = 60.0
    meta_period_s: Annotated[Seconds, doc("Delta T_meta: how often the policy is reconsidered")] = 10.0
    meta_dwell_s: Annotated[Seconds, doc("a policy stays at least this long")] = 30.0
    meta_rollback_window_s: Annotated[
        Seconds, doc("how long after a switch Eq. 12 is watched; up to four times as long where few requests end")
    ] = 15.0
    meta_rollback_ratio: Annotated[float, doc("rho of Eq. 12", gt=1, le=100)] = 1.5
    meta_switches_per_hour: Annotated[int, doc("most switches within any hour, rollbacks apart", ge=1, le=3600)] = 30
    meta_agree: Annotated[int, doc("evaluations in a row that must propose the same policy", ge=1, le=100)] = 2
    meta_guards: Annotated[
        Literal["product", "paper"],
        doc("rollback and bypass: `product` (with allowances for load; bypass on contradicting telemetry alone), `paper` (docs/paper.md)"),
    ] = "product"
    meta_policies: Annotated[str, doc("whitelist: policies that meta may choose, with commas between; empty: every one that there is")] = ""
    meta_routers: Annotated[str, doc("routers that meta may choose besides the configured one, with commas between (docs/routing.md)")] = ""
    meta_selector: Annotated[
        ListedName,
        doc(
            "proposes policies: `twin` (replays of recent traffic), `rules`, `paper-rules` (the paper's rule map), `llm` (language model), "
            "a plugin's (docs/meta.md)",
        ),
    ] = "twin"
    meta_judge: Annotated[
        bool, doc("ask the digital twin before another selector's proposal is followed; a proposal that it expects to be worse is dropped")
    ] = True
    meta_llm_url: Annotated[
        str,
        doc(
            "OpenAI-compatible server of the language model; its path is that of the API, /v1 where none is named",
            pattern=r"^(https?://[^/\s]+(/[^\s?#]*)?)?$",
        ),
    ] = ""
    meta_llm_model: Annotated[str, doc("name of the model there; empty: what the server serves")] = ""
    meta_llm_key_env: Annotated[str, doc("environment variable that holds the key towards that server; empty: none is sent")] = ""
    meta_llm_timeout_s: Annotated[float, doc("time for a whole question and answer; after it the rule map stands in", gt=0, le=50)] = 20.0
    meta_llm_max_tokens: Annotated[int, doc("bound on the model's answer", ge=64, le=16_384)] = 512
    meta_model: Annotated[
        str, doc("file or folder that a plugin's selector reads, such as a classifier's; empty: the selector's own choice")
    ] = ""
    meta_twin_window_s: Annotated[Seconds, doc("span of the past that the twin replays")] = 60.0
    meta_twin_budget_s: Annotated[
        Seconds, doc("time one replay of all candidates may take; less of the past is replayed where it would take longer")
    ] = 2.0
    statera_period_s: Annotated[Seconds, doc("least time between two actions")] = 0.5
    statera_epsilon: Annotated[float, doc("risk that an output is longer than its bound (Eq. 4)", ge=0.001, lt=1)] = 0.1
    statera_n_run_min: Annotated[int, doc("the window never goes below this", ge=1, le=4096)] = 1
    statera_law: Annotated[
        Literal["goodput", "paper"],
        doc("regulates windows and token budgets: `goodput` (docs/statera.md), `paper` (Algorithm 2 as printed, docs/paper.md)"),
    ] = "goodput"
    statera_band_low: Annotated[float, doc("u_low of Algorithm 2", gt=0, lt=2)] = 0.75
    statera_band_high: Annotated[float, doc("u_high of Algorithm 2", gt=0, le=2)] = 0.92
    statera_budget_law: Annotated[
        ListedName,
        doc("sets the token budget: `band` (utilization against its band), `memory` (free KV cache), a plugin's"),
    ] = "band"
    statera_tuning: Annotated[
        str, doc("file with the gains of the outer loop, as `hmas tune statera` writes it; empty: gains that suit any engine")
    ] = ""
    stale_after_s: Annotated[Seconds, doc("silence of statera or meta after which the gateway falls back to its configured controls")] = (
        15.0
    )


class Config(Section, frozen=True):
    """The whole configuration file."""

    preset: Annotated[Literal["default", "paper"], doc("defaults below explicit settings; `paper`: the paper's own system")] = "default"
    state_dir: Annotated[str, doc("where sockets, the override directory and embedded data lie")] = "~/.local/state/hmas"
    overrides_dir: Annotated[str, doc("watched for override files; empty: `overrides` under state_dir")] = ""
    engines_file: Annotated[
        str,
        doc("file with `engines` beside those below, read again by the gateway when it changes, for tools that find engines; empty: none"),
    ] = ""
    gateway: GatewayConfig = GatewayConfig()
    tenants: dict[Name, TenantConfig] = {}  # noqa: RUF012 - likewise
    engines: list[EngineConfig] = []  # noqa: RUF012 - likewise
    engines_dns: list[EnginesDnsConfig] = []  # noqa: RUF012 - likewise
    models: dict[str, ModelConfig] = {}  # noqa: RUF012 - likewise
    scheduler: SchedulerConfig = SchedulerConfig()
    slo: SloConfig = SloConfig()
    bus: BusConfig = BusConfig()
    agents: AgentsConfig = AgentsConfig()
    mqtt: MqttConfig = MqttConfig()
    logging: LoggingConfig = LoggingConfig()
