"""launch/doc_commands.py runs the commands of pages, and refuses those that are marked wrongly."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.one_rank

# README.md makes .venv, which pages share: here a file alone, which says what it is.
README = """# Title

```bash
mkdir -p .venv/bin; echo 'export ACTIVE=yes' >.venv/bin/activate
```
"""
RST = """
Title
=====

.. code-block:: python
   :caption: hello.py

   print("hello")

.. before:
   made=$(python3 hello.py)
   mkdir left && echo left >left/left.txt

.. code-block:: bash

    test "$ACTIVE" = yes     # .venv is active
    test "$made" = hello     # the block above was saved, the comment ran in this shell
    test -z "$SECRET$OLD_HOME$PYTHONPATH"; test "$(ls -A "$HOME")" != ""
    sleep 1000 &             # ends with the page

- In a list:

  .. not run: gpu, of any kind

  .. code-block:: bash

      echo "on a GPU" >gpu.txt; test "$SECRET" = yes

Synopsis::

    python -m distscan INPUT [--option]
"""
MARKDOWN = """
```python
# hello.py
print("hello")
```

<!-- before: made=$(python3 hello.py) -->
```bash
test "$made" = hello
test ! -e left     # of the page before
```

<!-- not run: elsewhere -->
```bash
false
```
"""


@pytest.fixture
def run(tmp_path):
    def run(pages, *arguments):
        for name, text in {"README.md": README, **pages}.items():
            path = tmp_path / "checkout" / name
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(text)
        script = tmp_path / "checkout" / "launch" / "doc_commands.py"
        script.parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / "launch" / script.name, script)
        return subprocess.run(
            [sys.executable, script, *arguments],
            env=os.environ | {"SECRET": "yes", "OLD_HOME": os.environ["HOME"]},
            text=True,
            capture_output=True,
            timeout=100,
            check=False,
        )

    return run


def states(ran):
    """The place of each block that ran, and how it ended."""
    lines = [line.split() for line in ran.stdout.splitlines() if " s  " in line]
    return {line[0]: " ".join(line[3:]) for line in lines}


def names(folder):
    return {path.name for path in folder.rglob("*.*")}


def test_this_repository():
    """All its commands are marked; README.md has some that are run, which make .venv."""
    ran = subprocess.run([sys.executable, ROOT / "launch/doc_commands.py", "--list"], text=True,
                         capture_output=True, timeout=60, check=False)  # fmt: skip
    assert ran.returncode == 0, ran.stdout
    assert re.search(r"^README.md:\d+: run$", ran.stdout, re.MULTILINE)


def test_pages(run):
    ran = run({"docs/a.rst": RST, "docs/b.md": MARKDOWN}, "--pages", "docs/a.rst", "docs/b.md")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert states(ran) == {"README.md:3": "ok", "docs/a.rst:14": "ok", "docs/b.md:8": "ok"}
    gpu, elsewhere = ran.stdout.splitlines()[-4::2]
    assert gpu.startswith("not run, gpu")
    assert elsewhere.startswith("not run, elsewhere")
    assert ran.stdout.splitlines()[-3::2] == ["    docs/a.rst:25", "    docs/b.md:14"]


def test_reason(run, tmp_path):
    """In this environment, without README.md; the checkout has no new files."""
    ran = run({"docs/a.rst": RST}, "--reason", "gpu")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert states(ran) == {"docs/a.rst:25": "ok"}
    assert names(tmp_path / "checkout") == {"README.md", "a.rst", "doc_commands.py"}


def test_keep(run, tmp_path):
    """The folder has .venv, so README.md is not run again."""
    for blocks in (2, 1):
        ran = run({"docs/a.rst": RST}, "--pages", "docs/a.rst", "--keep", tmp_path / "kept")
        assert len(states(ran)) == blocks
        assert ran.returncode == 0
    assert names(tmp_path / "kept") == {".venv", "README.md", "a.rst", "doc_commands.py"}


def test_checkout(run, tmp_path):
    """The files that Git does not ignore, as they are now, in a repository."""
    page = ".. code-block:: bash\n\n    test -e new\n    test ! -e ignored\n"
    run({"docs/a.rst": page}, "--list")
    checkout = tmp_path / "checkout"
    for arguments in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *arguments], cwd=checkout, check=True, timeout=60)
    (checkout / ".gitignore").write_text("ignored\n")
    for name in ("new", "ignored"):
        (checkout / name).touch()
    ran = run({"docs/a.rst": f"{page}    git ls-files | grep -x docs/a.rst\n"})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert states(ran) == {"README.md:3": "ok", "docs/a.rst:1": "ok"}


def test_a_caption_that_names_no_file(run):
    page = ".. code-block:: python\n   :caption: docs\n\n    1 / 0\n\nText.\n"
    ran = run({"docs/a.rst": page + "\n.. code-block:: bash\n\n    test -d docs\n"})
    assert states(ran) == {"README.md:3": "ok", "docs/a.rst:8": "ok"}


@pytest.mark.parametrize(
    ("commands", "state", "output"),
    [
        ("echo first\n    false\n    echo second", "FAILED, status 1", "first"),
        ("echo begin; exit 7", "FAILED, status 7", "begin"),
        ("false | echo begin\n    echo second", "FAILED, status 1", "begin"),
        ("echo begin; sleep 1000", "FAILED, ended after 2.0 s", "begin"),
        ('echo "never ends', "FAILED, status 2", "unexpected EOF"),
    ],
)
def test_fault(commands, state, output, run):
    """The page ends at a block that fails, and others are run."""
    page = f".. code-block:: bash\n\n    {commands}\n\n.. code-block:: bash\n\n    true\n"
    ran = run({"docs/a.rst": page, "docs/b.rst": page.replace(commands, ":")}, "--timeout", "2")
    assert ran.returncode == 1
    assert states(ran) == {
        "README.md:3": "ok", "docs/a.rst:1": state, "docs/b.rst:1": "ok", "docs/b.rst:5": "ok"
    }  # fmt: skip
    assert f"    | {output}\n" in ran.stdout or output in ran.stdout.partition("    | ")[2]
    assert "    | second" not in ran.stdout


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ("Text::\n\n    mpirun -n 2 python x.py\n", "docs/a.rst:1: mark it as bash"),
        (".. code-block:: text\n\n    python -m distscan x.npy\n", "docs/a.rst:1: mark it as bash"),
        ("- List::\n\n      X=1 distscan x.npy\n", "docs/a.rst:1: mark it as bash"),
        (".. code-block:: console\n\n    $ ls\n", "docs/a.rst:1: mark commands as bash"),
        (".. not run: lazy\n\n.. code-block:: bash\n\n    ls\n", "docs/a.rst:1: a reason begins"),
        (".. not run: gpu\n\nText.\n\n.. code-block:: bash\n\n    ls\n",
         "docs/a.rst:1: no block of bash comes next"),
        (".. code-block:: bash\n\n    true && ls\n", "docs/a.rst:1: write the commands in two"),
        (".. before: ls\n\n.. code-block:: text\n\n    x\n", "docs/a.rst:1: no block of bash"),
    ],
)  # fmt: skip
def test_marks(page, fault, run):
    """Nothing is run then."""
    ran = run({"docs/a.rst": page})
    assert (ran.returncode, states(ran)) == (1, {})
    assert ran.stdout.startswith(fault)


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ("Text:\n\n    pip install x\n", "docs/a.md:3: mark it as bash"),
        ("```text\nbash launch/test.sh\n```\n", "docs/a.md:1: mark it as bash"),
        ("```\n./x\nsbatch x\n```\n", "docs/a.md:1: mark it as bash"),
        ("<!-- not run: gpu -->\n", "docs/a.md:1: no block of bash comes next"),
    ],
)
def test_marks_of_markdown(page, fault, run):
    ran = run({"docs/a.md": page}, "--pages", "docs/a.md")
    assert (ran.returncode, states(ran)) == (1, {})
    assert ran.stdout.startswith(fault)
