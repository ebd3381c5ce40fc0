"""All messages on the bus: one struct per message type, and the stream of each.

Receivers ignore fields that they do not know; a change that old receivers would misread gets a new `VERSION` (see bus/codec.py). Times are
seconds since the epoch. Other packages import from here; the modules group the messages by subject.
"""

from collections.abc import Mapping
from types import MappingProxyType

from hmas.controller.core.messages.base import VERSION as VERSION
from hmas.controller.core.messages.base import Message as Message
from hmas.controller.core.messages.control import OPEN_WINDOW as OPEN_WINDOW
from hmas.controller.core.messages.control import CandidateOutlook as CandidateOutlook
from hmas.controller.core.messages.control import ControlAction as ControlAction
from hmas.controller.core.messages.control import DecisionOutcome as DecisionOutcome
from hmas.controller.core.messages.control import LengthBound as LengthBound
from hmas.controller.core.messages.control import MetaDecision as MetaDecision
from hmas.controller.core.messages.control import label_of as label_of
from hmas.controller.core.messages.operations import Event as Event
from hmas.controller.core.messages.operations import ModelReport as ModelReport
from hmas.controller.core.messages.operations import OverrideNotice as OverrideNotice
from hmas.controller.core.messages.operations import Severity as Severity
from hmas.controller.core.messages.requests import NOTICE_FRESH_S as NOTICE_FRESH_S
from hmas.controller.core.messages.requests import Completion as Completion
from hmas.controller.core.messages.requests import RequestCost as RequestCost
from hmas.controller.core.messages.requests import RequestFeatures as RequestFeatures
from hmas.controller.core.messages.requests import RequestNotice as RequestNotice
from hmas.controller.core.messages.system import InstanceView as InstanceView
from hmas.controller.core.messages.system import SystemSnapshot as SystemSnapshot
from hmas.controller.core.messages.views import VIEW_FRESH_S as VIEW_FRESH_S
from hmas.controller.core.messages.views import LatencySummary as LatencySummary
from hmas.controller.core.messages.views import LongView as LongView
from hmas.controller.core.messages.views import ShortView as ShortView

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
"""The stream of each message type; what `decode` reads is one of these."""

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
