"""Translated files in memory, until they are downloaded or too old."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass

MOST_FILES = 32  # of the largest size allowed, that wait together


class NoRoom(Exception):
    """Too many translated files wait for their download."""


@dataclass(frozen=True)
class File:
    """A translated file."""

    name: str
    content: bytes


class Downloads:
    """Files by an address that cannot be guessed, each for one download. To use from one event loop."""

    def __init__(self, max_bytes: int, seconds: float) -> None:
        """`max_bytes`: of all files; `seconds`: that a file is kept."""
        self._max_bytes, self._seconds = max_bytes, seconds
        self._files: dict[str, File] = {}

    def add(self, file: File) -> str:
        """Keep a file, and return the token that its address holds. Raises NoRoom."""
        if sum(len(other.content) for other in self._files.values()) + len(file.content) > self._max_bytes:
            raise NoRoom
        token = secrets.token_urlsafe()
        self._files[token] = file
        asyncio.get_running_loop().call_later(self._seconds, self._files.pop, token, None)
        return token

    def take(self, token: str) -> File | None:
        """Return a file, which is not kept any longer; None for an unknown token."""
        return self._files.pop(token, None)
