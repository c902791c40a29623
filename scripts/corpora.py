"""List the corpora of a pair of languages: `python scripts/corpora.py source=en target=de`. Options: conf/corpora.yaml."""

from translator.cli import run

if __name__ == "__main__":
    run("corpora")
