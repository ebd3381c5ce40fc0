"""The references: which policy, with which parameters, must do the same as which slow second implementation."""

from reference_flows import Cfs, Lottery, Mlfq, RoundRobin, Stride, Vtc, Wfq, WfqByTime
from reference_keys import Jumping, RobustEdf, TwoLanes, edf, edf_whole, fcfs, llf, sjf, slack, srtf, srtf_kept

REFERENCES = {
    "fcfs": ("fcfs", {}, fcfs),
    "edf": ("edf", {}, edf),
    "edf by D_r": ("edf", {"key": 1.0}, edf_whole),
    "robust-edf": ("robust-edf", {}, RobustEdf),
    "llf": ("llf", {}, llf),
    "slack": ("slack", {}, slack),
    "sjf": ("sjf", {}, sjf),
    "srtf": ("srtf", {}, srtf),
    "srtf with a shared cache": ("srtf", {"kept_prefill": 1.0}, srtf_kept),
    "two-lane": ("two-lane", {"threshold_ms": 2500.0, "fast_share": 0.8}, TwoLanes),
    "priority": ("priority", {}, Jumping),
    "wfq": ("wfq", {}, Wfq),
    "wfq by time": ("wfq", {"cost": 1.0}, WfqByTime),
    "vtc": ("vtc", {}, Vtc),
    "stride": ("stride", {}, Stride),
    "lottery": ("lottery", {}, Lottery),
    "rr": ("rr", {}, RoundRobin),
    "cfs": ("cfs", {}, Cfs),
    "mlfq": ("mlfq", {}, Mlfq),
}
"""By case: the policy, its parameters, and what it must do."""
