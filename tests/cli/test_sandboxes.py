"""``race sandbox`` as a shell sees it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from race.cli.app import run
from race.cli.sandbox_calls import network_of
from race.cli.sandbox_creation import cores_of
from race.cli.sandbox_processes import signal_of
from race.errors import SpecError
from race.forwarding import ports_of
from tests.conftest import delete_all


class Calls:
    """Runs the command in this process, or in one of its own that can be interrupted."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def run(self, *arguments: str) -> tuple[int, str, str]:
        status = run(["sandbox", *arguments])
        out, err = self._capsys.readouterr()
        return status, out, err

    def start(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "race", "sandbox", *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One state folder for all tests here, so that the host image is prepared once."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture
def shell(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Calls]:
    """Calls whose sandboxes are deleted when the test is over."""
    monkeypatch.setenv("RACE_HOME", str(state))
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        yield Calls(capsys)

    anyio.run(delete_all, state)


def told(shell: Calls, *arguments: str) -> Any:
    """The JSON document that a command prints."""
    status, out, err = shell.run(*arguments, "--json")
    assert status == 0, err
    return json.loads(out)


def test_a_sandbox_from_its_making_to_its_end(shell: Calls) -> None:
    options = (
        "--lifetime",
        "1000",
        "--label",
        "a=b=c",
        "--env",
        "X=1",
        "--memory",
        "1G",
        "--network",
        "a.org,b.org",
    )
    (made,) = told(shell, "create", "one", *options)
    assert (made["name"], made["state"], made["network"], made["labels"]) == (
        "one",
        "running",
        ["a.org", "b.org"],
        {"a": "b=c"},
    )
    status, out, err = shell.run("fork", "one", "two", "one", "three", "--json")
    assert status == 1
    assert "already a sandbox 'one'" in err
    document = json.loads(out)
    assert [each["name"] for each in document["forks"]] == ["two", "three"]
    assert [each["name"] for each in document["failed"]] == ["one"]
    assert told(shell, "network", "two", "none")[0]["network"] == "none"
    assert told(shell, "freeze", "two", "three")[1]["state"] == "frozen"
    assert told(shell, "thaw", "two", "three")[0]["state"] == "running"
    assert told(shell, "stop", "three")[0]["state"] == "stopped"
    assert told(shell, "start", "three")[0]["state"] == "running"
    shown = told(shell, "show", "two")
    assert (shown["ancestors"], shown["processes"]) == (["one"], [])
    assert shown["ends"] > shown["created"] + 900
    _, text, _ = shell.run("show", "two")
    assert "forked from one\n" in text
    assert "ends in     16 min" in text
    assert "ends in" in shell.run("ls")[1]
    status, out, err = shell.run("rm", "one", "none", "two", "--json")
    assert (status, json.loads(out)["removed"]) == (1, ["two"])
    assert "'three'" in err
    assert "no sandbox 'none'" in err


def test_a_sandbox_moves_in_a_file(shell: Calls, tmp_path: Path) -> None:
    told(shell, "create", "one", "--label", "a=b")
    assert shell.run("exec", "one", "echo moved >/x")[0] == 0
    file = tmp_path / "file"
    assert "stop it first" in shell.run("export", "one", str(file))[2]
    assert not file.exists()
    told(shell, "stop", "one")
    written = told(shell, "export", "one", str(file))
    assert written == {"name": "one", "file": str(file), "bytes": file.stat().st_size}
    assert "already something" in shell.run("export", "one", str(file))[2]
    status, _, err = shell.run("import", str(file))
    assert status != 0
    assert "already a sandbox 'one'" in err
    imported = told(shell, "import", str(file), "--name", "two")
    assert (imported["name"], imported["state"], imported["labels"]) == ("two", "stopped", {"a": "b"})
    told(shell, "start", "two")
    assert shell.run("exec", "two", "cat /x")[1] == "moved\n"
    assert shell.run("import", str(tmp_path / "none"))[0] == 2
    file.write_bytes(file.read_bytes()[:-12_000])
    status, _, err = shell.run("import", str(file), "--name", "three")
    assert status != 0
    assert "cut off" in err


def test_commands_and_named_processes(shell: Calls) -> None:
    told(shell, "create", "one")
    status, out, _ = shell.run("exec", "--json", "--env", "X=y", "one", "echo $X; echo e >&2; exit 4")
    document = json.loads(out)
    assert (status, document["exit_code"], document["stdout"], document["stderr"]) == (4, 4, "y\n", "e\n")
    status, out, err = shell.run(
        "spawn", "--json", "one", "loop", "while read x; do echo got $x; done; exit 6"
    )
    assert status == 0, err
    assert json.loads(out)["state"] == "running"
    status, out, _ = shell.run("exec", "--detach", "--name", "other", "one", "sleep", "1000")
    assert (status, out) == (0, "other\n")
    assert [each["name"] for each in told(shell, "ps", "one")] == ["loop", "other"]
    assert "sleep 1000" in shell.run("ps", "one")[1]
    attached = shell.start("attach", "one", "loop", stdin=subprocess.PIPE)
    out, _ = attached.communicate("a\nb\n", timeout=20)
    assert (attached.returncode, out) == (6, "got a\ngot b\n")
    status, out, _ = shell.run("attach", "one", "loop", "--from", "6", "--json")
    assert (status, json.loads(out)["output"]) == (6, "got b\n")
    assert shell.run("kill", "one", "other", "--signal", "kill")[0] == 0
    assert shell.run("attach", "one", "other")[0] == 128 + 9
    assert shell.run("attach", "one", "none")[0] == 1


def test_an_interrupt_detaches_and_does_not_end_the_process(shell: Calls) -> None:
    told(shell, "create", "one")
    shell.run("spawn", "one", "tick", "while :; do echo tick; sleep 0.02; done")
    following = shell.start("attach", "one", "tick")
    assert following.stdout is not None
    assert following.stdout.readline() == "tick\n"
    following.send_signal(signal.SIGINT)
    _, err = following.communicate(timeout=20)
    assert following.returncode == 130
    assert "tick goes on" in err
    assert told(shell, "ps", "one")[0]["state"] == "running"


_SERVER = (
    "import socket; s=socket.create_server(('127.0.0.1', 8080)); print('up', flush=True)\n"
    "while True: c=s.accept()[0]; c.sendall(c.recv(99).upper()); c.close()"
)


def test_ports_are_listed_and_forwarded_to(shell: Calls) -> None:
    told(shell, "create", "one")
    shell.run("spawn", "one", "web", "python3", "-c", _SERVER)
    attached = shell.start("attach", "--no-input", "one", "web")
    assert attached.stdout is not None
    assert attached.stdout.readline() == "up\n"
    attached.send_signal(signal.SIGINT)
    attached.communicate(timeout=20)
    assert told(shell, "ports", "one") == {"ports": [8080]}
    forwarding = shell.start("ports", "one", "0:8080", "0:9", "--json")
    assert forwarding.stdout is not None
    text = ""
    while not text.endswith("\n}\n"):
        text += forwarding.stdout.readline()
    web, nothing = json.loads(text)["forwarded"]
    assert (web["inside"], nothing["inside"]) == (8080, 9)
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", web["port"]), 20) as connection:
            connection.sendall(b"hello")
            assert connection.recv(99) == b"HELLO"
            assert connection.recv(99) == b""
    with socket.create_connection(("127.0.0.1", nothing["port"]), 20) as connection:
        assert connection.recv(99) == b""
    forwarding.send_signal(signal.SIGINT)
    _, err = forwarding.communicate(timeout=20)
    assert "port 9 of the sandbox 'one'" in err
    assert forwarding.returncode == 130
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, _, err = shell.run("ports", "one", f"{taken.getsockname()[1]}:8080")
    assert status == 3
    assert "name another one" in err


@pytest.mark.parametrize(
    "call",
    [
        ["create", "x", "--memory", "many"],
        ["create", "x", "--label", "a"],
        ["create", "x", "--cores", "3-1"],
        ["create", "x", "--network", "none,a.org"],
        ["ports", "x", "http"],
        ["ports", "x", "70000"],
        ["kill", "x", "y", "--signal", "NONE"],
        ["exec", "--name", "p", "x", "true"],
    ],
)
def test_what_cannot_be_meant_is_refused(shell: Calls, call: list[str]) -> None:
    status, out, err = shell.run(*call)
    assert (status, out) == (2, "")
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1


def test_words_mean_what_they_say() -> None:
    assert network_of(["full"]) == "full"
    assert network_of(["a.org,b.org", "c.org"]) == ("a.org", "b.org", "c.org")
    assert cores_of("3,0-1") == (0, 1, 3)
    assert signal_of("sigint") == signal_of("INT") == signal_of("2") == signal.SIGINT
    with pytest.raises(SpecError):
        network_of([])
    table = "sl local rem st\n 0: 0100007F:1F90 00000000:0000 0A 0\n 1: 0100007F:1F91 00000000:0000 01 0\n"
    assert ports_of(f"{table}junk\n 0: x 0 0A\n") == [0x1F90]
