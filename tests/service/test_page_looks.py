"""The page of a service, in a browser: how it looks, what it refuses, and a service that ends."""

import os
import re
import signal
from contextlib import suppress

import numpy as np
import pytest
from selenium.common.exceptions import ElementNotInteractableException
from selenium.webdriver.common.keys import Keys

from support.pages import HOSTILE, forwarded, prefer, resize
from support.services import serving

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]

# ---- how it looks --------------------------------------------------------------------------------


def test_light_and_dark(page):
    """As the system has it, unless the user has chosen; that is kept."""

    def ground():
        return page.script("return getComputedStyle(document.body).backgroundColor")

    light, dark = "rgb(243, 245, 248)", "rgb(14, 19, 24)"
    prefer(page.browser, prefers_color_scheme="dark")
    assert ground() == dark
    prefer(page.browser, prefers_color_scheme="light")
    assert ground() == light
    button = page.find("#theme")
    button.click()
    assert (ground(), button.text) == (light, "☀ light")
    button.click()
    assert (ground(), button.text) == (dark, "☾ dark")
    page.browser.refresh()
    page.until(lambda: page.text("#theme") == "☾ dark")
    assert ground() == dark
    page.find("#theme").click()
    assert ground() == light


def test_narrow(page):
    """At 360 pixels nothing needs to be scrolled sideways, also with all details."""
    jobs = [page.submit(HOSTILE, f"{'long-name-' * 20}.npy"),
            page.submit("none.npy"), page.submit("long.npy", threads=1),
            page.submit()]  # fmt: skip
    page.shows(jobs[1], "failed")
    page.until(lambda: page.text(f"#waiting [data-job='{jobs[3].number}']"))
    for button in page.all("button.open")[:20]:
        page.script("arguments[0].click()", button)
    for width in (360, 600, 900, 1280):
        resize(page.browser, width, 800)
        found = page.script("return [document.documentElement.scrollWidth, innerWidth]")
        assert found == [width, width]


def test_names_of_all_that_can_be_used(page):
    """Each button and field has a name; the first Tab offers to skip the header."""
    for found in page.all("button, input, select, a"):
        if found.is_displayed():
            assert found.accessible_name
    page.script("document.activeElement.blur()")
    page.press(Keys.TAB)
    assert page.focused() == "Skip to the jobs"
    page.press(Keys.ENTER)
    assert page.script("return document.activeElement.id") == "main"


# ---- what it does not do, and when the service goes ----------------------------------------------


def test_the_policy(page):
    """A script that gets into the page does not run, and nothing is sent elsewhere."""
    page.script(
        "const script = document.createElement('script'); script.textContent = 'window.hit = 1';"
        "document.body.append(script);"
    )
    assert page.script("return window.hit") is None
    sent = page.browser.execute_async_script(
        "fetch('http://localhost:1/').then(() => arguments[0]('sent'), () => arguments[0]('no'))"
    )
    assert sent == "no"
    blocked = page.messages()
    assert len([each for each in blocked if "Content Security Policy" in each]) == len(blocked) >= 2


def test_a_service_that_ends_and_comes_back(page):
    """The page says so, waits, and goes on by itself."""
    job = page.submit("long.npy", threads=1)
    page.until(lambda: page.text("#running .part"))
    os.kill(*page.service.ranks_of(), signal.SIGTERM)
    page.until(lambda: page.text("#ending").startswith("The service is ending"))
    job.cancel()
    assert page.service.wait() == 0
    page.until(lambda: re.fullmatch(r"reconnecting in \d+ s", page.text("#connection")))
    assert page.text("#lost").startswith("No connection: ")
    assert page.text("#ending") == ""
    assert page.text(page.row(job)) != ""
    page.service.start()
    with suppress(ElementNotInteractableException):  # it has come back by itself
        page.find("#again").click()
    page.live()
    assert page.text("#lost") == ""
    last = page.submit()
    page.shows(last, "done")
    assert page.lost()


def test_over_a_unix_socket(page, tmp_path):
    """By a port of TCP that leads to it: no token is asked for, jobs can be cancelled."""
    with serving(tmp_path) as service, forwarded(service.address) as address:
        np.lib.format.open_memmap(tmp_path / "long.npy", "w+", "f8", (1 << 28,))
        with service.client() as client:
            job = client.submit(tmp_path / "long.npy", threads=1)
        page.open(address, token=None)
        page.live()
        assert page.text("#forget") == ""
        page.until(lambda: page.text("#running .part"))
        page.find("#running button.cancel").click()
        page.find("#sure-yes").click()
        page.shows(job, "cancelled")
        assert page.messages() == []
        page.open()
        assert service.end() == 0
