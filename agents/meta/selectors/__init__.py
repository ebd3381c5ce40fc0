"""The selectors, which propose policies: several methods behind one interface (H-MAS C.2)."""
