"""How far the simulator can be trusted: predictions of loads that it was not fitted to, against what real engines did."""

from hmas_lab.fidelity.study import report

__all__ = ["report"]
