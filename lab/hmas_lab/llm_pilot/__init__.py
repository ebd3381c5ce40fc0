"""A model of the times in LLM-Pilot's request logs, on hardware known by its data sheet, and how well it predicts what it has not seen."""
