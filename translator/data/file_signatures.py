"""Recognise files that hold no UTF-8 text by their first bytes."""

from __future__ import annotations

from translator.runtime.atomic_files import GZIP

CONVERT = "Convert it to UTF-8: iconv -f {0} -t UTF-8 FILE > NEW"
# First bytes of files that hold no UTF-8 text: what they are, and the remedy.
SIGNATURES = {
    GZIP: "is packed by gzip. Rename it to end in .gz",
    b"PAR1\x15": "is Parquet. Rename it to end in .parquet",
    b"PK\x03\x04": "is a .zip archive (so are Excel files). Unpack it, or export it as .tsv",
    **{b"BZh%d1AY&SY" % level: "is packed by bzip2. Unpack it" for level in range(1, 10)},
    b"\xfd7zXZ\0": "is packed by xz. Unpack it",
    b"\x28\xb5\x2f\xfd": "is packed by zstd. Unpack it",
    b"7z\xbc\xaf": "is a 7-Zip archive. Unpack it",
    b"ARROW1\0\0": "is an Arrow file. Save it as .parquet",
    b"\xff\xfe\0\0": f"is UTF-32. {CONVERT.format('UTF-32')}",
    b"\xff\xfe": f"is UTF-16. {CONVERT.format('UTF-16')}",
    b"\xfe\xff": f"is UTF-16. {CONVERT.format('UTF-16')}",
}
# Fewest and most bytes from which UTF-16 without a byte order mark is recognised.
LEAST_HEAD, HEAD = 16, 1000


def other_content(head: bytes) -> str:
    """Return what the first bytes of a file show it to be instead of UTF-8 text, with the remedy; empty if it may be text."""
    for signature, words in SIGNATURES.items():
        if head.startswith(signature):
            return words
    for order, zeros in (("LE", head[1:HEAD:2]), ("BE", head[0:HEAD:2])):  # next to each Latin letter
        if len(head) >= LEAST_HEAD and zeros.count(0) > 0.7 * len(zeros) and b"\0\0" not in head[:HEAD]:
            return f"is UTF-16. {CONVERT.format('UTF-16' + order)}"
    return ""
