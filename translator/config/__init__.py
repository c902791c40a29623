"""Options as frozen, checked dataclasses; their meaning and defaults are in conf/.

Begin with `options`.
"""
