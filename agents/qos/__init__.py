"""The agent that condenses telemetry into a short and a long view."""
