"""Checks for extensions of H-MAS, to be called from the tests of their authors."""

from hmas.testing.conformance import CHECKS, assert_conforms, order_of
from hmas.testing.queue_script import NonConformance
from hmas.testing.router_conformance import assert_router_conforms

__all__ = ["CHECKS", "NonConformance", "assert_conforms", "assert_router_conforms", "order_of"]
