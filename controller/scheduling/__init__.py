"""Decides which request runs next, and whether it may run. Pure decisions of the execution layer, without I/O."""
