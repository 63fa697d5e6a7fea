"""What a user writes for a path: `~` and `$NAME` mean what they mean to a shell, and nothing is no path."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Mapping
from os import environ, fsencode
from os.path import expanduser
from pathlib import Path

_LONGEST_NAME_BYTES = 255
_CONTROL = re.compile(r"[\x00-\x1f]")
_VARIABLE = re.compile(r"\$(?:\{([^}]*)\}|([A-Za-z_]\w*))")


def expanded(text: str, environment: Mapping[str, str] = environ) -> str:
    """`text` with its `~`, `~name`, `$NAME` and `${NAME}` replaced.

    Raises ValueError, in words that follow the text, where it is empty or names what is not there.
    """
    if not text.strip():
        raise ValueError("is empty")
    if control := _CONTROL.search(text):
        raise ValueError(f"holds the control character {control[0]!r}")
    if any(len(fsencode(part)) > _LONGEST_NAME_BYTES for part in text.split("/")):
        raise ValueError(f"holds a name of more than {_LONGEST_NAME_BYTES} bytes, the most that a file can have")
    for name in (braced or plain for braced, plain in _VARIABLE.findall(text)):
        if not environment.get(name):
            what = "is empty" if name in environment else "is not set"
            raise ValueError(f"names the environment variable {name!r}, which {what} here")
    home = expanduser(text)
    if home.startswith("~"):
        raise ValueError(f"begins with {text.partition('/')[0]}, and there is no such user here (./~ is a name)")
    return _VARIABLE.sub(lambda found: environment[found[1] or found[2]], home)


def path_argument(text: str) -> Path:
    """The path that a command line names, for argparse."""
    try:
        return Path(expanded(text))
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} {error}") from None
