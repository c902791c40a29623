"""Message catalogues of gettext (.po)."""

from __future__ import annotations

from collections.abc import Sequence

import polib

from translator.serve.documents.contents import Contents, decode


def parse_po(content: bytes, most: int) -> Contents:
    """Parse a catalogue: the messages without a translation are its texts, all others stay.

    The new translations are marked fuzzy, gettext's mark of a translation to review.
    """
    text, mark = decode(content, most)
    try:
        catalogue = polib.pofile(text + "\n")  # without a line break polib takes it for the path of a file to read
    except OSError as error:
        raise ValueError(f"not a catalogue: {error}") from error
    entries = [
        entry for entry in catalogue
        if not entry.obsolete and not entry.msgstr and not any(entry.msgstr_plural.values())]

    def write(translations: Sequence[str]) -> bytes:
        left = iter(translations)
        for entry in entries:
            singular = next(left)
            if entry.msgid_plural:
                plural, forms = next(left), list(entry.msgstr_plural) or [0, 1]
                entry.msgstr_plural = {form: singular if form == 0 and len(forms) > 1 else plural for form in forms}
            else:
                entry.msgstr = singular
            entry.fuzzy = True
        return mark + str(catalogue).encode()

    return Contents([part for entry in entries for part in (entry.msgid, entry.msgid_plural) if part], write)
