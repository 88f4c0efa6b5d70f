"""What the library is measured by. Run as ``python -m benchmarks.<name>`` from the repository's root.

``quality``: error and gradient variance of the baselines. ``kernels``: speed and memory. Each writes a JSON file
and a figure; ``python -m benchmarks.report`` makes docs/benchmarks.md from them.
"""
