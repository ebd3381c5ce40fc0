"""The plugin's part for vLLM.

An order travels from the API server (`endpoint`) to the engine core as a utility call (`core`), which runs between two steps. There
`control` does the remaining checks and changes the scheduler, which is vLLM's own with two small additions (`scheduler`).
"""
