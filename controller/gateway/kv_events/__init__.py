"""KV events of engines: received over ZMQ, put into the exact index of prefix caches. Loaded only where an engine has `kv_events`."""
