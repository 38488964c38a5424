"""Commands measured against each other without sandboxes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from race.cli.app import run as race_command
from race.comparison import Method, compare, named_apart
from race.errors import SpecError
from race.finals import Rule
from race.lane import lane_file, machine_lane
from race.stopwatch import stopwatch, wait_of

QUICK = Rule.of("quick", max_rounds=3)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.anyio
async def test_the_faster_command_wins() -> None:
    samples: list[str] = []
    verdict = await compare(
        "sleep 0.08",
        ["sleep 0.02", "sleep 0.05", "exit 3", "sleep 0.02"],
        rule=Rule.of("standard", max_rounds=5),
        on_sample=lambda name, _number, _sample: samples.append(name),
    )
    assert verdict.status == "won"
    assert verdict.winner in {"sleep 0.02", "sleep 0.02 (2)"}
    first, second, fails, again = verdict.attempts
    assert first.speedup is not None
    assert 2 < first.speedup.vs_base < 4.2
    winner = verdict.attempt(verdict.winner)
    assert winner is not None
    assert winner.confirmed is not None
    assert 2 < winner.confirmed.vs_base < 4.2
    assert [a.confirmed for a in verdict.attempts if a is not winner] == [None] * 3
    assert second.speedup is not None
    assert second.speedup.vs_base < first.speedup.vs_base
    assert fails.state == "ineligible"
    assert "'exit 3' failed (exit status 3)" in fails.reasons[0]
    assert again.metrics["time"].unit == "s"
    base = verdict.base.metrics["time"]
    assert base.low is not None
    assert base.high is not None
    assert base.level is not None
    assert base.low < base.level < base.high
    assert len(base.circumstances) == len(base.samples) == len(base.undisturbed)
    assert all(0.08 <= c.seconds < 1 and c.load is not None for c in base.circumstances)
    assert set(samples) == {"base", "sleep 0.02", "sleep 0.05", "sleep 0.02 (2)"}


@pytest.mark.anyio
async def test_other_measures() -> None:
    big = f"{sys.executable} -S -c 'x = bytearray(60_000_000)'"
    memory = await compare(big, ["true"], rule=QUICK, method=Method("memory"))
    assert memory.winner == "true"
    assert memory.base.metrics["memory"].value > 60_000_000
    printed = await compare(
        "echo 10", ["echo 30", "echo nan"], rule=QUICK, method=Method("output", unit="points", goal="max")
    )
    assert printed.winner == "echo 30"
    assert printed.attempts[0].speedup is not None
    assert printed.attempts[0].speedup.vs_base == pytest.approx(3)
    assert "not exactly one number" in printed.attempts[1].reasons[0]
    busy = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done"
    cpu = await compare(busy, ["sleep 0.2"], rule=QUICK, method=Method("cpu"))
    assert cpu.winner == "sleep 0.2"


@pytest.mark.anyio
async def test_a_base_that_fails() -> None:
    with pytest.raises(SpecError, match=r"the base 'base' has no number: 'exit 4' failed \(exit status 4\)"):
        await compare("exit 4", ["true"], rule=QUICK)


@pytest.mark.anyio
async def test_a_time_out_ends_everything_that_was_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = f"setsid sh -c 'echo $$ >>{pids}; sleep 60' & (sleep 60 & echo $! >>{pids}) & echo $$ >>{pids}; sleep 60"
    async with stopwatch() as watch:
        timing = await watch.time(program, timeout=0.4)
        assert timing.exit_code is None
        assert 0.4 <= timing.seconds < 2
        started = [int(line) for line in pids.read_text().split()]
        assert len(started) == 3
        assert not any(map(alive, started))
        left = await watch.time(
            f"setsid sh -c 'echo $$ >{pids}; exec sleep 60' >/dev/null & sleep 0.1", timeout=5
        )
        assert left.exit_code == 0
        assert not alive(int(pids.read_text()))


@pytest.mark.anyio
async def test_nothing_is_left_when_the_one_who_asked_gives_up(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with anyio.move_on_after(0.4):
        async with stopwatch() as watch:
            await watch.time(f"echo $$ >{file}; exec sleep 60", timeout=60)
    assert not alive(int(file.read_text()))


def test_nothing_is_left_when_race_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    command = [sys.executable, "-m", "race", "measure", "--base", f"echo $$ >{file}; exec sleep 60", "true"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 20
        while not file.exists() or not file.read_text().strip():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.kill()
    pid = int(file.read_text())
    while alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.anyio
async def test_waits_of_a_command_and_of_what_it_starts() -> None:
    # Six that want the processor where there is one: each waits for most of its time.
    one = f"{sys.executable} -S -c 'sum(range(4_000_000))'"
    cpu = [min(os.sched_getaffinity(0))]
    async with stopwatch() as watch:
        crowd = await watch.time(f"for i in 1 2 3 4 5 6; do {one} & done; wait", timeout=30, cpus=cpu)
    assert crowd.wait > 0.4
    assert crowd.cpu_seconds > 0.1


@pytest.mark.parametrize(
    ("seconds", "ran", "waited", "share"),
    [(1, 1, 0, 0), (2, 1, 1, 0.5), (4, 1, 1, 0.25), (1, 3, 1, 0.25), (1, 0, 0, 0), (1, 0.0, 5, 0.95)],
)
def test_wait_shares(seconds: float, ran: float, waited: float, share: float) -> None:
    assert wait_of(seconds, ran, waited) == share


def test_names_of_commands() -> None:
    assert named_apart(["a", "a", "base", "a  b\nc"]) == {
        "a": "a",
        "a (2)": "a",
        "base (2)": "base",
        "a b c": "a  b\nc",
    }


@pytest.mark.anyio
async def test_one_measures_and_the_other_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACE_LANE", str(tmp_path / "lane"))
    assert lane_file() == tmp_path / "lane"
    order: list[str] = []
    waits: list[str] = []

    async def hold(name: str, seconds: float) -> None:
        async with machine_lane(lambda: waits.append(name)):
            order.append(f"{name} in")
            await anyio.sleep(seconds)
            order.append(f"{name} out")

    async with anyio.create_task_group() as group:
        group.start_soon(hold, "first", 0.2)
        await anyio.sleep(0.05)
        group.start_soon(hold, "second", 0)
    assert order == ["first in", "first out", "second in", "second out"]
    assert waits == ["second"]


def test_the_lane_is_of_the_machine_and_not_of_the_state_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RACE_LANE")
    place = lane_file()
    monkeypatch.setenv("RACE_HOME", "/elsewhere")
    assert lane_file() == place
    assert place.parent.stat().st_uid == os.getuid()


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "a.svg"
    arguments = ["measure", "--base", "sleep 0.3", "sleep 0.01", "--mode", "quick", "--svg", str(picture)]
    assert race_command(arguments) == 0
    shown = capsys.readouterr()
    assert "sleep 0.01 wins: " in shown.out
    assert "┃" in shown.out
    assert "race: warm-up: " in shown.err
    assert picture.read_text().startswith("<svg ")
    assert race_command(["measure", "--base", "true", "false", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["winner"] is None
    assert document["decided_by"] == "no command could be measured"
    assert race_command(["measure", "--base", "true", "true", "--cpus", "x"]) == 2
    assert "--cpus: 'x' is no list of processors" in capsys.readouterr().err
    assert race_command(["measure", "--base", "true", "true", "--max-rounds", "0"]) == 2


@pytest.mark.skipif("RACE_TEST_HYPERFINE" not in os.environ, reason="opt-in: set RACE_TEST_HYPERFINE=1")
@pytest.mark.skipif(shutil.which("hyperfine") is None, reason="hyperfine is not installed")
@pytest.mark.parametrize(
    "command", ["sleep 0.15", "python3 -c 'sum(range(8000000))'", "sh -c 'sleep 0.1; sleep 0.1' | cat"]
)
def test_agrees_with_hyperfine(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    subprocess.run(
        ["hyperfine", "-w", "1", "--runs", "12", "--export-json", file, command],
        check=True,
        capture_output=True,
    )
    theirs = json.loads(file.read_text())["results"][0]
    race_command(["measure", "--base", command, command, "--json"])
    ours = json.loads(capsys.readouterr().out)["base"]["metrics"]["time"]
    # hyperfine takes off what starting a shell costs, and not the waits; ours has the waits off in the level only. On a
    # quiet machine all of it is one; on a busy one theirs lies between our level and our samples.
    assert ours["low"] <= theirs["mean"] + theirs["stddev"]
    assert max(ours["samples"]) >= theirs["mean"] - theirs["stddev"]


@pytest.mark.anyio
async def test_a_winner_that_fails_when_it_is_measured_once_more_does_not_win(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    flaky = f"echo >>{runs}; echo 10; test $(wc -l <{runs}) -le 4"  # the warm-up and three rounds
    rule = Rule.of("standard", max_rounds=3)
    method = Method("output", unit="points")  # waits are not taken out of these, so that each is the same
    verdict = await compare("echo 80", [flaky, "echo 30"], rule=rule, method=method)
    assert verdict.winner == "echo 30"
    broken = verdict.attempt(flaky)
    assert broken is not None
    assert broken.state == "ineligible"
    assert "failed when it was measured once more" in broken.reasons[0]
    assert len(verdict.attempts) == 2
