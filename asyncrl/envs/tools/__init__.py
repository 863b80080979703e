"""Tools that a model can call in its turn."""
