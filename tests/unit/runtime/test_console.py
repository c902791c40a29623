"""Log lines on a terminal."""

import pytest

from translator.runtime.console import log

LINES = (
    "train      35,271 of 204,995 pairs; dropped: 521 overlap with validation or test, 166,346 missing or not text\n\n"
    f"update 20: validation BLEU 0.04  chrF 1.30  see https://example.org/{100 * 'x'}")


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_long_lines_are_wrapped_between_words_on_a_terminal(columns, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    log(LINES)
    printed = capsys.readouterr().err
    assert printed.split() == LINES.split()
    assert all(len(line) <= columns for line in printed.splitlines() if "xxx" not in line)
    first, *rest = printed.split("\n\n")[0].splitlines()
    assert first.startswith("train      35,271")
    assert all(line.startswith(11 * " ") for line in rest)
    assert bool(rest) == (columns < 200)


def test_lines_in_a_file_or_a_pipe_stay_whole(capsys):
    log(LINES)
    assert capsys.readouterr().err == LINES + "\n"
