"""The scheduler's account of each instance: window, KV fence, requests in flight, speed."""
