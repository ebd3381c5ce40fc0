"""Checks for what others add to H-MAS, to be called from their own tests."""

from hmas.testing.conformance import CHECKS, NonConformance, assert_conforms, order_of

__all__ = ["CHECKS", "NonConformance", "assert_conforms", "order_of"]
