"""Perception with a language model of the operator's choice: LoRA on any Hugging Face base, run in process or served by an engine."""
