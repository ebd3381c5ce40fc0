"""All messages on the bus: one struct per message type, and the stream of each.

Receivers ignore fields that they do not know; a change that old receivers would misread gets a new `VERSION` (see bus/codec.py). Times are
seconds since the epoch. Other packages import from here; the modules group the messages by subject.
"""

from hmas.controller.core.messages.base import VERSION, Message
from hmas.controller.core.messages.control import (
    OPEN_WINDOW,
    CandidateOutlook,
    ControlAction,
    DecisionOutcome,
    LengthBound,
    MetaDecision,
    label_of,
)
from hmas.controller.core.messages.operations import Event, ModelReport, OverrideNotice, Severity
from hmas.controller.core.messages.requests import Completion, RequestCost, RequestFeatures, RequestNotice
from hmas.controller.core.messages.streams import (
    ACTIONS,
    COSTS,
    DECISIONS,
    EVENTS,
    FEATURES,
    MAXLEN,
    MODELS,
    OVERRIDES,
    REQUESTS,
    STREAM_OF,
    TELEMETRY,
    VIEWS,
    AnyMessage,
)
from hmas.controller.core.messages.system import InstanceView, SystemSnapshot
from hmas.controller.core.messages.views import LatencySummary, LongView, ShortView

__all__ = [
    "ACTIONS",
    "COSTS",
    "DECISIONS",
    "EVENTS",
    "FEATURES",
    "MAXLEN",
    "MODELS",
    "OPEN_WINDOW",
    "OVERRIDES",
    "REQUESTS",
    "STREAM_OF",
    "TELEMETRY",
    "VERSION",
    "VIEWS",
    "AnyMessage",
    "CandidateOutlook",
    "Completion",
    "ControlAction",
    "DecisionOutcome",
    "Event",
    "InstanceView",
    "LatencySummary",
    "LengthBound",
    "LongView",
    "Message",
    "MetaDecision",
    "ModelReport",
    "OverrideNotice",
    "RequestCost",
    "RequestFeatures",
    "RequestNotice",
    "Severity",
    "ShortView",
    "SystemSnapshot",
    "label_of",
]
