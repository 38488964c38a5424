"""What agents did, for other programs, and races again from their record: as a shell sees it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from race.testing import Script, ScriptedModel
from tests.cli.test_cli import RACE_FILE, Shell
from tests.racing import project

SCRIPTS = {
    "half": Script(("date +%N; echo 50 > value.txt", "sleep 2", "sh bench.sh"), "Half of it."),
    "none": Script(("ls",), "Nothing to do."),
}


@pytest.fixture
def shell(tmp_path: Path, home: Path) -> Shell:
    """A shell in which a race with two models has been run; their server is gone."""
    project(tmp_path)
    made = Shell(tmp_path, home)
    with ScriptedModel(SCRIPTS, price=(1e-6, 1e-6)) as server:
        lines = [f'[[entries]]\nname = "{m}"\nmodel = "{m}"\nbase_url = "{server.url}"\n' for m in SCRIPTS]
        made.write(RACE_FILE + "".join(line + 'api_key_env = "A_KEY"\n' for line in lines))
        made.environment["A_KEY"] = "sk-planted-4711"
        status, _, err = made.run("run", "race.toml")
        assert status == 0, err
    del made.environment["A_KEY"]
    return made


def verdict(shell: Shell, *call: str) -> dict[str, Any]:
    status, out, err = shell.run(*call, "--json")
    assert status == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def result(found: dict[str, Any]) -> list[Any]:
    keys = ("name", "state", "outcome", "message", "usage", "steps")
    return [[a[k] for k in keys] + [Path(a["patch"]).read_text()] for a in found["attempts"]]


def test_a_race_is_replayed_and_what_was_not_recorded_is_an_error(shell: Shell) -> None:
    first = verdict(shell, "show", "last")
    text = (shell.folder / "race.toml").read_text()
    # It is the race file as it was that counts, whatever has become of it since.
    other = shell.folder / "other.toml"
    other.write_text(text.replace("Make it less.", "Make it more."))
    (shell.folder / "race.toml").unlink()
    again = verdict(shell, "replay", first["race"])
    assert again["race"] != first["race"]
    assert (again["winner"], result(again)) == (first["winner"], result(first))
    status, out, _ = shell.run("replay", first["race"], "--file", str(other), "--json")
    assert status == 1
    for attempt in json.loads(out)["attempts"]:
        assert f"holds no answer to request 1 of '{attempt['name']}'" in attempt["reasons"][0]
    # A replay can be replayed, since it is recorded as well.
    assert result(verdict(shell, "replay", again["race"])) == result(first)


@pytest.mark.long
def test_a_replay_that_was_killed_stays_a_replay(shell: Shell) -> None:
    first = verdict(shell, "show", "last")
    process = shell.start("replay", first["race"])
    end = time.monotonic() + 40
    while time.monotonic() < end and "replay" not in {s["labels"].get("role") for s in shell.sandboxes()[2:]}:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=10)
    # The key is not there: were a model to be asked, this would be refused before anything starts.
    again = verdict(shell, "resume", "last")
    assert again["race"] != first["race"]
    assert result(again) == result(first)


@pytest.mark.long
def test_the_rounds_of_a_race_are_replayed_with_its_judge(tmp_path: Path, home: Path) -> None:
    project(tmp_path)
    shell = Shell(tmp_path, home)
    scripts = {
        "halves": Script(("echo $(($(cat value.txt) / 2)) > value.txt",), "Half of it."),
        "judge": Script(final='{"refuse": false, "where": "", "reason": "honest"}'),
    }
    with ScriptedModel(scripts) as server:
        given = f'base_url = "{server.url}"\napi_key_env = ""\n'
        entry = f'[[entries]]\nname = "a"\nmodel = "halves"\n{given}'
        judge = f'[[scorers]]\nuse = "judge"\nmodel = "judge"\n{given}max_retries = 0\n'
        shell.write("rounds = 2\n" + RACE_FILE + judge + entry)
        first = verdict(shell, "run", "race.toml")
        asked = len(server.requests)
    assert [r["winner"] for r in first["lineage"]] == ["a", "a"]
    assert asked == 2 * (2 + 3)
    again = verdict(shell, "replay", first["race"])
    assert [r["winner"] for r in again["lineage"]] == ["a", "a"]
    assert result(again) == result(first)
    gates = [v["attempts"][0]["gates"]["judge"] for v in (first, again)]
    assert gates[0] == gates[1]
    assert gates[0]["reason"] == "0 of 3 judges refused it"


def test_without_a_record_there_is_nothing_to_replay(tmp_path: Path, home: Path) -> None:
    project(tmp_path)
    shell = Shell(tmp_path, home)
    shell.write(RACE_FILE + '[[entries]]\nname = "a"\nagent = "script"\ncommands = ["echo 50 > value.txt"]\n')
    assert shell.run("run", "race.toml")[0] == 0
    status, out, err = shell.run("replay", "last")
    assert (status, out) == (2, "")
    assert "no model was asked" in err
    assert shell.run("replay", "nothing-like-it")[0] == 2


def test_what_agents_did_is_exported(shell: Shell, tmp_path: Path) -> None:
    status, out, err = shell.run("export", "last")
    assert status == 0, err
    documents = json.loads(out)
    assert [d["schema_version"] for d in documents] == ["ATIF-v1.7"] * 2
    status, out, _ = shell.run("export", "last", "--attempt", "half")
    assert json.loads(out)["agent"]["model_name"] == "half"
    status, out, _ = shell.run("export", "last", "--format", "jsonl")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [(line["attempt"], line["number"]) for line in lines] == [
        *(("half", n) for n in range(1, 5)),
        *(("none", n) for n in range(1, 3)),
    ]
    status, out, _ = shell.run("export", "last", "--format", "jsonl", "--to", "out")
    assert (status, out.split()) == (0, ["out/half.jsonl", "out/none.jsonl"])
    assert json.loads((tmp_path / "out" / "half.jsonl").read_text().splitlines()[0])["commands"]
    status, out, err = shell.run("export", "last", "--attempt", "nobody")
    assert (status, out) == (2, "")
    assert "no trajectory of 'nobody' was kept; there are: half, none" in err


def test_spans_are_sent_to_a_collector(shell: Shell) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="OpenTelemetry is an extra")
    got: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - likewise
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        shell.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
        status, _, err = shell.run("export", "last", "--format", "otel")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert status == 0, err
    assert "sent 12 spans" in err  # two agents with six turns, and four commands
    assert {path for path, _ in got} == {"/v1/traces"}
    body = b"".join(b for _, b in got)
    assert b"gen_ai.operation.name" in body
    assert b"sk-planted-4711" not in body
