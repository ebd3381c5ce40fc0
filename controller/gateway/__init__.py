"""The OpenAI-compatible HTTP gateway: the life of a request, the instances, and the control loop."""
