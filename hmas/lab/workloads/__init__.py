"""Workloads for simulation: recorded, drawn and synthetic, each named by one line of text. See docs/workloads.md."""

from hmas.lab.workloads.catalogue import build
from hmas.lab.workloads.columns import TASKS
from hmas.lab.workloads.table import Workload

__all__ = ["TASKS", "Workload", "build"]
