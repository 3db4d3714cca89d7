#!/usr/bin/env python3
"""Run the shell commands of README.md, CONTRIBUTING.md, docs/ and examples/README.md as written.

    launch/doc_commands.py                   # all pages, in an empty environment
    launch/doc_commands.py --list            # the blocks, and why some are not run
    launch/doc_commands.py --pages docs/formats.rst --keep build/pages    # one page, many times
    launch/doc_commands.py --reason gpu      # the blocks for GPUs, in this environment

How a page is written (reStructuredText; Markdown has fences and <!-- comments --> instead):

- Commands stand in ``.. code-block:: bash``. Other literal text is ``text``, or follows ``::``.
- ``.. not run: gpu`` directly before a block says why it is not run. REASONS has the first words;
  more may follow: ``.. not run: elsewhere, on the host of the service``.
- ``.. before: COMMAND`` directly before a block makes what its commands need and the page does not
  show. It may have several lines, the later ones indented.
- ``:caption: NAME.py`` of a Python block writes the block into a file. In Markdown its first line
  does: ``# NAME.py``.

The files that Git does not ignore are copied into a new folder. README.md comes first: its commands
make .venv, which the other pages use and add to. The commands of a page share one shell.
A page ends at its first command that fails. With it end the programs that it has started, and its
files are removed. HOME is an empty folder. The settings of pip and of the network stay.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
REASONS = {
    "gpu": "needs a GPU: launch/gpu_test.sh runs it",
    "scheduler": "needs Slurm, PBS or Kubernetes",
    "large": "needs more than 1 GB of memory, of disk, or from the network",
    "time": "takes minutes: a stage of its own in CI, or a campaign",
    "network": "needs a machine in the network",
    "elsewhere": "runs on another machine, or by another user",
}
VARIABLES = re.compile(
    r"PIP_|SSL_CERT_|\w+_CA_BUNDLE$|\w+_proxy$|LANG$|LC_|LD_LIBRARY_PATH$", re.IGNORECASE
)
# Of the folder that the commands work in: what they install and compile, and the repository.
PERMANENT_FOLDERS = {".git", ".venv", ".venv-openmpi", "distscan/cpu/lib"}
# A line of text that is a command: it begins so, and is no synopsis, [--like] this.
COMMAND = re.compile(
    r" *(\$ |(\w+=\S* )*"
    r"((mpirun|srun|sbatch|pip|bash|curl|distscan) |launch/\w+\.|python3? (-m |\S+\.py\b)))"
    r"(?!.*(\[-|\.\.\.))"
)


class Item(NamedTuple):
    """A literal block, or a comment for one (``kind`` is then "not run" or "before")."""

    line: int
    kind: str  # of a block its language
    text: str
    caption: str = ""


class Block(NamedTuple):
    """Commands, or the text of a file, ``path``."""

    page: str
    line: int
    text: str
    path: str = ""
    before: str = ""
    reason: str = ""

    @property
    def word(self):
        """The first word of the reason."""
        return re.split(r"\W", self.reason)[0]


# ---- reading pages ------------------------------------------------------------------------------


def indented(lines, start, indent):
    """Return the end of the lines from ``start`` that are blank or indented by more."""
    end = start
    while end < len(lines) and (not lines[end].strip() or lines[end][: indent + 1].isspace()):
        end += 1
    return end


def rst_items(lines):
    """Yield the blocks and comments of reStructuredText; None is other text."""
    at = 0
    while at < len(lines):
        line, start = lines[at], at
        indent = re.match(r" *(- )?", line).end()
        at += 1
        if comment := re.match(r" *\.\. (not run|before):(.*)", line):
            while at < len(lines) and lines[at][: indent + 1].isspace() and lines[at].strip():
                at += 1
            more = textwrap.dedent("\n".join(lines[start + 1 : at]))
            yield Item(start + 1, comment[1], f"{comment[2].strip()}\n{more}".strip())
        elif directive := re.match(r" *\.\. (?:code-block|sourcecode):: *(\S*)$", line):
            at = indented(lines, at, indent)
            text = textwrap.dedent("\n".join(lines[start + 1 : at]))
            options, _, body = text.partition("\n\n") if text.startswith(":") else ("", "", text)
            caption = re.search(r"^:caption: *(.*)", options, re.MULTILINE)
            body = textwrap.dedent(body).strip("\n")
            yield Item(start + 1, directive[1], body, caption[1] if caption else "")
        elif line.endswith("::") and not re.match(r" *\.\. ", line):
            at = indented(lines, at, indent)
            yield Item(start + 1, "text", textwrap.dedent("\n".join(lines[start + 1 : at])))
        elif line.strip():
            yield None


def markdown_items(lines):
    """Yield the blocks and comments of Markdown; None is other text."""
    at = 0
    while at < len(lines):
        line, start = lines[at], at
        at += 1
        if comment := re.match(r" *<!-- (not run|before):", line):
            while "-->" not in lines[at - 1] and at < len(lines):
                at += 1
            text = "\n".join(lines[start:at])[comment.end() :].partition("-->")[0]
            yield Item(start + 1, comment[1], textwrap.dedent(text).strip())
        elif fence := re.match(r" *```(\S*)$", line):
            while at < len(lines) and lines[at].strip() != "```":
                at += 1
            text = textwrap.dedent("\n".join(lines[start + 1 : at]))
            at += 1
            name = re.match(r"# ([\w./-]+\.py)\n", text) if fence[1] == "python" else None
            yield Item(start + 1, fence[1], text, name[1] if name else "")
        elif line.startswith("    ") and start and not lines[start - 1].strip():
            at = indented(lines, at, 3)
            yield Item(start + 1, "text", textwrap.dedent("\n".join(lines[start:at])))
        elif line.strip():
            yield None


def read_page(page):
    """Return the blocks of a page, and the faults in how they are marked."""
    lines = (ROOT / page).read_text().splitlines()
    blocks, faults, notes = [], [], {}
    for item in [*(markdown_items if page.endswith(".md") else rst_items)(lines), None]:
        if item and item.kind in {"not run", "before"}:
            notes[item.kind] = item
            continue
        reason, before = notes.get("not run"), notes.get("before")
        if item and item.kind == "bash":
            blocks.append(Block(page, item.line, item.text, before=before.text if before else "",
                                reason=reason.text if reason else ""))  # fmt: skip
            hidden = "" if reason else re.search(r"^[^#\n]* && .*", item.text, re.MULTILINE)
            if hidden:  # the shell does not end where the first part of a && b fails
                faults.append((item.line, f"write the commands in two lines: {hidden[0]}"))
            if reason and blocks[-1].word not in REASONS:
                faults.append((reason.line, f"a reason begins with one of {', '.join(REASONS)}"))
        else:
            faults += [(note.line, "no block of bash comes next") for note in notes.values()]
        notes = {}
        if item and item.kind in {"console", "sh", "shell"}:
            faults.append((item.line, f"mark commands as bash, not as {item.kind}"))
        if item and item.kind in {"", "text", "none"}:
            command = next(filter(COMMAND.match, item.text.splitlines()), None)
            faults += [(item.line, f"mark it as bash: {command}")] if command else []
        if item and item.kind == "python" and item.caption.endswith(".py"):
            blocks.append(Block(page, item.line, item.text, path=item.caption))
    return blocks, [f"{page}:{line}: {fault}" for line, fault in faults]


# ---- running commands ---------------------------------------------------------------------------


def copy_checkout(folder):
    """Copy the files that Git does not ignore, into a repository; without Git, those not built."""

    def git(*arguments):
        return subprocess.run(["git", "-C", *arguments], capture_output=True, text=True,
                              timeout=60, check=False).stdout  # fmt: skip

    listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    names = [name for name in listed if (ROOT / name).is_file()]
    if not names:
        hidden = shutil.ignore_patterns(".*", "build", "dist", "shared")
        shutil.copytree(ROOT, folder, ignore=hidden, dirs_exist_ok=True)
        return
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    git(folder, "init", "-q")
    git(folder, "add", "-A")


def paths_in(folder):
    """Return all files and folders, but those in PERMANENT_FOLDERS."""
    paths, permanent = set(), {str(folder / each) for each in PERMANENT_FOLDERS}
    for parent, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if os.path.join(parent, each) not in permanent]
        paths |= {os.path.join(parent, name) for name in [*folders, *names]}
    return paths


def empty_environment(home):
    """Return variables without any environment of Python; HOME and what is temporary are new."""
    variables = {name: text for name, text in os.environ.items() if VARIABLES.match(name)}
    path = os.environ["PATH"].split(os.pathsep)
    variables["PATH"] = os.pathsep.join(
        each for each in path if not Path(each, "..", "pyvenv.cfg").exists()
    )
    settings = Path.home() / ".config" / "pip" / "pip.conf"
    if settings.exists():
        variables.setdefault("PIP_CONFIG_FILE", str(settings))
    variables.setdefault("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))
    variables["HOME"] = str(home)
    for name in ("XDG_RUNTIME_DIR", "TMPDIR"):
        variables[name] = str(home / name)
        (home / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    return variables


def end(shell):
    """End a shell, and the programs that it has started."""
    for number, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 1)):
        limit = time.monotonic() + seconds
        try:
            os.killpg(shell.pid, number)
            while time.monotonic() < limit:
                shell.poll()
                os.killpg(shell.pid, 0)
                time.sleep(0.1)
        except ProcessLookupError:
            break
    shell.wait()


def run_block(shell, block, limit, work):
    """Run a block in the shell; return what is wrong, if anything, and what the block printed."""
    script, log, done = work / "script", work / "log", work / "done"
    script.write_text(f"{block.before}\n{block.text}\n")
    done.unlink(missing_ok=True)
    shell.stdin.write(f"source '{script}' </dev/null >'{log}' 2>&1\ntouch '{done}'\n")
    shell.stdin.flush()
    end_time = time.monotonic() + limit
    while not done.exists():
        fault = f"status {shell.returncode}" if shell.poll() is not None else ""
        if time.monotonic() > end_time:
            fault = f"ended after {limit} s"
        if fault:
            return fault, log.read_text(errors="replace")
        time.sleep(0.05)
    return "", ""


def run_page(blocks, folder, environment, limit, until=None):
    """Run blocks, up to the one that makes the file ``until``; return whether all went well."""
    paths, fault = paths_in(folder), ""
    shell = subprocess.Popen(["bash"], cwd=folder, env=environment, stdin=subprocess.PIPE,
                             text=True, start_new_session=True)  # fmt: skip
    with tempfile.TemporaryDirectory() as work:
        try:
            shell.stdin.write(
                "set -e -o pipefail\n[ ! -e .venv/bin/activate ] || source .venv/bin/activate\n"
            )
            for block in blocks:
                if block.path:
                    (folder / block.path).write_text(block.text + "\n")
                    continue
                start = time.monotonic()
                fault, output = run_block(shell, block, limit, Path(work))
                seconds, state = time.monotonic() - start, f"FAILED, {fault}" if fault else "ok"
                print(f"{f'{block.page}:{block.line}':28} {seconds:6.1f} s  {state}", flush=True)
                if fault:
                    print(textwrap.indent(block.text, "    $ "))
                    print(textwrap.indent("\n".join(output.splitlines()[-30:]), "    | "))
                if fault or (until and until.exists()):
                    break
        finally:
            end(shell)
    for path in sorted(paths_in(folder) - paths, reverse=True):  # what is in a folder first
        (os.rmdir if os.path.isdir(path) and not os.path.islink(path) else os.unlink)(path)
    return not fault


def report(blocks, reason):
    """Print how many blocks are not run, by reason, and where they are."""
    for word, meaning in REASONS.items():
        places = [f"{block.page}:{block.line}" for block in blocks if block.word == word]
        if places and word != reason:
            print(f"not run, {word} ({meaning}): {len(places)}\n    {' '.join(places)}")


def arguments():
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", nargs="+", metavar="PAGE", help="these pages alone")
    parser.add_argument("--list", action="store_true", help="list the blocks; run nothing")
    parser.add_argument(
        "--reason", choices=REASONS, help="run what this reason keeps from being run"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work there; it stays")
    parser.add_argument("--timeout", type=float, default=600, help="seconds of a block (600)")
    options = parser.parse_args()
    if not options.pages:
        pages = ["README.md", "CONTRIBUTING.md", "examples/README.md"]
        pages += sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.rst"))
        options.pages = [page for page in pages if (ROOT / page).exists()]
    return options


def run_pages(pages, options, home):
    """Run the blocks of pages; return whether all went well."""
    folder = (options.keep or home / "distscan").resolve()
    copy_checkout(folder)
    if options.reason:
        path = filter(None, [str(folder), os.environ.get("PYTHONPATH")])
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    else:
        environment = empty_environment(home)
    good, activate = True, folder / ".venv" / "bin" / "activate"
    if not options.reason and "README.md" not in pages and not activate.exists():
        readme = [block for block in read_page("README.md")[0] if not block.reason]
        good = run_page(readme, folder, environment, options.timeout, until=activate)
    for blocks in pages.values():
        selection = [each for each in blocks if each.path or each.word == (options.reason or "")]
        good = run_page(selection, folder, environment, options.timeout) and good
    return good


def main():
    """Run the command line; return the exit status."""
    options = arguments()
    read = {page: read_page(page) for page in options.pages}
    blocks = [block for each, _ in read.values() for block in each]
    if faults := [fault for _, faults in read.values() for fault in faults]:
        print("\n".join(faults))
        return 1
    if options.list:
        for block in blocks:
            print(f"{block.page}:{block.line}: {block.reason or block.path or 'run'}")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it ends what it started
    with tempfile.TemporaryDirectory() as home:
        good = run_pages({page: each for page, (each, _) in read.items()}, options, Path(home))
    report(blocks, options.reason)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
