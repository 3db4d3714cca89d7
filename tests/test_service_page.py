"""The page of a service, in a real browser."""

import os
import re
import signal
import socket
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from support.services import serving

sys.path.append(str(Path(__file__).parents[1] / "launch"))

from headless import browsing, prefer, resize

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]
TOKEN = "0123456789abcdef-a-token"
HOSTILE = "<img src=x onerror=window.hit=1>\u202e.npy"


@pytest.fixture(scope="module")
def browser():
    """Without one, the tests are skipped; in CI, they fail."""
    with ExitStack() as held:
        try:
            made = held.enter_context(browsing())
        except FileNotFoundError as error:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip(str(error))
        yield made


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    np.save(folder / "x.npy", np.arange(1000))
    np.save(folder / HOSTILE, np.arange(1000))
    np.lib.format.open_memmap(folder / "long.npy", "w+", "f8", (1 << 28,))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]  # that it has again when it is started again
    given = ["--host", "127.0.0.1", "--port", str(port), "--token-file", str(folder / "token")]
    with serving(folder, 1, *given) as made:
        yield made


@pytest.fixture
def client(service):
    with service.client(TOKEN, 20.0) as made:
        yield made
        for job in made.jobs(10):
            job.cancel()


@pytest.fixture
def page(browser, service, client):
    """The page, unlocked, and wide. At the end, its console has no message."""
    page = Page(browser, service.address)
    resize(browser, 1280, 900)
    browser.get(f"{service.address}/page/icon.svg")  # of the same origin
    browser.execute_script("localStorage.clear()")
    browser.execute_script("sessionStorage.setItem('distscan-token', arguments[0])", TOKEN)
    page.messages()
    browser.get(service.address)
    page.until(lambda: page.text("#connection") == "live")
    yield page
    assert page.messages() == []


class Page:
    """What the tests do with the page."""

    def __init__(self, browser, address):
        self.browser, self.address = browser, address

    def find(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector):
        """The text of what is shown; "" if there is none."""
        with suppress(StaleElementReferenceException):
            return " ".join(found.text for found in self.all(selector) if found.is_displayed())
        return ""

    def until(self, done, seconds=20):
        return WebDriverWait(self.browser, seconds, 0.05).until(lambda _: done())

    def row(self, number):
        return f"#history [data-job='{number}']"

    def shows(self, number, state):
        """Wait until the history shows a job in a state."""
        self.until(lambda: self.text(f"{self.row(number)} .badge").endswith(state))

    def script(self, text, *given):
        return self.browser.execute_script(text, *given)

    def messages(self):
        """What the console says."""
        return [each["message"] for each in self.browser.get_log("browser")]

    def focused(self):
        found = self.browser.switch_to.active_element
        return found.get_attribute("aria-label") or found.text

    def tab_to(self, label):
        """Press Tab until something has the focus."""
        for _ in range(60):
            self.press(Keys.TAB)
            if self.focused() == label:
                assert self.script("return document.activeElement.matches(':focus-visible')")
                return
        raise AssertionError(f"no way to {label}")

    def press(self, key):
        self.browser.switch_to.active_element.send_keys(key)


def submit(client, service, name="x.npy", output="y.npy", **options):
    return client.submit(service.folder / name, service.folder / output, force=True, **options)


# ---- the token -----------------------------------------------------------------------------------


def test_the_token(browser, service, client):
    """It is asked for; a wrong one is refused; the right one stays in this tab."""
    page, job = Page(browser, service.address), submit(client, service)
    browser.get(service.address)
    page.until(lambda: page.text("#locked-title") == "This service needs its token")
    assert page.text("#jobs") == ""
    assert browser.switch_to.active_element.get_attribute("type") == "password"
    assert page.text("#wrong") == ""
    for wrong in ("wrong", "\u00e9" * 20):
        page.press(wrong + Keys.ENTER)
        page.until(lambda: page.text("#wrong") == "The service refuses this token.")
        page.until(lambda: browser.switch_to.active_element.get_attribute("value") == "")
    page.press(TOKEN + Keys.ENTER)
    page.shows(job.number, "done")
    assert page.text("#locked") == ""
    kept = "return [JSON.stringify(sessionStorage), JSON.stringify(localStorage), document.cookie]"
    session, local, cookie = browser.execute_script(kept)
    assert TOKEN in session
    assert TOKEN not in local + cookie + browser.current_url
    page.find("#forget").click()
    page.until(lambda: page.text("#locked-title") != "")
    assert TOKEN not in browser.execute_script(kept)[0]
    for message in page.messages():  # a browser tells of each 401
        assert re.search("/v1/events - .* status of 401", message)


# ---- jobs ----------------------------------------------------------------------------------------


def test_a_job_from_its_beginning_to_its_end(page, service, client):
    """It waits, runs, and ends, without a reload."""
    page.script("window.here = true")
    first, second = submit(client, service, "long.npy"), submit(client, service, op="max")
    page.until(lambda: page.text(f"#running [data-job='{first.number}'] .badge") == "running")
    page.until(lambda: page.text(f"#waiting [data-job='{second.number}'] .op") == "max")
    assert page.text("#waiting-count") == "1"
    first.cancel()
    page.shows(second.number, "done")
    page.shows(first.number, "cancelled")
    page.until(lambda: page.text("#waiting") == "No job waits: the next one begins at once.")
    assert "python -m distscan submit input.npy" in page.text("#running")
    said = "return document.getElementById('said').textContent"  # for those who do not see
    page.until(lambda: page.script(said) == f"Job {second.number}: done")
    assert page.script("return window.here")
    bar = page.find(f"{page.row(second.number)} .timeline").get_attribute("aria-label")
    assert re.match(r"ran [\d.]+ \w+: waited .*, start .*, read .*, scan .*, write ", bar)


def test_progress(page, service, client):
    """Phase, bytes, speed, and what is left, as the job goes on."""
    job = submit(client, service, "long.npy", threads=1)

    def done():
        return page.script("return document.querySelector('#running progress')?.value ?? 0")

    page.until(lambda: done() > 0)
    before = done()
    page.until(lambda: done() > before)
    page.until(lambda: re.search(r"Rate\n[\d.]+ [kMG]B/s", page.text("#running .facts")))
    said = page.text("#running .facts")
    assert re.search(r"Bytes\n[\d.]+ [kMG]?B of 2.15 GB", said)
    assert re.search(r"Left in this phase\n(under )?\d+ (s|min)", said)
    assert re.fullmatch(r"\d+ %", page.text("#running .part"))
    assert re.match(rf"\d+ % · job {job.number}", page.browser.title)
    job.cancel()
    page.shows(job.number, "cancelled")


def test_cancel_by_keyboard(page, service, client):
    """One that waits at once; one that runs after a question."""
    runs = submit(client, service, "long.npy", threads=1)
    waits = [submit(client, service) for _ in range(2)]
    page.until(lambda: page.text(f"#waiting [data-job='{waits[1].number}']"))
    page.tab_to(f"Cancel job {waits[0].number}")
    page.press(Keys.ENTER)
    page.shows(waits[0].number, "cancelled")
    assert page.focused() == f"Cancel job {waits[1].number}"
    page.browser.execute_script("document.activeElement.blur()")
    page.tab_to(f"Cancel job {runs.number}")
    page.press(Keys.ENTER)
    page.until(lambda: page.text("#sure-title") == f"Cancel job {runs.number}?")
    page.press(Keys.ESCAPE)
    page.until(lambda: page.text("#sure-title") == "")
    assert runs.state == "running"
    page.until(lambda: page.focused() == f"Cancel job {runs.number}")
    page.press(Keys.ENTER)
    page.until(lambda: page.focused() == "Let it run")
    page.press(Keys.TAB)
    assert page.focused() == "Cancel the job"
    page.press(Keys.ENTER)
    page.shows(runs.number, "cancelled")
    page.shows(waits[1].number, "done")


def test_a_job_that_fails(page, service, client):
    """Its error is there in full, on opening."""
    job = submit(client, service, "none.npy")
    page.shows(job.number, "failed")
    error = job.refresh()["error"]
    assert page.text(f"{page.row(job.number)} .paths .wrong").startswith("cannot read")
    button = page.find(f"{page.row(job.number)} button")
    assert button.get_attribute("aria-expanded") == "false"
    assert page.text(f"{page.row(job.number)} .error") == ""
    button.send_keys(Keys.ENTER)
    assert button.get_attribute("aria-expanded") == "true"
    assert page.text(f"{page.row(job.number)} .error") == f"{error['type']}\n{error['message']}"


def test_what_a_report_says(page, service, client):
    job = submit(client, service, op="max", reverse=True)
    page.shows(job.number, "done")
    page.find(f"{page.row(job.number)} button").click()
    said = page.text(f"{page.row(job.number)} .details")
    for fact in ("Array\n1,000 elements, int64 to int64", "Total\n999", "Options\nreverse, force",
                 f"Output\n{service.folder}/y.npy", "1 rank on 1 node"):  # fmt: skip
        assert fact in said
    rows = [row.text.split()[0] for row in page.all(f"{page.row(job.number)} .phases tbody tr")]
    assert rows == [name for name, time in job.refresh()["report"]["seconds"].items() if time > 0]


def test_hostile_names(page, service, client):
    """They are text, and nothing in them is unseen."""
    job = submit(client, service, HOSTILE, "y.npy")
    page.shows(job.number, "done")
    page.find(f"{page.row(job.number)} button").click()
    shown = HOSTILE.replace("\u202e", "\\u{202e}")
    assert shown in page.text(f"{page.row(job.number)} .paths")
    assert f"Input\n{service.folder}/{shown}" in page.text(f"{page.row(job.number)} .details")
    assert page.all("main img") == []
    assert page.script("return window.hit") is None


def test_filters(page, service, client):
    failed, done = submit(client, service, "none.npy"), submit(client, service, op="bitwise_or")
    page.shows(failed.number, "failed")
    page.shows(done.number, "done")

    def shown():
        return [int(row.get_attribute("data-job")) for row in page.all("#history [data-job]")]

    page.find("#text").send_keys("BITWISE y.npy")
    page.until(lambda: shown() == [done.number])
    assert re.fullmatch(r"1 of \d+", page.text("#history-count"))
    page.find("#state").send_keys("failed")
    page.until(lambda: shown() == [])
    assert "No job passes the filters" in page.text("#history")
    page.find("#text").clear()
    page.find("#text").send_keys("cannot read")
    page.until(lambda: failed.number in shown() and done.number not in shown())


def test_older_jobs(page, service, client):
    """A snapshot has the newest hundred; the others are asked for."""
    for _ in range(105):
        submit(client, service, "none.npy")
    newest = client.jobs(1)[0]
    page.shows(newest.number, "failed")
    page.browser.refresh()
    page.shows(newest.number, "failed")
    assert len(page.all("#history [data-job]")) == 100
    page.find("#history .more").click()
    page.until(lambda: len(page.all("#history [data-job]")) == newest.number)
    assert page.text("#history .more") == ""


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


def test_narrow(page, service, client):
    """At 360 pixels nothing needs to be scrolled sideways, also with all details."""
    jobs = [submit(client, service, HOSTILE, f"{'long-name-' * 20}.npy"),
            submit(client, service, "none.npy"), submit(client, service, "long.npy", threads=1),
            submit(client, service)]  # fmt: skip
    page.shows(jobs[1].number, "failed")
    page.until(lambda: page.text(f"#waiting [data-job='{jobs[3].number}']"))
    for button in page.all("button.open")[:20]:
        page.script("arguments[0].click()", button)
    for width in (360, 600, 900, 1280):
        resize(page.browser, width, 800)
        found = page.script("return [document.documentElement.scrollWidth, innerWidth]")
        assert found == [width, width]


def test_reduced_motion(page, service, client):
    prefer(page.browser, prefers_reduced_motion="reduce")
    moving = page.script(
        "return document.getAnimations().length + [...document.querySelectorAll('*')]"
        ".filter(each => getComputedStyle(each).transitionDuration !== '0s').length"
    )
    assert moving == 0
    prefer(page.browser, prefers_reduced_motion="no-preference")


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


def test_a_service_that_ends_and_comes_back(page, service, client):
    """The page says so, waits, and goes on by itself."""
    job = submit(client, service, "long.npy", threads=1)
    page.until(lambda: page.text("#running .part"))
    os.kill(*service.ranks_of(), signal.SIGTERM)
    page.until(lambda: page.text("#ending").startswith("The service is ending"))
    job.cancel()
    assert service.wait() == 0
    page.until(lambda: re.fullmatch(r"reconnecting in \d+ s", page.text("#connection")))
    assert page.text("#lost").startswith("No connection: ")
    assert page.text("#ending") == ""
    assert page.text(page.row(job.number)) != ""
    service.start()
    page.find("#again").click()
    page.until(lambda: page.text("#connection") == "live")
    assert page.text("#lost") == ""
    last = submit(client, service)
    page.shows(last.number, "done")
    for message in page.messages():
        assert "/v1/events - " in message
