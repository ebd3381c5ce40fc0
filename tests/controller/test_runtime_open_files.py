"""The limit of open files goes up as far as allowed, and never down."""

import resource

import pytest

from hmas.controller.runtime.process import lift_limit


@pytest.fixture
def limits():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_is_lifted_and_not_lowered(limits: tuple[int, int]):
    _soft, hard = limits
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    assert lift_limit(300) == 300
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, hard)
    assert lift_limit(200) == 300
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, hard)


def test_the_hard_limit_holds(limits: tuple[int, int]):
    _soft, hard = limits
    assert lift_limit(hard + 1) == hard
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
