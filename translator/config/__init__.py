"""Options as frozen dataclasses that pydantic checks; their meaning and defaults are in conf/.

Begin with `options`.
"""
