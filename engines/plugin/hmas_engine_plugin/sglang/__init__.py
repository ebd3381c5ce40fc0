"""SGLang's side.

An order crosses from the server (`endpoint`) to the scheduler's process inside SGLang's own internal-state messages (`wire`), which it
takes between two steps (`hooks`). There `control` checks the rest and moves the scheduler.
"""
