"""Score a run on its data, compare runs, write the report page. Begin with `evaluate`."""
