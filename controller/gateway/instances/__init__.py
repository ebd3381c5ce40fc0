"""Health, circuit breaker and live knobs of each engine behind the gateway."""
