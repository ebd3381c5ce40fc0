"""What policies are made of: their contract, heaps, keyed and fair bases, the cost threshold."""
