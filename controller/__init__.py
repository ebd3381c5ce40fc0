"""The control plane: vocabulary, scheduling, routing, simulation, and the rooms with I/O (bus, config, runtime, admin, gateway)."""
