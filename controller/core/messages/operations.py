"""What operators read and hold."""

from typing import Any, Literal

from msgspec import field

from hmas.controller.core.messages.base import Message


class ModelReport(Message, frozen=True, tag="model_report"):
    """How an agent's model does on live traffic, every few seconds (perception, prediction, meta -> gateway, operators).

    Attributes:
        agent, instance: Who says so; an agent may run several times.
        model: Kind and version of what is reported on.
        role: `active` where its answers are used, `shadow` where they are only scored.
        requests: Answered since the model was loaded, of meta the views that it was asked about; `scored`: of these, with a known outcome.
        figures: By name, as `hmas.controller.observability.agent_metrics` lists them; unknown ones are ignored.
        coverage: Share of outcomes at or below each stated quantile, by level such as `0.9`.
        fallback: Why this model stands in for the one that was configured, empty where it does not.
        rss_bytes: Memory of the process.
    """

    sent_s: float
    agent: str
    instance: str
    model: str
    role: Literal["active", "shadow"] = "active"
    requests: int = 0
    scored: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    coverage: dict[str, float] = field(default_factory=dict)
    fallback: str = ""
    rss_bytes: int = 0


class OverrideNotice(Message, frozen=True, tag="override"):
    """What operators hold at present (admin -> all). An empty notice releases everything."""

    sent_s: float
    policy: str = ""
    parameters: dict[str, float] = field(default_factory=dict)
    knobs: dict[str, dict[str, int]] = field(default_factory=dict)
    tenant_weights: dict[str, float] = field(default_factory=dict)
    tenant_limits: dict[str, dict[str, int | float]] = field(default_factory=dict)
    draining: list[str] = field(default_factory=list)
    expires_s: float = 0.0
    author: str = ""
    reason: str = ""


Severity = Literal["info", "warning", "error"]


class Event(Message, frozen=True, tag="event"):
    """What changed, why, from what to what (all -> operators)."""

    sent_s: float
    source: str
    kind: str
    subject: str
    before: str = ""
    after: str = ""
    reason: str = ""
    severity: Severity = "info"
    decision_id: str = ""
    data: dict[str, Any] = field(default_factory=dict)
