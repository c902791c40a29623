"""Tracking services that a training's measurements are sent to: a module for each. Begin with `feed`."""
