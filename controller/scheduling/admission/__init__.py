"""Decides whether a request may run now: TPOT guard, tenant quotas, targets for requests that declare none."""
