"""A package that knows nothing of refbase, and whose author wants to test it."""
