"""Estimators compared in real training jobs of verl on the CPU, and the variance of their gradients."""
