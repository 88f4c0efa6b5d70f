"""Modules that tests import; none of them is a test, or has to be importable without verl."""

collect_ignore_glob = ["*.py"]
