"""What a file holds: texts, and how to write the file with translations in their places."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from translator.data.text_files import other_content
from translator.serve.service import Text


@dataclass(frozen=True)
class Contents:
    """A parsed file."""

    texts: Sequence[Text]
    write: Callable[[Sequence[str]], bytes]  # the file, with a translation of each text; once only
    warnings: tuple[str, ...] = ()

    @property
    def plain(self) -> list[str]:
        """The texts without tags."""
        return [text if isinstance(text, str) else text.plain for text in self.texts]


def require_size(size: int, most: int) -> None:
    """Raise ValueError if a file has too many characters; before it is parsed, which takes longer than counting them."""
    if size > most:
        raise ValueError(f"request ({size}) exceeds text limit ({most})")


def decode(content: bytes, most: int) -> tuple[str, bytes]:
    """Return UTF-8 text, and the byte order mark before it. Raises ValueError for other bytes, or too many characters."""
    if problem := other_content(content):
        raise ValueError(problem)
    mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
    try:
        text = content.removeprefix(mark).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1:,}. Convert it to UTF-8") from error
    require_size(len(text), most)
    return text, mark
