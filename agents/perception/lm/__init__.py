"""Perception by a language model of one's own choice: LoRA on any Hugging Face base, served in process or by an engine."""
