"""Executable formulas: one group at a time, for any number type."""
