"""x (floor 6)."""
from dataclasses import dataclass
@dataclass
class Decoding:
    longest: int
    beam: int=5
    lp: float=.75
    es: object=True
    mx: int=256
