"""Who proposes policies: one interface, several ways (H-MAS C.2)."""
