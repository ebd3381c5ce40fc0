"""Which request runs next, and whether it may: pure decisions of the execution layer."""
