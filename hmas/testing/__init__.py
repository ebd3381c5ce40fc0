"""Checks for what others add to H-MAS, to be called from their own tests."""

from hmas.testing.conformance import CHECKS, assert_conforms, order_of
from hmas.testing.queue_script import NonConformance

__all__ = ["CHECKS", "NonConformance", "assert_conforms", "order_of"]
