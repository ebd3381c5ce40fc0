"""Live control of an engine's scheduler over HTTP: GET and POST /hmas/v1/control.

One distribution serves every engine: each engine finds its own part (`vllm`, `sglang`) by entry points and loads nothing else. An HTTP
request arrives at the engine's web server (`route`), which checks everything that can be checked without the scheduler (`access`,
`order`). How the order reaches the scheduler, and what it changes there, differs from engine to engine.
"""

VERSION = "0.3.0"
