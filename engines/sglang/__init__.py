"""SGLang: the adapter, and what is loaded into the engine itself."""
