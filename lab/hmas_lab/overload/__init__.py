"""Goodput past saturation: the product's defaults beside an engine alone and beside first come first served under the best window."""
