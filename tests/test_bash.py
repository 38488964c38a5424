"""The bash tool, in a real sandbox: what agents do to it, and what it tells them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from race.agent import Recorder
from race.bash import OUTPUT_CHARACTERS, Bash, BashResult, shown
from race.errors import LimitReached, SandboxError

if TYPE_CHECKING:
    from race.sandbox import Sandbox

pytestmark = pytest.mark.anyio


@pytest.fixture
def bash(fork: Sandbox) -> Bash:
    return Bash(fork, workdir="/app", timeout=10, recorder=Recorder(50), env={"COLOUR": "green"})


async def test_commands_start_in_the_project_and_share_only_files(bash: Bash) -> None:
    assert (await bash("pwd && echo $COLOUR")).output.endswith("/app\ngreen\n")
    await bash("echo kept > file; cd ..; X=1")
    assert (await bash("cat file; echo [$X]")).output == "kept\n[]\n"


async def test_status_and_both_streams_in_order(bash: Bash) -> None:
    result = await bash("echo out; echo err >&2; echo out again; exit 3")
    assert (result.exit_code, result.output) == (3, "out\nerr\nout again\n")
    assert result.text == "exit status: 3\nout\nerr\nout again\n"
    assert (await bash("true")).text == "exit status: 0\n(no output)"


async def test_a_signal_is_named(bash: Bash) -> None:
    assert "exit status: 143" in (await bash("bash -c 'kill $$'")).text
    assert (await bash("kill -9 $$")).text.startswith("exit status: 137 (ended by signal 9)")


@pytest.mark.parametrize("command", ["cat", "python3", "read line", "read line < /dev/tty", "sort | head -1"])
async def test_a_command_that_reads_does_not_wait(bash: Bash, command: str) -> None:
    started = time.monotonic()
    result = await bash(command)
    assert not result.timed_out
    assert time.monotonic() - started < 5
    if command.startswith("read"):
        assert result.exit_code == 1


async def test_here_documents(bash: Bash) -> None:
    written = await bash("cat > a.txt <<'EOF'\none $X `y`\nEOF")
    assert (written.exit_code, written.output) == (0, "")
    await bash("cat > b.txt <<A; cat > c.txt <<'B'\nfirst\nA\nsecond\nB\necho both")
    assert (await bash("cat a.txt b.txt c.txt")).output == "one $X `y`\nfirst\nsecond\n"


@pytest.mark.parametrize("command", ['echo "abc', "echo $(ls", "if true; then echo x"])
async def test_unfinished_input_is_an_error_at_once(bash: Bash, command: str) -> None:
    result = await bash(command)
    assert result.exit_code == 2
    assert "unexpected" in result.output
    assert (await bash("echo fine")).output == "fine\n"


async def test_a_here_document_without_an_end_does_not_wait(bash: Bash) -> None:
    result = await bash("cat <<END\nabc")
    assert not result.timed_out
    assert "abc" in result.output


async def test_text_that_is_no_text(bash: Bash) -> None:
    result = await bash("echo '\ud835'; touch $'a\\xff.py'; ls; printf '\\377\\0x'")
    assert result.exit_code == 0
    assert result.output == "?\na\N{REPLACEMENT CHARACTER}.py\n\N{REPLACEMENT CHARACTER}\0x"
    result.command.encode()


async def test_output_is_bounded_and_says_by_how_much(bash: Bash) -> None:
    result = await bash("echo first; yes | head -c 50000000; echo last")
    assert len(result.output) < OUTPUT_CHARACTERS + 200
    assert result.output.startswith("first\n")
    assert result.output.endswith("last\n")
    left_out = int(result.output.partition("[")[2].partition(" bytes left out")[0].replace(",", ""))
    assert left_out == 50_000_011 - OUTPUT_CHARACTERS


async def test_endless_output_ends_with_the_time(bash: Bash) -> None:
    result = await bash("yes", timeout=0.3)
    assert result.timed_out
    assert result.exit_code is None
    assert len(result.text) < OUTPUT_CHARACTERS + 300
    assert result.text.startswith(
        "timed out after 0.3 s; it and everything it had started were ended\ny\ny\n"
    )


async def test_a_time_out_ends_what_was_started(bash: Bash) -> None:
    result = await bash("sleep 77 & sleep 77; echo done", timeout=0.2)
    assert result.timed_out
    assert "done" not in result.output
    still = await bash("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c '[s]leep 77'")
    assert still.output == "0\n"


async def test_the_limit_of_a_command_is_not_exceeded(bash: Bash) -> None:
    assert (await bash("true", timeout=500)).timeout == 10
    assert (await bash("true", timeout=3)).timeout == 3


async def test_a_long_command_runs(bash: Bash) -> None:
    lines = "0123456789abcdef\n" * 12_500
    result = await bash(f"cat > long.txt <<'EOF'\n{lines}EOF\nwc -c < long.txt")
    assert (result.exit_code, result.output.strip()) == (0, str(len(lines)))


async def test_a_nul_byte_is_refused_and_no_step_is_used(bash: Bash) -> None:
    with pytest.raises(ValueError, match="NUL"):
        await bash("echo a\0b")
    assert (await bash("echo on")).output == "on\n"


async def test_a_project_folder_that_is_gone_is_said_and_can_be_mended(bash: Bash) -> None:
    await bash('rmdir "$PWD"')
    result = await bash("pwd; mkdir app")
    assert result.output.startswith("/app is not there, running in /\n")
    assert (await bash("pwd")).output.endswith("/app\n")


async def test_a_lost_sandbox_is_not_a_result(fork: Sandbox, bash: Bash) -> None:
    await bash("true")
    await fork.stop()
    with pytest.raises(SandboxError):
        await bash("true")


async def test_everything_is_recorded_and_counted(fork: Sandbox) -> None:
    recorder = Recorder(2)
    begun: list[str] = []
    bash = Bash(fork, workdir="/app", timeout=5, recorder=recorder, on_start=begun.append)
    results = [await bash("echo one"), await bash("exit 4")]
    with pytest.raises(LimitReached):
        await bash("touch three")
    assert [s.commands for s in recorder.trajectory().steps] == [(r,) for r in results]
    assert begun == ["echo one", "exit 4"]


def test_shown_keeps_both_ends() -> None:
    text = shown(b"a" * 10 + b"b" * 10, 20, limit=10)
    assert text.startswith("aaaaa\n")
    assert text.endswith("\nbbbbb")
    assert "10 bytes" in text
    assert shown(b"short", 5, limit=10) == "short"


def test_the_sentence_about_a_signal() -> None:
    ended = BashResult("x", -9, "", timed_out=False, seconds=1, timeout=2)
    assert ended.text == "exit status: 137 (ended by signal 9)\n(no output)"
