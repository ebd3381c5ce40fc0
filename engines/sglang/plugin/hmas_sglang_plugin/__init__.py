"""Live control of SGLang's scheduler over HTTP: GET and POST /hmas/v1/control.

An HTTP request comes in at the server (`endpoint`), is checked there as far as that goes without the scheduler (`order`, `access`), and
crosses to the scheduler's process inside SGLang's own internal-state messages (`wire`), which it takes between two steps (`hooks`). There
`control` checks the rest and moves the scheduler.
"""

VERSION = "0.1.0"
