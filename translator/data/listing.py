"""The corpora that can be downloaded by name, as text: what `make corpora` prints."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import DatasetCard

from translator.config.commands import CorporaConfig
from translator.data import mtdata_index, opus
from translator.runtime.console import log, require_stdout
from translator.runtime.errors import UserError
from translator.runtime.typed import typed


def list_corpora(config: CorporaConfig) -> None:
    """Print the corpora of a pair of languages, the largest first; lines have at most 80 characters."""
    require_stdout("the list", "Open it, or redirect it to a file.")
    pair, downloads = (config.source, config.target), Path(config.downloads)
    rows = [row for row in opus.list_pair(pair, downloads) if row["latest"] == "True"]
    ids = mtdata_index.list_pair(*pair)
    if not rows and not ids:
        raise UserError(f"source={pair[0]} target={pair[1]}: no corpus has these languages. Write codes such as en and de.")
    print(f"{'name at OPUS':32}{'pairs':>14}{'MB':>11}  licence")
    for row in sorted(rows, key=lambda row: -row["size"]):
        pairs, name = row["alignment_pairs"], row["corpus"]
        cards = sorted(downloads.glob(f"{name}/*/{'-'.join(sorted(pair))}/README.md"))
        licence = DatasetCard.load(cards[-1]).data.license_name if cards else ""
        print(f"{name:32}{f'{pairs:,}' if pairs else '?':>14}{row['size'] / 1000:>11,.1f}  {licence[:21]}".rstrip())
    print("\nid of mtdata, which knows no sizes", *ids, sep="\n")
    log(f"{len(rows) + len(ids)} corpora. The card of a downloaded one has its licence. To train on one: "
        f"`{typed('train', **{'data': 'opus', 'data.corpus': ..., 'data.source': pair[0], 'data.target': pair[1]})}`")
