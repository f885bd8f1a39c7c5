"""The command line inside this process."""

import sys

import pytest

import mtnlg


def mtnlg_exit(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Run `mtnlg ARGUMENTS` and return its exit status."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["mtnlg", *map(str, arguments)])
    try:
        mtnlg.main()
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0
