"""The race file: what is taken, what is refused, and whether the refusal names the place and what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest

import race
from race.assembly import assemble
from race.base import limits
from race.errors import MachineError, PluginError, SpecError
from race.sandbox import Limits
from race.spec import RaceSpec, load

MINIMAL = """
[task]
prompt = "Make it faster."
[[entries]]
name = "a"
agent = "nop"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "race.toml"
    path.write_text(text)
    return path


def refused(folder: Path, text: str) -> str:
    with pytest.raises(SpecError) as caught:
        load(write(folder, text))
    return str(caught.value)


def test_minimal_file_gets_its_defaults(tmp_path: Path) -> None:
    folder = tmp_path / "my project"
    folder.mkdir()
    spec = load(write(folder, MINIMAL))
    assert spec.task.name == "my-project"
    assert spec.base.sandbox == "local"
    assert [s.use for s in spec.scorers] == ["integrity"]
    assert spec.keep.winner == "replay"
    assert spec.base.network.scoring == "none"


def test_prompt_file_is_read_relative_to_the_race_file(tmp_path: Path) -> None:
    (tmp_path / "TASK.md").write_text("Do this.\n")
    spec = load(write(tmp_path, MINIMAL.replace('prompt = "Make it faster."', 'prompt_file = "TASK.md"')))
    assert spec.task.prompt == "Do this.\n"


def test_defaults_are_taken_by_entries_and_overridden_by_them(tmp_path: Path) -> None:
    text = (
        MINIMAL
        + '[[entries]]\nname = "b"\nagent = "nop"\nmax_steps = 3\n[defaults]\nmax_steps = 9\ntime_limit = 5\n'
    )
    spec = load(write(tmp_path, text))
    assert [(e.max_steps, e.time_limit) for e in spec.entries] == [(9, 5), (3, 5)]


def test_attempts_are_numbered_when_there_are_several(tmp_path: Path) -> None:
    spec = load(write(tmp_path, MINIMAL + "count = 3\n"))
    assert spec.entries[0].attempt_names() == ["a-1", "a-2", "a-3"]


def test_limits_are_those_of_the_sandboxes(tmp_path: Path) -> None:
    table = "[base.limits]\ncpus = 1.5\nmemory = '2G'\ndisk = '10G'\nprocesses = 9\ncores = [0, 3]\n"
    spec = load(write(tmp_path, MINIMAL.replace("[[entries]]", f"{table}[[entries]]")))
    assert limits(spec) == Limits(1.5, 2 << 30, 10 << 30, 9, (0, 3))


@pytest.mark.parametrize(
    ("change", "place", "right"),
    [
        (("prompt", "promt"), "task.promt", "did you mean 'prompt'?"),
        (("[task]", "[tsak]"), "tsak", "did you mean 'task'?"),
        (('agent = "nop"', 'agent = "nop"\ncount = 0'), "entries[1].count", "greater than or equal to 1"),
        (('name = "a"', ""), "entries[1].name", "is missing"),
        (('name = "a"', 'name = "a b"'), "entries[1].name", "use letters"),
        (("[[entries]]", "[base]\nworkdir = 'app'\n[[entries]]"), "base.workdir", "absolute path"),
        (("[[entries]]", "[base.limits]\nmemory = 'lots'\n[[entries]]"), "base.limits.memory", "'2G'"),
        (("[[entries]]", "[base.limits]\ncores = []\n[[entries]]"), "base.limits.cores", "at least 1"),
        (("[[entries]]", "[base.limits]\nmem = 1\n[[entries]]"), "base.limits.mem", "did you mean 'memory'?"),
        (("[[entries]]", "[base.network]\nagents = 'full'\n[[entries]]"), "base.network.agents", "'agent'"),
        (
            ("[[entries]]", "[keep]\nwinner = 'all'\n[[entries]]"),
            "keep.winner",
            "'replay', 'fork' or 'patch'",
        ),
        (('"Make it faster."', '""'), "task.prompt", "say what the agents shall do"),
        (
            ("[[entries]]", "[[scorers]]\nuse = 'tests'\n[[scorers]]\nuse = 'tests'\n[[entries]]"),
            "scorers[3]",
            "taken",
        ),
        (("[task]", "[task]\nprotected = ['../x']"), "task.protected", "stay in it"),
        (("[task]", "[task]\nprompt_file = 'none.md'"), "task", "keep one"),
        (("[task]", "path = 'x'\n[task]"), "path", "unknown key"),
    ],
)
def test_complaints_name_the_place_and_what_would_be_right(
    tmp_path: Path, change: tuple[str, str], place: str, right: str
) -> None:
    text = refused(tmp_path, MINIMAL.replace(*change, 1))
    assert f"race.toml: {place}" in text
    assert right in text
    assert "Traceback" not in text


def test_two_entries_of_one_name_are_refused(tmp_path: Path) -> None:
    text = refused(tmp_path, MINIMAL + '[[entries]]\nname = "a"\nagent = "nop"\n')
    assert "entries[2]: the name 'a' is taken already by number 1" in text


def test_numbered_attempts_may_not_meet_another_entry(tmp_path: Path) -> None:
    text = refused(tmp_path, MINIMAL + 'count = 2\n[[entries]]\nname = "a-1"\nagent = "nop"\n')
    assert "'a-1' is taken" in text


def test_no_entries_and_no_task(tmp_path: Path) -> None:
    assert "entries: is missing" in refused(tmp_path, '[task]\nprompt = "x"\n')
    assert "task: is missing" in refused(tmp_path, "[[entries]]\nname = 'a'\n")


@pytest.mark.parametrize(("content", "says"), [(b"[task", "not valid TOML"), (b"\xff", "not UTF-8")])
def test_files_that_are_no_toml(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "race.toml"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=says):
        load(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such race file"):
        load(tmp_path / "none.toml")
    with pytest.raises(SpecError, match="is a folder"):
        load(tmp_path)


def plugins_refuse(folder: Path, text: str, kind: type[Exception] = SpecError) -> str:
    spec: RaceSpec = load(write(folder, text))
    with pytest.raises(kind) as caught:
        assemble(spec, folder / "home")
    return str(caught.value)


def test_unknown_plugins_list_the_known_names(tmp_path: Path) -> None:
    text = plugins_refuse(tmp_path, MINIMAL.replace('"nop"', '"scrpt"'), PluginError)
    assert "entries[1].agent" in text
    assert "did you mean 'script'?" in text
    text = plugins_refuse(tmp_path, MINIMAL + "[[scorers]]\nuse = 'test'\nrun = 'x'\n", PluginError)
    assert "scorers[1].use" in text
    assert "did you mean 'tests'?" in text
    text = plugins_refuse(tmp_path, MINIMAL + "[base]\nsandbox = 'locl'\n", PluginError)
    assert "base.sandbox" in text
    assert "did you mean 'local'?" in text


def test_options_of_plugins_are_checked(tmp_path: Path) -> None:
    script = MINIMAL.replace('"nop"', '"script"')
    text = plugins_refuse(tmp_path, script + "comands = ['true']\n")
    assert "entries[1].comands: unknown key; did you mean 'commands'?" in text
    assert "entries[1].commands: is missing" in plugins_refuse(tmp_path, script)
    assert "entries[1].x: unknown key" in plugins_refuse(tmp_path, MINIMAL + "x = 1\n")
    text = plugins_refuse(tmp_path, MINIMAL + "[[scorers]]\nuse = 'benchmark'\nrun = 'x'\ngoal = 'less'\n")
    assert "scorers[1].goal" in text
    assert "'min' or 'max'" in text


def test_defaults_that_no_agent_knows_are_refused(tmp_path: Path) -> None:
    text = plugins_refuse(tmp_path, MINIMAL + "[defaults]\ncomands = ['true']\n")
    assert "defaults.comands: unknown key" in text


def test_defaults_for_one_agent_leave_others_alone(tmp_path: Path) -> None:
    text = MINIMAL + "[[entries]]\nname = 'b'\nagent = 'script'\n[defaults]\ncommands = ['true']\n"
    attempts = assemble(load(write(tmp_path, text)), tmp_path / "home").attempts
    assert [a.name for a in attempts] == ["a", "b"]


def test_a_plugin_of_a_module_is_found(tmp_path: Path) -> None:
    text = MINIMAL.replace('"nop"', '"race_agents.nop:Nop"')
    assert len(assemble(load(write(tmp_path, text)), tmp_path / "home").attempts) == 1
    broken = MINIMAL.replace('"nop"', '"race_agents.nop:Nothing"')
    assert "cannot be imported" in plugins_refuse(tmp_path, broken, PluginError)
    shapeless = MINIMAL.replace('"nop"', '"race.task:Task"')
    assert plugins_refuse(tmp_path, shapeless, Exception)


def test_a_missing_key_is_a_missing_thing_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    text = MINIMAL.replace('"nop"', '"openai"\nmodel = "m"')
    message = plugins_refuse(tmp_path, text, MachineError)
    assert "OPENAI_API_KEY" in message
    assert "entries[1]" in message


def test_public_names_are_pinned() -> None:
    assert race.__all__ == sorted(race.__all__)
    assert len(race.__all__) == len(set(race.__all__))
    for name in race.__all__:
        assert getattr(race, name) is not None
