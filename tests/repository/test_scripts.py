"""The shell scripts in launch/ work in any current folder, and with any CDPATH."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import distscan

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "launch"
pytestmark = pytest.mark.one_rank

SCRIPTS = sorted(path.name for path in LAUNCH.glob("*.sh") if "\ncd " in path.read_text())
STUBS = {"setup.sh": "", "mpirun.sh": "", "python": 'echo "$*"'}
VERSION = distscan.__version__


@pytest.fixture
def repository(tmp_path):
    """A copy of the scripts, and beside it folders that CDPATH would lead to."""
    for folder in ("repository/launch", "repository/there", "decoy/launch", "decoy/there", "bin"):
        (tmp_path / folder).mkdir(parents=True)
    for script in LAUNCH.glob("*.sh"):
        (tmp_path / "repository" / "launch" / script.name).write_text(script.read_text())
    return tmp_path / "repository"


def bash(*arguments, cwd):
    variables = os.environ | {
        "CDPATH": str(cwd.parent / "decoy"),
        "PATH": f"{cwd.parent / 'bin'}:{os.environ['PATH']}",
    }
    return subprocess.run(["bash", *arguments], cwd=cwd, env=variables, text=True, check=True,
                          capture_output=True, timeout=30).stdout  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_folder_that_scripts_work_in(script, repository):
    """Up to their first cd, which goes to the repository."""
    text = (repository / "launch" / script).read_text()
    end = text.index("\n", text.index("\ncd ") + 1)
    (repository / "launch" / script).write_text(text[:end] + "\npwd\n")
    assert bash(f"launch/{script}", cwd=repository) == f"{repository}\n"


@pytest.mark.parametrize("folder", ["there", "new", "-odd one"])
def test_demo(folder, repository):
    """In a folder of one's own; the programs it calls only print their arguments."""
    for name, text in STUBS.items():
        stub = repository / "launch" / name
        if name == "python":
            stub = repository.parent / "bin" / name
        stub.write_text(f"#!/usr/bin/env bash\n{text}\n")
        stub.chmod(0o755)
    out = bash("launch/demo.sh", folder, cwd=repository)
    there = repository / folder
    assert out == f"launch/demo.py build {there}\nlaunch/demo.py prove {there}\n"


@pytest.mark.parametrize("there", ["browser", "apt-get", "broken apt-get", "nothing"])
def test_browser(there, tmp_path):
    """It is installed if it is missing, and that is said if it cannot be."""
    stubs = tmp_path / "bin"
    stubs.mkdir()
    for name in ("bash", "head", "mktemp", "rm", "tail", "timeout"):
        (stubs / name).symlink_to(shutil.which(name))
    scripts = {"sudo": 'shift; exec "$@"'}
    if there == "browser":
        scripts |= {"google-chrome": "", "chromedriver": ""}
    if "apt-get" in there:
        status = int(there.startswith("broken"))
        scripts["apt-get"] = f'echo "$*" >>{tmp_path}/asked; echo no room; exit {status}'
    for name, text in scripts.items():
        (stubs / name).write_text(f"#!{stubs}/bash\n{text}\n")
        (stubs / name).chmod(0o755)
    ran = subprocess.run(["bash", LAUNCH / "browser.sh"], env={"PATH": str(stubs)}, text=True,
                         check=True, capture_output=True, timeout=30)  # fmt: skip
    asked = (tmp_path / "asked").read_text() if "apt-get" in there else ""
    assert ("install" in asked and "chromium chromium-driver" in asked) == (there == "apt-get")
    assert ("apt install chromium chromium-driver" in ran.stderr) == (
        there in {"broken apt-get", "nothing"}
    )
    assert ("no room" in ran.stderr) == (there == "broken apt-get")


# ---- release_check.sh: a tag, a version and changes that agree ---------------------------------

ABOVE = "# Changelog\n\nWords.\n\n"
CHANGES = "### Added\n\n- This.\n"
OLDER = "\n## 0.0.1 - 2026-01-01\n\n- First.\n"


def check(folder, tag, changelog):
    """Run the script on a changelog, in a copy of the files that it reads."""
    for name in ("launch/release_check.sh", "distscan/version.py"):
        (folder / name).parent.mkdir()
        shutil.copy(ROOT / name, folder / name)
    (folder / "CHANGELOG.md").write_text(changelog)
    return subprocess.run(["bash", folder / "launch" / "release_check.sh", tag],
                          text=True, capture_output=True, timeout=30, check=False)  # fmt: skip


@pytest.mark.parametrize("unreleased", ["", "## Unreleased\n\n"])
@pytest.mark.parametrize("older", ["", OLDER])
def test_what_agrees(unreleased, older, tmp_path):
    changelog = f"{ABOVE}{unreleased}## {VERSION} - 2026-11-22\n\n{CHANGES}{older}"
    run = check(tmp_path, f"v{VERSION}", changelog)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.strip() == CHANGES.strip()


@pytest.mark.parametrize(
    ("tag", "changelog", "fault"),
    [
        ("v99.0.0", f"## {VERSION} - 2026-11-22\n\n{CHANGES}", "the tag is v99.0.0"),
        (VERSION, f"## {VERSION} - 2026-11-22\n\n{CHANGES}", f"the tag is {VERSION}"),
        (f"v{VERSION}", f"## {VERSION}\n\n{CHANGES}", f"'## {VERSION}'"),
        (f"v{VERSION}", f"## Unreleased\n\n{CHANGES}", "'### Added'"),
        (f"v{VERSION}", f"## {VERSION} - 2026-11-22\n{OLDER}", "no changes"),
        (f"v{VERSION}", OLDER, "'## 0.0.1 - 2026-01-01'"),
        (f"v{VERSION}", "", "''"),
    ],
)
def test_what_does_not_agree(tag, changelog, fault, tmp_path):
    run = check(tmp_path, tag, ABOVE + changelog)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("release_check.sh: ")
    assert fault in run.stderr
