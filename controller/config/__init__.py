"""Configuration and override files: schema, loading, validation."""
