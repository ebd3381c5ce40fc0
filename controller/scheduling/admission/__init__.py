"""Whether a request may run now: TPOT guard, tenant quotas, targets that nobody declared."""
