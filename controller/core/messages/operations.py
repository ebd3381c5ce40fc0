"""Messages for operators, and the notice of their overrides."""

from typing import Literal

from msgspec import field

from hmas.controller.core.messages.base import Message


class ModelReport(Message, frozen=True, tag="model_report"):
    """The quality of an agent's model on live traffic, every few seconds (perception, prediction, meta -> gateway, operators).

    Attributes:
        agent, instance: The agent and its instance, which its shell fills in; an agent may run several times.
        model: Kind and version of the model.
        role: `active` if its answers are used, `shadow` if they are only scored.
        requests: Requests answered since the model was loaded; for meta, the views that it decided on. `scored`: those with a known
            outcome.
        figures: Figures by name, as `hmas.controller.observability.agent_metrics` lists them; unknown ones are ignored.
        coverage: Share of outcomes at or below each stated quantile, by level such as `0.9`.
        fallback: Why this model replaces the configured one, empty if it does not.
        rss_bytes: Resident memory of the process.
    """

    sent_s: float
    agent: str
    model: str
    instance: str = ""
    role: Literal["active", "shadow"] = "active"
    requests: int = 0
    scored: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    coverage: dict[str, float] = field(default_factory=dict)
    fallback: str = ""
    rss_bytes: int = 0


class OverrideNotice(Message, frozen=True, tag="override"):
    """The active overrides of operators (admin -> all). An empty notice releases everything.

    Attributes:
        routers: Router by model, `*` for all others.
        expires_s: The first time at which any of them expires, 0 for never.
        author, reason: Of all of them together, cut to a bound. `holders`: both of each override, by its id.
        held_by: The id of the override that forces a setting, by the setting's path (`Override.settings`).
    """

    sent_s: float
    policy: str = ""
    parameters: dict[str, float] = field(default_factory=dict)
    knobs: dict[str, dict[str, int]] = field(default_factory=dict)
    tenant_weights: dict[str, float] = field(default_factory=dict)
    tenant_limits: dict[str, dict[str, int | float]] = field(default_factory=dict)
    draining: list[str] = field(default_factory=list)
    routers: dict[str, str] = field(default_factory=dict)
    expires_s: float = 0.0
    author: str = ""
    reason: str = ""
    holders: dict[str, str] = field(default_factory=dict)
    held_by: dict[str, str] = field(default_factory=dict)


Severity = Literal["info", "warning", "error"]


class Event(Message, frozen=True, tag="event"):
    """A change, with the values before and after and the reason (all -> operators)."""

    sent_s: float
    source: str
    kind: str
    subject: str
    before: str = ""
    after: str = ""
    reason: str = ""
    severity: Severity = "info"
    decision_id: str = ""
