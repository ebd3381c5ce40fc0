"""The building blocks of policies: their contract, heaps, base classes for keyed and fair policies, the cost threshold."""
