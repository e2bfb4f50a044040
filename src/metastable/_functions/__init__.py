"""How a function of somebody is told from another one of the same name (`reading`), and from its own edited version (`source`)."""
