"""An operator's intention in words, and the override that a language model and the checks of its answer make of it."""
