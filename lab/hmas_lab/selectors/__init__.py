"""What meta's selectors choose at the same moments of simulated loads, a language model among them, and how often that is right."""
