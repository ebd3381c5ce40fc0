"""vLLM's side.

An order crosses from the API server (`endpoint`) to the engine core as a utility call (`core`), which runs between two steps. There
`control` checks the rest and moves the scheduler, which is vLLM's own with two small additions (`scheduler`).
"""
