"""The plugin's part for SGLang.

An order travels from the server (`endpoint`) to the scheduler's process inside SGLang's own internal-state messages (`wire`), which the
scheduler handles between two steps (`hooks`). There `control` does the remaining checks and changes the scheduler.
"""
