"""Performance profiles made without an engine: composed from measured kernels, or drawn from data sheets. Docs: docs/profiles.md."""
