"""One module a family: it is its own `generators.procedural.family.Family`."""
