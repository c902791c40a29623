"""Trained models written for other programs to run (floor 6)."""
