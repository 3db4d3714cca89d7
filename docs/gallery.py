"""Draw the pictures of the gallery, docs/gallery/*.png, anew: ``python docs/gallery.py [NAME...]``.

Each example runs at two ranks with the sizes that it has by default. The pictures are made small by
a palette of 64 colors.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 800  # pixels


def draw(name: str, folder: Path) -> None:
    """Run an example, and store its picture."""
    program, picture = ROOT / "examples" / f"{name}.py", folder / f"{name}.png"
    options = ["--folder", folder] if "--folder" in program.read_text() else []
    command = [ROOT / "launch/mpirun.sh", "2", sys.executable, program, "--picture", picture]
    subprocess.run([*command, *options], check=True, timeout=120)
    with Image.open(picture) as image:
        smaller = image.convert("RGB").resize((WIDTH, WIDTH * image.height // image.width))
        smaller.quantize(64).save(ROOT / "docs" / "gallery" / picture.name, optimize=True)


if __name__ == "__main__":
    names = sys.argv[1:] or sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
    (ROOT / "docs" / "gallery").mkdir(exist_ok=True)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            draw(name, Path(folder))
