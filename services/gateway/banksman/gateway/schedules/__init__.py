"""Schedules: runs of workflows and prompts at given times, each of them once."""
