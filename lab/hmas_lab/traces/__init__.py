"""What the traces are like that requests are replayed from: H-MAS section 2, Fig. 2, 11 and 13."""
