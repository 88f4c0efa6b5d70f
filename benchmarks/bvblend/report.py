"""The section on BV-Blend, and its figure, from the results."""
def section(results): return ""
def draw_figure(results, path): pass
