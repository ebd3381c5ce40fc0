"""Condenses telemetry into a short and a long view."""
