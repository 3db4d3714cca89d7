"""Pictures of a service's page for the documentation: docs/service_light.png and service_dark.png.

Usage: python launch/tools/page_pictures.py

It starts a service with some jobs, and a browser: see launch/browser.sh. The pictures are in the
repository, so that the documentation can be built without a browser: look at them, and commit them.
"""

import secrets
import time
from contextlib import suppress
from io import BytesIO
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from headless import browsing, prefer, resize
from PIL import Image
from processes import ROOT
from selenium import webdriver
from service_running import ServiceProgram

from distscan.core.errors import InputError
from distscan.service.client import Client

SIZE = 1280, 1040  # pixels
_LIMIT = 60.0  # seconds
_PAST = 40.0  # seconds of jobs before the pictures


def submit_some(client: Client, folder: Path) -> None:
    """Submit jobs of several kinds: some have ended, one runs, some wait."""
    rng = np.random.default_rng(0)
    np.save(folder / "temperature.npy", rng.normal(size=1 << 24))
    np.save(folder / "rain.npy", rng.random(1 << 23, np.float32))
    np.save(folder / "counts.npy", rng.integers(0, 9, (1 << 12, 1 << 10)))
    np.lib.format.open_memmap(folder / "century.npy", "w+", "f4", (1 << 29,))
    end = time.monotonic() + _PAST
    for name, options in cycle((
        ("temperature", {"op": "max"}),
        ("rain", {"dtype": "float64", "check": True}),
        ("counts", {"axis": 0, "exclusive": True}),
        ("snow", {}),
        ("temperature", {"reverse": True}),
    )):  # fmt: skip
        if time.monotonic() > end:
            break
        output = folder / f"{name}.{options.get('op', 'sum')}.npy"
        with suppress(InputError):  # there is no snow
            client.submit(folder / f"{name}.npy", output, force=True, **options).wait(_LIMIT)
        client.scan(rng.random(1 << 22, np.float32), "max")
        time.sleep(1)
    client.submit(folder / "century.npy", folder / "century.sum.npy", dtype="float64", check=True)
    for op in ("min", "max"):
        client.submit(folder / "rain.npy", folder / f"rain.{op}.npy", op=op)


def picture(browser: webdriver.Chrome, theme: str) -> None:
    """Write the picture of the page, light or dark."""
    prefer(browser, prefers_color_scheme=theme)
    path = ROOT / f"docs/service_{theme}.png"
    image = Image.open(BytesIO(browser.get_screenshot_as_png())).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1024:.0f} KiB")


def main() -> None:
    """Make both pictures."""
    token = secrets.token_urlsafe()
    with TemporaryDirectory(prefix="climate-") as name, browsing() as browser:
        service = ServiceProgram(Path(name), 4, "--log-level", "error", token=token)
        try:
            service.start()
            with service.client(_LIMIT) as client:
                submit_some(client, service.files)
                resize(browser, *SIZE)
                browser.get(f"{client.address}/page/icon.svg")  # of the same origin
                script = "sessionStorage.setItem('distscan-token', arguments[0])"
                browser.execute_script(script, token)
                browser.get(client.address)
                browser.find_element("id", "timeline-window").send_keys("last minute")
                browser.execute_script("document.activeElement.blur()")
                time.sleep(4)  # the job goes on for a while
                for theme in ("light", "dark"):
                    picture(browser, theme)
        finally:
            service.kill()


if __name__ == "__main__":
    main()
