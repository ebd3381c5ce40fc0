"""SGLang: the adapter."""
