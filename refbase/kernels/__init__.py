"""Vectorised torch kernels: ragged groups, any row order, float64 accumulation."""
