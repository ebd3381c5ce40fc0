"""Workloads for simulation: recorded, drawn and synthetic, each named by one line of text. See docs/workloads.md."""

from hmas.lab.workloads.catalogue import build, build_sessions
from hmas.lab.workloads.columns import TASKS
from hmas.lab.workloads.session_driver import SessionDriver
from hmas.lab.workloads.sessions import SessionPlan
from hmas.lab.workloads.table import Workload

__all__ = ["TASKS", "SessionDriver", "SessionPlan", "Workload", "build", "build_sessions"]
