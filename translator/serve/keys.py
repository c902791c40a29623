"""API keys and their limits: requests and characters a minute."""

from __future__ import annotations

import hmac
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from fastapi import HTTPException

from translator.runtime.atomic_files import read_plain
from translator.runtime.errors import UserError

LINE = re.compile(r"(?P<key>\S.*?)(?P<limits>(?:\s+(?:requests|characters)=\S*)*)")


class Allowance:
    """A token bucket: `limit` at once, and as much again over each minute."""

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self.limit, self._clock = limit, clock
        self._left, self._then = float(limit), clock()

    def wait(self, amount: int) -> float:
        """Return the seconds until this amount can be taken."""
        now = self._clock()
        self._left = min(self.limit, self._left + (now - self._then) * self.limit / 60)
        self._then = now
        return max(0.0, amount - self._left) * 60 / self.limit

    def take(self, amount: int) -> None:
        self._left -= amount


class Key:
    """An API key, and what it may ask for in a minute."""

    def __init__(self, secret: str, limits: Mapping[str, int], clock: Callable[[], float] = time.monotonic) -> None:
        """`limits`: of `requests`, of `characters`, or both."""
        self.secret = secret.encode()
        self.most_characters = limits.get("characters", math.inf)  # of one request
        self._allowances = {name: Allowance(limit, clock) for name, limit in limits.items()}

    def charge(self, characters: int) -> None:
        """Count a request. Raises HTTPException (429), and counts nothing, if that goes over a limit."""
        amounts = {"requests": 1, "characters": characters}
        waits = {name: allowance.wait(amounts[name]) for name, allowance in self._allowances.items()}
        for name, seconds in sorted(waits.items(), key=lambda item: -item[1]):
            if seconds:
                limit = f"{self._allowances[name].limit:,} {name} per minute"
                after = str(math.ceil(seconds))
                raise HTTPException(429, f"Slowdown: the limit of this API key is {limit}", {"Retry-After": after})
        for name, allowance in self._allowances.items():
            allowance.take(amounts[name])


NOBODY = Key("", {})  # who asks where no key is needed


class Keys:
    """The keys that the server accepts; without any, none is needed."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._keys = list(keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    @classmethod
    def load(cls, file: str) -> Keys:
        """Read a file of lines such as `KEY requests=60 characters=10000`, both optional; UserError names a wrong line."""
        try:
            lines = read_plain(Path(file)).decode("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise UserError(f"keys={file}: {reason}. Name a text file in UTF-8 with one key a line.") from error
        keys: dict[str, Key] = {}
        for number, line in enumerate(lines, 1):
            if match := LINE.fullmatch(line.strip()):
                words = match["limits"].split()
                limits = dict(word.split("=", 1) for word in words)
                if len(limits) < len(words) or not all(re.fullmatch("[1-9][0-9]{0,11}", limit) for limit in limits.values()):
                    raise UserError(f"keys={file}, line {number}: wrong limit. Write requests=N or characters=N once, "
                                    "whole numbers a minute, behind the key.")
                if match["key"] in keys:
                    raise UserError(f"keys={file}, line {number}: duplicate key. Remove one.")
                keys[match["key"]] = Key(match["key"], {name: int(limit) for name, limit in limits.items()})
        if not keys:
            raise UserError(f"keys={file}: holds no key. Write one a line.")
        return cls(keys.values())

    def of(self, secret: str) -> Key:
        """Return the key that a request brings. Raises HTTPException if one is needed, and it brings none or a wrong one."""
        if not self._keys:
            return NOBODY
        if not secret:
            raise HTTPException(400, "Please contact the server operator to get an API key")
        for key in self._keys:
            if hmac.compare_digest(secret.encode(), key.secret):
                return key
        raise HTTPException(403, "Invalid API key")
