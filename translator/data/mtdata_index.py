"""The index of mtdata (Gowda et al. 2021, https://aclanthology.org/2021.acl-demo.37/): corpora of many servers by their ids.

Its own downloads are not used: they cannot be resumed, and do without a server's certificate where it is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from translator.data.corpus_folder import Entry, nearest, not_installed
from translator.runtime.errors import UserError, one_line

ON_HUB = "hfds"  # the kind of an entry that `datasets` would load


def sides(name: str, source: str, target: str) -> tuple[str, str]:
    """Return the languages of an id, in its codes, that are source and target. UserError where the id has others."""
    with _quiet():
        from mtdata.iso.bcp47 import BCP47Tag, bcp47
    first, second = name.split("-")[-2:]
    try:
        fits, swapped = BCP47Tag.check_compat_swap((bcp47(source), bcp47(target)), (bcp47(first), bcp47(second)))
    except Exception:  # one is no code
        fits = False
    if not fits:
        raise UserError(f"data.corpus={name}: has {first} and {second}, not {source} and {target}. Set data.source and target.")
    return (second, first) if swapped else (first, second)


def find(name: str) -> Entry:
    """Return the entry of an id. UserError with the nearest one for an unknown id."""
    with _entries() as entries:
        found = next((entry for entry in entries if str(entry.did) == name), None)
        if found is None:
            languages = name.split("-")[-2:]
            known = [str(entry.did) for entry in entries if set(map(str, entry.did.langs)) == set(languages)]
            raise UserError(nearest(name, known, languages))
    if found.ext == ON_HUB:
        raise UserError(f"data.corpus={name}: is a dataset on the hub. Set data.path={found.meta['orig_id']}.")
    from mtdata.index import ReferenceDb

    papers = "\n".join(ReferenceDb().get_bibtex(key) for key in found.cite or ())
    several = isinstance(found.url, tuple | list)
    files = {url.rpartition("/")[2]: url for url in found.url} if several else {found.filename: found.url}
    return Entry(name, name, files, partial(_unpack, found), f"```bibtex\n{papers}\n```" if papers else "mtdata names none.")


def list_pair(source: str, target: str) -> list[str]:
    """Return the ids of the corpora with a pair of languages, except those at OPUS and on the hub."""
    with _entries() as entries:
        from mtdata.index import bitext_lang_match
        from mtdata.iso.bcp47 import bcp47

        try:
            pair = bcp47(source), bcp47(target)
        except ValueError:  # no code of a language
            return []
        return sorted(str(entry.did) for entry in entries if len(entry.did.langs) == 2 and entry.did.group != "OPUS"
                      and entry.ext != ON_HUB and bitext_lang_match(pair, entry.did.langs))


@contextmanager
def _entries() -> Iterator[list[Any]]:
    """Yield all entries of the index, which takes 400 MB, and release them."""
    with _quiet():
        from mtdata import index
    try:
        yield list(index.Index.get_instance().get_entries())
    finally:
        index.Index.obj = index.INDEX = None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep an import of mtdata from setting up logging for the whole process."""
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)
    try:
        yield
    except ImportError as error:
        raise not_installed(error) from error
    finally:
        logging.getLogger().removeHandler(handler)


def _unpack(entry: Any, archives: Sequence[Path], folder: Path) -> str:
    """Write the segments that mtdata reads, from files of any kind, a line each. There is no README."""
    from mtdata.cache import Cache
    from mtdata.parser import Parser

    paths = Cache(folder).get_local_in_paths(archives[0], entry) if entry.is_archive else list(archives)
    first, second = (folder / f"{language}.txt" for language in entry.did.langs)
    with first.open("w", encoding="utf-8") as firsts, second.open("w", encoding="utf-8") as seconds:
        for row in Parser(paths, ext=entry.in_ext or entry.ext, ent=entry).read_segs(show_pbar=False):
            firsts.write(f"{one_line(row[0] or '')}\n")
            seconds.write(f"{one_line(row[1] or '')}\n")
    return ""
