"""Comparisons on one real vLLM under a load that three tenants share: what they have in common, whatever their runs are."""
