"""Workloads for simulation: recorded, drawn and synthetic, each specified by one line of text. See docs/workloads.md."""

from hmas.loadgen.requests import TASKS
from hmas.workloads.catalogue import build, build_sessions
from hmas.workloads.session_driver import SessionDriver
from hmas.workloads.sessions import SessionPlan
from hmas.workloads.table import Workload

__all__ = ["TASKS", "SessionDriver", "SessionPlan", "Workload", "build", "build_sessions"]
