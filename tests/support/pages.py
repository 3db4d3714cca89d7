"""The page of a service in a browser, as its tests use it."""

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headless import browsing, prefer, resize
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from support.services import TOKEN, Service, over_tcp, serving

__all__ = [
    "HOSTILE",
    "TOKEN",
    "Page",
    "browsing_if_any",
    "forwarded",
    "prefer",
    "resize",
    "with_files",
]
HOSTILE = "<img src=x onerror=window.hit=1>\u202e.npy"


# Texts of less contrast with their ground than 4.5, and how many texts are shown.
_FAINT = """
const rgba = (text) => text.match(/[\\d.]+/g).map(Number);
const seen = (c) => c.length === 3 || c[3] > 0;
const luminance = (c) => {
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = c.map((v) => linear(v / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ratio = (one, other) => {
  const [low, high] = [luminance(one), luminance(other)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
};
const ground = (element) => {
  const bar = element.closest("a.job")?.querySelector("rect");
  if (bar) return rgba(getComputedStyle(bar).fill);
  for (let at = element; at; at = at.parentElement) {
    const colour = rgba(getComputedStyle(at).backgroundColor);
    if (seen(colour)) return colour;
  }
  return [255, 255, 255];
};
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const found = [];
let count = 0;
while (texts.nextNode()) {
  const element = texts.currentNode.parentElement;
  const box = element.getBoundingClientRect();
  const skipped = element.closest(":disabled, noscript, script, option");
  const text = texts.currentNode.data.trim();
  if (!text || box.width < 2 || skipped || !element.checkVisibility()) continue;
  const style = getComputedStyle(element);
  const colour = rgba(element instanceof SVGElement ? style.fill : style.color);
  const contrast = ratio(colour.slice(0, 3), ground(element).slice(0, 3));
  count += 1;
  if (contrast < 4.5) found.push(`${text}: ${contrast}`);
}
return [found, count];
"""


@contextmanager
def browsing_if_any() -> Iterator[Any]:
    """Run a browser. Without one, tests are skipped; in CI, they fail."""
    with ExitStack() as held:
        try:
            made = held.enter_context(browsing())
        except FileNotFoundError as error:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip(str(error))
        yield made


@contextmanager
def with_files(folder: Path) -> Iterator[Service]:
    """Run a service over TCP, with some files; it has its port again when it is started again."""
    for name in ("x.npy", HOSTILE):
        np.save(folder / name, np.arange(1000))
    np.lib.format.open_memmap(folder / "slow.npy", "w+", np.longdouble, (1 << 26,))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with serving(folder, 1, *over_tcp(folder), "--port", port) as made:
        yield made


@contextmanager
def forwarded(path: str) -> Iterator[str]:
    """Make a port of TCP that leads to a Unix socket, as ``ssh -L`` does; yield its URL."""
    opened, threads = list[socket.socket](), list[threading.Thread]()

    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, far = server.accept()[0], socket.socket(socket.AF_UNIX)
                opened.extend([near, far])
                far.connect(path)
                for pair in ((near, far), (far, near)):
                    start(copy, *pair)

    def start(work: Callable[..., None], *given: socket.socket) -> None:
        threads.append(threading.Thread(target=work, args=given))
        threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        start(accept)
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            for each in (server, *opened):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)  # wakes its thread
            for thread in threads:
                thread.join()
            for each in opened:
                each.close()


class Page:
    """The page of a service, and a client of it."""

    def __init__(self, browser: Any, service: Service, client: Any) -> None:
        self.browser, self.service, self.client = browser, service, client

    def open(self, address: str | None = None, token: str | None = TOKEN) -> None:
        """Open the page, as if it had never been open, with a token, and wide."""
        address = address or self.service.address
        prefer(self.browser)
        resize(self.browser, 1280, 900)
        self.browser.get(f"{address}/page/icon.svg")  # of the same origin
        self.script("localStorage.clear(); sessionStorage.clear()")
        if token is not None:
            self.script("sessionStorage.setItem('distscan-token', arguments[0])", token)
        self.messages()
        self.browser.get(address)

    def submit_slow(self) -> Any:
        """Submit a job that runs for ten seconds or more, unless it is cancelled."""
        return self.submit("slow.npy", op="logaddexp", threads=1)  # NumPy does the work

    def submit(self, name: str = "x.npy", output: str = "y.npy", **options: Any) -> Any:
        """Submit a job of a file in the service's folder."""
        folder = self.service.folder
        return self.client.submit(folder / name, folder / output, force=True, **options)

    # ---- what is shown ---------------------------------------------------------------------------

    def find(self, selector: str) -> Any:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[Any]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """The text of what is shown; "" if there is none."""
        with suppress(StaleElementReferenceException):
            return " ".join(found.text for found in self.all(selector) if found.is_displayed())
        return ""

    def row(self, job: Any) -> str:
        """The selector of a job in the history."""
        return f"#history [data-job='{job.number}']"

    def until(self, done: Callable[[], object]) -> None:
        """Wait until something is so. It is asked again if the page has replaced an element."""
        stale = [StaleElementReferenceException]
        WebDriverWait(self.browser, 20, 0.05, stale).until(lambda _: done())

    def click(self, selector: str) -> None:
        """Click an element, also if the page replaces it meanwhile."""
        self.until(lambda: self.find(selector).click() is None)

    def live(self) -> None:
        """Wait until the page follows the service."""
        self.until(lambda: self.text("#connection") == "live")

    def shows(self, job: Any, state: str) -> None:
        """Wait until the history has a job in a state."""
        self.until(lambda: self.text(f"{self.row(job)} .badge").endswith(state))

    def script(self, text: str, *given: Any) -> Any:
        return self.browser.execute_script(text, *given)

    def faint_texts(self) -> tuple[list[str], int]:
        """The texts of less contrast than WCAG AA has, 4.5; and how many texts are shown."""
        faint, count = self.script(_FAINT)
        return faint, count

    def messages(self) -> list[str]:
        """What the console has said since this was asked last."""
        return [each["message"] for each in self.browser.get_log("browser")]

    def lost(self) -> bool:
        """Whether all that the console has said is that the service could not be followed."""
        return all(re.search("/v1/(events|activity)[^ ]* - ", each) for each in self.messages())

    # ---- the keyboard ----------------------------------------------------------------------------

    def press(self, key: str) -> None:
        self.browser.switch_to.active_element.send_keys(key)

    def focused(self) -> str:
        """The name of what has the focus."""
        found = self.browser.switch_to.active_element
        return found.get_attribute("aria-label") or found.text

    def tab_to(self, label: str) -> None:
        """Press Tab until something has the focus, and is seen to have it."""
        for _ in range(60):
            self.press(Keys.TAB)
            if self.focused() == label:
                assert self.script("return document.activeElement.matches(':focus-visible')")
                return
        raise AssertionError(f"no way to {label}")
