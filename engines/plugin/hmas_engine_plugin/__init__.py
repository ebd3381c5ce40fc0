"""Live control of an engine's scheduler over HTTP: GET and POST /hmas/v1/control.

One distribution for every engine: each finds by its own entry points what is meant for it (`vllm`, `sglang`) and loads nothing else. An
HTTP request comes in at the engine's web server (`route`) and is checked there as far as that goes without the scheduler (`access`,
`order`); how it crosses to the scheduler and what it moves there is the engine's own affair.
"""

VERSION = "0.2.0"
