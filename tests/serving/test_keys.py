"""Key files: what is written, what is shown, and how a server follows them."""

import json
import logging
import multiprocessing
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from foundation.errors import UserError
from serving.keys import KeyFile, add_key, read_keys, revoke_key
from serving.keys_command import app
from tests.serving.guard_stub import Clock


def test_file_holds_hashes_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "keys.json"
    secret = add_key(path, "alice", requests_per_minute=5, models=("m",))
    assert secret.startswith("mtnlg-")
    assert len(secret) > 40
    assert secret not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["keys.json"]
    key = read_keys(path).find(secret)
    assert key is not None
    assert (key.name, key.requests_per_minute, key.tokens_per_minute, key.models) == ("alice", 5, None, ("m",))
    assert key.sha256 not in repr(key)
    assert read_keys(path).find(secret + "x") is None
    assert read_keys(path).find("\udcff") is None


def test_names_are_unique_among_active_keys_and_plain(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    add_key(path, "alice")
    with pytest.raises(UserError, match="has a key called 'alice' already"):
        add_key(path, "alice")
    with pytest.raises(UserError, match="--name: a name is"):
        add_key(path, 'a"\n{}')
    revoked = revoke_key(path, "alice")
    assert revoked.revoked is not None
    with pytest.raises(UserError, match="no active key called 'alice'"):
        revoke_key(path, "alice")
    add_key(path, "alice")
    assert [key.revoked is None for key in read_keys(path).keys] == [False, True]
    assert read_keys(path).active() == 1


def _add(path: Path, name: str) -> None:
    add_key(path, name)


def test_commands_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    names = [f"user-{number}" for number in range(6)]
    with multiprocessing.get_context("fork").Pool(3) as pool:
        pool.starmap(_add, [(path, name) for name in names])
    assert sorted(key.name for key in read_keys(path).keys) == names


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is no key file"),
        ("[]", "is no key file"),
        ("{", "is no key file"),
        ('{"format": "other"}', "is no key file: format"),
        ('{"format": "mtnlg-keys", "keys": [{"id": "x"}]}', "is no key file: keys.0"),
        ('{"format": "mtnlg-keys", "passwords": []}', "passwords"),
    ],
)
def test_broken_file_is_refused_in_one_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        KeyFile(path)
    assert "\n" not in str(caught.value)


def test_missing_file_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="mtnlg keys add"):
        KeyFile(tmp_path / "keys.json")


def test_server_follows_changes_once_a_second_and_outlives_a_broken_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = tmp_path / "keys.json", Clock()
    first = add_key(path, "first")
    keys = KeyFile(path, clock)
    second = add_key(path, "second")
    clock.now += 0.9
    assert keys.current().find(second) is None
    clock.now += 0.2
    assert keys.current().find(second) is not None

    path.write_text("{ broken")
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            clock.now += 1.1
            assert keys.current().find(first) is not None
    assert [record.levelno for record in caplog.records].count(logging.ERROR) == 1
    assert "the 2 keys from before stay in force" in caplog.text
    path.unlink()
    clock.now += 1.1
    assert keys.current().find(first) is not None

    third = add_key(path, "third")
    clock.now += 1.1
    assert keys.current().find(third) is not None
    assert keys.current().find(first) is None
    assert first not in caplog.text


def test_commands_print_the_secret_once_and_never_again(tmp_path: Path) -> None:
    path, runner = tmp_path / "keys.json", CliRunner()
    added = runner.invoke(app, ["add", str(path), "--name", "bob", "--tokens-per-minute", "900", "--model", "m"])
    assert added.exit_code == 0, added.output
    secret = added.stdout.strip()
    assert read_keys(path).find(secret) is not None
    listed = runner.invoke(app, ["list", str(path)])
    assert listed.exit_code == 0
    assert all(word in listed.stdout for word in ("bob", "900", "m"))
    stored = json.loads(path.read_text())["keys"][0]
    assert secret not in listed.output
    assert stored["sha256"] not in listed.output
    assert runner.invoke(app, ["revoke", str(path), stored["id"]]).exit_code == 0
    assert read_keys(path).keys[0].revoked is not None
