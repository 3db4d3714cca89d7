"""The version stands in one place; a release has a tag, a version and changes that agree."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import distscan

pytestmark = pytest.mark.one_rank

ROOT = Path(__file__).parents[2]
VERSION = distscan.__version__
ABOVE = "# Changelog\n\nWords.\n\n"
CHANGES = "### Added\n\n- This.\n"
OLDER = "\n## 0.0.1 - 2026-01-01\n\n- First.\n"


def test_the_version_stands_in_one_place():
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc|\.dev)\d+)?", VERSION)
    project = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in project
    assert '[tool.hatch.version]\npath = "distscan/version.py"\n' in project
    for name in ("pyproject.toml", "CITATION.cff", "README.md"):
        assert not re.search(rf"^version\b.*{re.escape(VERSION)}", (ROOT / name).read_text(), re.M)


def check(folder, tag, changelog):
    """Run the script on a changelog in a copy of what it reads."""
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
