"""Hostile clients beside a steady one: whether anybody's requests suffer from what a neighbour sends."""
