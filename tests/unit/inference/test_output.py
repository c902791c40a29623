"""An output is whole or not there, and an unfinished one is resumed by the same job only."""

from __future__ import annotations

import errno
import gzip
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translator.inference.output import Output
from translator.runtime.errors import UserError

LINES = [f"line {number} {'x' * (number % 7)}\n".encode() for number in range(40)]
JOB = {"input": ["a", 3], "precision": "fp32"}


def write(name: str, lines: list[bytes], *, die: bool = False) -> Output:
    """Write the lines that are missing, and perhaps end before the file is whole."""
    output = Output(name, JOB)
    with suppress(RuntimeError), output.opened() as file:
        file.writelines(lines[output.done :])
        if die:
            raise RuntimeError
    return output


def content(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def test_a_new_folder_for_an_output_is_announced(tmp_path, capsys):
    write(str(tmp_path / "new" / "out.txt"), LINES)
    assert "out.txt: a new folder is made for it" in capsys.readouterr().err
    write(str(tmp_path / "new" / "other.txt"), LINES)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("name", ["out.txt", "out.txt.gz"])
@given(st.data())
def test_cut_anywhere_and_gone_on_with_it_is_the_whole(tmp_path_factory, name, data):
    path = tmp_path_factory.mktemp("out") / name
    partial = path.with_name(name + ".partial")
    write(str(path), LINES[: data.draw(st.integers(0, len(LINES)))], die=True)
    assert not path.exists()
    cut = data.draw(st.integers(0, partial.stat().st_size))
    partial.write_bytes(partial.read_bytes()[:cut])
    write(str(path), LINES)
    assert content(path) == b"".join(LINES)
    assert [file.name for file in path.parent.iterdir()] == [name]


def test_an_output_by_a_link_leaves_the_link(tmp_path):
    (tmp_path / "latest.txt").symlink_to(tmp_path / "out.txt")
    write(str(tmp_path / "latest.txt"), LINES[:5], die=True)
    assert (tmp_path / "out.txt.partial").is_file()
    write(str(tmp_path / "latest.txt"), LINES)
    assert (tmp_path / "latest.txt").is_symlink()
    assert content(tmp_path / "out.txt") == b"".join(LINES)


def test_what_another_job_began_is_not_overwritten(tmp_path):
    path = tmp_path / "out.txt"
    write(str(path), LINES[:1], die=True)
    for job, what in ((JOB | {"precision": "int8"}, "precision"), ({"input": JOB["input"]}, "precision"), (None, "input")):
        with pytest.raises(UserError, match=rf"out\.txt\.partial: begun with another {what}"):
            Output(str(path), job)
    assert (tmp_path / "out.txt.partial").read_bytes() == LINES[0]


@pytest.mark.parametrize("read", ["out.txt", "out.txt.partial", "out.txt.partial.job"])
def test_what_is_read_is_not_written_over(tmp_path, read):
    (tmp_path / read).write_bytes(b"a\n")
    with pytest.raises(UserError, match="is what is read"):
        Output(str(tmp_path / "out.txt"), JOB, read=[None, str(tmp_path / read)])
    assert (tmp_path / read).read_bytes() == b"a\n"


def test_a_full_disk_is_told_with_the_file_and_what_is_kept(tmp_path):
    for job, kept in ((JOB, "kept there, and the same command resumes"), (None, "kept there.")):
        path = tmp_path / f"{bool(job)}.txt"
        try:
            with Output(str(path), job).opened() as file:
                file.write(LINES[0])
                raise OSError(errno.ENOSPC, "No space left on device")
        except UserError as full:
            told = str(full)
        assert told.startswith(f"{path}.partial: cannot be written: No space left on device.")
        assert kept in told
        assert path.with_name(f"{path.name}.partial").read_bytes() == LINES[0]
    with pytest.raises(OSError, match="of the input"), Output(str(tmp_path / "out.txt"), JOB).opened():
        raise OSError(errno.EIO, "of the input")


@pytest.mark.parametrize("left", ["out.txt.partial", "out.txt.partial.job"])
def test_an_unfinished_output_that_is_a_link_is_refused(tmp_path, left):
    (tmp_path / left).symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match="is a link"):
        Output(str(tmp_path / "out.txt"), JOB)


def test_two_processes_do_not_write_one_output(tmp_path):
    path = str(tmp_path / "out.txt")
    with Output(path, JOB).opened(), pytest.raises(UserError, match="another process writes it"):
        Output(path, JOB)


@pytest.mark.parametrize("job", [JOB, None])
def test_an_unfinished_file_of_unknown_origin_is_not_overwritten(tmp_path, job):
    """The user's own, or the first half of a text that came by a pipe."""
    path, partial = tmp_path / "out.txt", tmp_path / "out.txt.partial"
    partial.write_bytes(b"half of")
    with pytest.raises(UserError, match=r"out\.txt\.partial: exists but has no resume record"):
        Output(str(path), job)
    assert partial.read_bytes() == b"half of"


@pytest.mark.parametrize(("left", "content_left"), [(".partial", ""), (".partial.job", "stale\n")])
def test_what_holds_nothing_is_no_unfinished_output(tmp_path, left, content_left):
    """A killed process may leave the description alone, before it has written and when it ends."""
    path = tmp_path / "out.txt"
    (tmp_path / f"out.txt{left}").write_text(content_left)
    write(str(path), LINES)
    assert content(path) == b"".join(LINES)
    assert [file.name for file in tmp_path.iterdir()] == ["out.txt"]
