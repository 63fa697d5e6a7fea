"""The phases of a step; a file of its own, so that who reads a run's metrics need not import torch."""

PHASES = ("data", "forward", "backward", "waiting", "reduction", "optimizer")
"""Of a step, in the order they begin. `waiting` is for the neighbours in the pipeline, its bubble included."""
