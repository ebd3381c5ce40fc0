"""Live control of vLLM's scheduler over HTTP: GET and POST /hmas/v1/control.

An HTTP request comes in at the API server (`endpoint`), is checked there as far as that goes without the engine (`order`, `access`), and
crosses to the engine core as a utility call (`core`), which runs between two steps. There `control` checks the rest and moves the
scheduler, which is vLLM's own with two small additions (`scheduler`).
"""

VERSION = "0.1.0"
