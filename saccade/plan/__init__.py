"""Estimates of parameters, FLOPs, memory, time and cost of a run, without building it."""
