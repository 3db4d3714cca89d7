"""The commands of ``python -m distscan``: help names them, and shells complete them."""

import gc
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import distscan
from distscan import cli, commands
from distscan.__main__ import main
from distscan.commands import COMMANDS
from support.processes import environment, python

pytestmark = pytest.mark.one_rank
HERE = str(Path(distscan.__file__).parents[1])


@pytest.fixture(autouse=True)
def garbage(monkeypatch):
    """A command is no end of this process: what it would leave uncollected is collected."""
    monkeypatch.setattr(gc, "freeze", lambda: None)


# ---- help ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["help"], ["x.npy", "--help"]])
def test_help_names_all_commands(arguments, capsys):
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "--exclusive" in out
    for name, command in COMMANDS.items():
        assert re.search(rf"^ +{name} +{re.escape(command.help)}$", out, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(name, capsys):
    texts = []
    for arguments in ([name, "--help"], ["help", name]):
        assert main(arguments) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert out.startswith(f"usage: python -m distscan {name} ")
        texts.append(out)
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("called", "usage"),
    [("/opt/bin/distscan", "distscan"), ("/lib/distscan/__main__.py", "python -m distscan")],
)
def test_usage_is_as_it_was_called(called, usage, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [called])
    assert main(["jobs", "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: {usage} jobs ")
    assert main(["--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: {usage} [-h]")
    assert main(["x.npy", "--fast"]) == 2
    assert f"; {usage} --help lists the arguments\n" in capsys.readouterr().err


def test_bench_is_a_command(capsys):
    assert main(["bench", "--list"]) == 0
    assert "numpy" in capsys.readouterr().out


def test_a_file_job_imports_no_command(tmp_path):
    """Nor what completes the line: a job begins as fast without them."""
    np.save(tmp_path / "x.npy", np.arange(9))
    run = python(
        "import os, sys; os.chdir(sys.argv[1]); from distscan.__main__ import main; "
        "status = main(['x.npy', '--quiet']); "
        "never = ['distscan.service.commands', 'distscan.service.serve', 'distscan.bench', "
        "'distscan.warm', 'distscan.completion', 'argcomplete', 'difflib']; "
        "print(status, [name for name in never if name in sys.modules])",
        tmp_path,
    )
    assert (run.stdout, run.stderr) == ("0 []\n", "")


def test_the_options_of_all_commands_have_help():
    parsers = [cli.file_job_parser(), *(command.make_parser() for command in COMMANDS.values())]
    for parser in parsers:
        assert parser.description
        for action in parser._actions:
            assert action.help, (parser.prog, action.option_strings)


def test_a_near_name():
    assert "did you mean cancel?" in commands.unknown_command_text("cancle")
    assert "did you mean" not in commands.unknown_command_text("zzz")


def test_help_of_help(capsys):
    assert main(["help", "help"]) == 0
    assert "serve" in capsys.readouterr().out


# ---- completion ----------------------------------------------------------------------------------


def words(line, folder, start=1):
    """Return what may follow a line, as a shell asks for it by the variables of argcomplete."""
    pytest.importorskip("argcomplete")
    answer = folder / "answer"
    variables = {
        "_ARGCOMPLETE": str(start),
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "PYTHONPATH": HERE,
    }
    subprocess.run(
        [sys.executable, "-m", "distscan"],
        env=environment(**variables),
        check=True,
        cwd=folder,
        timeout=60,
        stderr=subprocess.DEVNULL,
    )
    return answer.read_text().split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("distscan su", ["submit"]),
        ("distscan al", ["alpha.npy"]),
        ("distscan ser", ["serve", "series.npy"]),
        ("distscan --op log", ["logaddexp", "logical_and", "logical_or", "logical_xor"]),
        ("distscan alpha.npy --op fs", ["fsum"]),
        ("distscan alpha.npy al", ["alpha.npy"]),
        ("distscan alpha.npy su", []),  # a command comes first
        ("distscan alpha.npy --exc", ["--exclusive"]),
        ("distscan --backend c", ["cpu", "cuda"]),
        ("distscan -o al", ["alpha.npy"]),
        ("distscan alpha.npy --threads ", []),
        ("distscan jobs --mo", ["--most"]),
        ("distscan submit al", ["alpha.npy"]),
        ("distscan submit --det", ["--detach"]),
        ("distscan bench --op m", ["max", "min"]),
        ("distscan  submit  --strategy si", ["single-pass"]),
        ("distscan --print-completion ", ["bash", "zsh", "fish"]),
    ],
)
def test_words(line, expected, tmp_path):
    for name in ("alpha.npy", "series.npy"):
        (tmp_path / name).touch()
    assert sorted(words(line, tmp_path)) == sorted(expected)


def test_words_of_the_module(tmp_path):
    """Shells that complete all programs of argcomplete name the module's first word."""
    assert words("python -m distscan show --js", tmp_path, start=3) == ["--json"]


# What a shell prints for the line that is its argument.
SHELLS = {
    "bash": """
eval "$(distscan --print-completion bash)"
COMP_LINE=$LINE COMP_POINT=${#LINE} COMP_TYPE=9 COMP_WORDS=($LINE) COMP_CWORD=2
_python_argcomplete distscan
echo "${COMPREPLY[@]}"
""",
    "zsh": """
autoload -U compinit; compinit -u -D
eval "$(distscan --print-completion zsh)"
BUFFER=$LINE CURSOR=${#LINE} words=(${=LINE})
_describe() { local -a found; found=(${(P)2}); print -l -- ${found%%:*} }
_python_argcomplete
""",
    "fish": """
distscan --print-completion fish | source
complete -C "$LINE"
""",
}  # fmt: skip


@pytest.mark.parametrize("shell", SHELLS)
def test_shells(shell, tmp_path):
    """They ask the program, and show its answer."""
    pytest.importorskip("argcomplete")
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    program = tmp_path / "distscan"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m distscan "$@"\n')
    program.chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": HERE}
    variables |= {"HOME": str(tmp_path), "LINE": "distscan submit --deta"}
    run = subprocess.run(
        [shell, "-c", SHELLS[shell]],
        env=environment(**variables),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert "--detach" in run.stdout.split(), run.stderr
