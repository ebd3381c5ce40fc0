"""The stream of each message type, and the bound of each stream."""

from collections.abc import Mapping
from types import MappingProxyType

from hmas.controller.core.messages.base import Message
from hmas.controller.core.messages.control import ControlAction, DecisionOutcome, MetaDecision
from hmas.controller.core.messages.operations import Event, ModelReport, OverrideNotice
from hmas.controller.core.messages.requests import Completion, RequestCost, RequestFeatures, RequestNotice
from hmas.controller.core.messages.system import SystemSnapshot
from hmas.controller.core.messages.views import LongView, ShortView

AnyMessage = (
    RequestNotice
    | RequestFeatures
    | RequestCost
    | Completion
    | SystemSnapshot
    | ShortView
    | LongView
    | ControlAction
    | MetaDecision
    | DecisionOutcome
    | ModelReport
    | OverrideNotice
    | Event
)

REQUESTS = "hmas:requests"
FEATURES = "hmas:features"
COSTS = "hmas:costs"
TELEMETRY = "hmas:telemetry"
VIEWS = "hmas:views"
ACTIONS = "hmas:actions"
DECISIONS = "hmas:decisions"
MODELS = "hmas:models"
OVERRIDES = "hmas:overrides"
EVENTS = "hmas:events"

STREAM_OF: Mapping[type[Message], str] = MappingProxyType(
    {
        RequestNotice: REQUESTS,
        RequestFeatures: FEATURES,
        RequestCost: COSTS,
        Completion: TELEMETRY,
        SystemSnapshot: TELEMETRY,
        ShortView: VIEWS,
        LongView: VIEWS,
        ControlAction: ACTIONS,
        MetaDecision: DECISIONS,
        DecisionOutcome: DECISIONS,
        ModelReport: MODELS,
        OverrideNotice: OVERRIDES,
        Event: EVENTS,
    }
)
"""The stream of each message type."""

MAXLEN: Mapping[str, int] = MappingProxyType(
    {
        REQUESTS: 20_000,
        FEATURES: 20_000,
        COSTS: 20_000,
        TELEMETRY: 20_000,
        VIEWS: 2_000,
        ACTIONS: 5_000,
        DECISIONS: 2_000,
        MODELS: 1_000,
        OVERRIDES: 200,
        EVENTS: 10_000,
    }
)
"""Bound of each stream in entries (trimmed by whole nodes, so it may hold a little more); on a server also in bytes (`bus.wire`)."""
