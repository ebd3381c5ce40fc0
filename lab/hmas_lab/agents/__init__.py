"""What the two agents that read requests are worth: rules, trained models and the truth beside each other."""
