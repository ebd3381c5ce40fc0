"""Teaches meta's learned selectors from simulations: drawn workloads, the policy that served each best, the models made of them."""
