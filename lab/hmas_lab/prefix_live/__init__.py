"""Prefix caches of two real vLLM servers, behind the product's routers and those of other gateways."""
