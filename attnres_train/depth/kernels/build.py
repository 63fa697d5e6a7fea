"""Compiles mix.cpp for this processor, once: the library is cached under its source, compiler and processor.

No build step at install: the compiler's flags must fit the machine that runs it, and a package built elsewhere
would not. Where there is no compiler, the caller falls back to plain torch and says so.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("mix.cpp")
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC")
TIMEOUT_SECONDS = 120


class NativeUnavailable(RuntimeError):
    """The library cannot be had here; the message says why."""


def load_library() -> ctypes.CDLL:
    """The compiled library, compiled now if need be (about two seconds).

    Raises NativeUnavailable without a compiler, or if it fails. Several processes may call this at once: each
    writes its own file and renames it, so none sees half a library.
    """
    compiler = _compiler()
    target = _cache_folder() / f"depth-mix-{_key(compiler)}.so"
    try:
        if not target.exists():
            _compile(compiler, target)
        return ctypes.CDLL(str(target))
    except OSError as error:
        raise NativeUnavailable(f"{target}: {error}") from error


def _compiler() -> str:
    names = (os.environ["CXX"],) if os.environ.get("CXX") else COMPILERS
    for name in names:
        if found := shutil.which(name):
            return found
    raise NativeUnavailable(f"no C++ compiler ({', '.join(names)}) on PATH")


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "attnres_train"


def _key(compiler: str) -> str:
    """Changes with anything that the library depends on; a shared home may serve unlike machines."""
    parts = [
        SOURCE.read_bytes(),
        compiler.encode(),
        str(os.stat(compiler).st_mtime_ns).encode(),
        *map(str.encode, FLAGS),
    ]
    return hashlib.sha256(b"\0".join([*parts, _processor()])).hexdigest()[:16]


def _processor() -> bytes:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    told = [line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))]
    return "\n".join(sorted(set(told)) or [platform.processor()]).encode() + platform.machine().encode()


def _compile(compiler: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        built = Path(folder) / target.name
        command = [compiler, *FLAGS, str(SOURCE), "-o", str(built)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise NativeUnavailable(f"`{' '.join(command)}` took more than {TIMEOUT_SECONDS} s") from error
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise NativeUnavailable(f"`{' '.join(command)}` failed: {last}")
        built.replace(target)
