"""Options as frozen dataclasses that pydantic checks; conf/ has their meaning and defaults. Begin with `options`."""
