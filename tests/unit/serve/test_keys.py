"""Keys may ask for as much as their line says."""

from __future__ import annotations

import pytest

from translator.runtime.errors import UserError

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from fastapi import HTTPException

from translator.serve.keys import Key, Keys


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_limit_fills_up_again_over_a_minute():
    clock = Clock()
    key = Key("k", {"requests": 2, "characters": 100}, clock)
    key.charge(60)
    with pytest.raises(HTTPException, match="100 characters per minute") as refused:
        key.charge(60)
    assert refused.value.status_code == 429
    assert refused.value.headers == {"Retry-After": "12"}
    clock.now = 12
    key.charge(60)
    with pytest.raises(HTTPException, match="2 requests per minute") as refused:
        key.charge(0)
    clock.now += int(refused.value.headers["Retry-After"])
    key.charge(0)
    clock.now += 1000
    for _ in range(2):  # no more than a minute's worth is saved up
        key.charge(0)
    with pytest.raises(HTTPException, match="2 requests per minute"):
        key.charge(0)


def test_keys_are_read_with_their_limits(tmp_path):
    (tmp_path / "keys").write_text("\nplain\n with spaces  requests=60 \nboth characters=9 requests=1\n", encoding="utf-8-sig")
    keys = Keys.load(str(tmp_path / "keys"))
    keys.of("plain").charge(10**9)
    keys.of("with spaces").charge(10**9)
    assert keys.of("both").most_characters == 9
    for wrong, status in (("", 400), ("Plain", 403), ("both characters=9", 403)):
        with pytest.raises(HTTPException) as refused:
            keys.of(wrong)
        assert refused.value.status_code == status


@pytest.mark.parametrize(("text", "message"), [
    ("", "holds no key"), ("\n \n", "holds no key"), ("a requests=many", "line 1: wrong limit"),
    ("a\nb characters=0", "line 2: wrong limit"),
    ("a characters=5 characters=6", "line 1: wrong limit"), ("a requests=1.5", "wrong limit"),
    ("a\nb\na requests=1", "line 3: duplicate")])
def test_a_wrong_line_of_keys_is_named(tmp_path, text, message):
    (tmp_path / "keys").write_text(text)
    with pytest.raises(UserError, match=message):
        Keys.load(str(tmp_path / "keys"))


def test_a_file_of_keys_that_cannot_be_read_is_named_once(tmp_path):
    (tmp_path / "latin").write_bytes(b"\xe9")
    for name, reason in (("missing", "no such file, or not a regular one"), ("latin", "not UTF-8")):
        file = tmp_path / name
        with pytest.raises(UserError, match=f"^keys={file}: {reason}. Name a text file in UTF-8 with one key a line.$"):
            Keys.load(str(file))
