"""All messages on the bus: one struct per message type, and the stream of each.

Receivers ignore fields that they do not know; a change that old receivers would misread gets a new `VERSION` (see bus/codec.py). Times are
seconds since the epoch. Other packages import from here; the modules group the messages by subject.
"""

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
from hmas.controller.core.messages.requests import Completion as Completion
from hmas.controller.core.messages.requests import RequestCost as RequestCost
from hmas.controller.core.messages.requests import RequestFeatures as RequestFeatures
from hmas.controller.core.messages.requests import RequestNotice as RequestNotice
from hmas.controller.core.messages.streams import ACTIONS as ACTIONS
from hmas.controller.core.messages.streams import COSTS as COSTS
from hmas.controller.core.messages.streams import DECISIONS as DECISIONS
from hmas.controller.core.messages.streams import EVENTS as EVENTS
from hmas.controller.core.messages.streams import FEATURES as FEATURES
from hmas.controller.core.messages.streams import MAXLEN as MAXLEN
from hmas.controller.core.messages.streams import MODELS as MODELS
from hmas.controller.core.messages.streams import OVERRIDES as OVERRIDES
from hmas.controller.core.messages.streams import REQUESTS as REQUESTS
from hmas.controller.core.messages.streams import STREAM_OF as STREAM_OF
from hmas.controller.core.messages.streams import TELEMETRY as TELEMETRY
from hmas.controller.core.messages.streams import VIEWS as VIEWS
from hmas.controller.core.messages.streams import AnyMessage as AnyMessage
from hmas.controller.core.messages.system import InstanceView as InstanceView
from hmas.controller.core.messages.system import SystemSnapshot as SystemSnapshot
from hmas.controller.core.messages.views import LatencySummary as LatencySummary
from hmas.controller.core.messages.views import LongView as LongView
from hmas.controller.core.messages.views import ShortView as ShortView
