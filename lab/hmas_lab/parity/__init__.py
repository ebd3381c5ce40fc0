"""The same trace through the simulation and through the live gateway in virtual time: both have to decide alike, entry by entry."""
