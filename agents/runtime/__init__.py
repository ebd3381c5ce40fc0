"""The process around an agent: reads its streams, calls it, posts its answers, stops cleanly."""
