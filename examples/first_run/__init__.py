"""Train a small model with verl on a verifiable task, from nothing, on a CPU.

``python -m examples.first_run --help`` runs the whole thing. The pieces are meant to be used apart as well:
`task` makes the problems, `model` a tokenizer and a warm-started model, `job` runs one verl training job and
`report` reads what it logged.
"""
