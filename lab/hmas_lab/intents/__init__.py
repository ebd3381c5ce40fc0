"""Written intentions of operators with known answers, and how often an endpoint's language model is right about them."""
