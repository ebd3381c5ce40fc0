"""What the shipped models are made from: generated prompts, public data under licences that allow it, episodes of random engines."""
