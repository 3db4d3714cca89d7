"""The page of a service, in a real browser: token, jobs, looks, refusals, a service that ends."""

import os
import re
import signal
from contextlib import suppress

import numpy as np
import pytest
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
)
from selenium.webdriver.common.keys import Keys

from support.pages import HOSTILE, TOKEN, forwarded, prefer, resize
from support.services import serving

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]

# ---- the token -----------------------------------------------------------------------------------


def test_the_token(page):
    """It is asked for; a wrong one is refused; the right one stays in this tab."""
    browser, job = page.browser, page.submit()
    page.open(token=None)
    page.until(lambda: page.text("#locked-title") == "This service needs its token")
    assert page.text("#jobs") == ""
    assert browser.switch_to.active_element.get_attribute("type") == "password"
    assert page.text("#wrong") == ""
    for wrong in ("wrong", "\u00e9" * 20):
        page.press(wrong + Keys.ENTER)
        page.until(lambda: page.text("#wrong") == "The service refuses this token.")
        page.until(lambda: browser.switch_to.active_element.get_attribute("value") == "")
    page.press(TOKEN + Keys.ENTER)
    page.shows(job, "done")
    assert page.text("#locked") == ""
    stores = (
        "return [JSON.stringify(sessionStorage), JSON.stringify(localStorage), document.cookie]"
    )
    session, local, cookie = page.script(stores)
    assert TOKEN in session
    assert TOKEN not in local + cookie + browser.current_url
    page.click("#forget")
    page.until(lambda: page.text("#locked-title") != "")
    assert TOKEN not in page.script(stores)[0]
    assert page.lost()  # the console tells of each 401


# ---- jobs ----------------------------------------------------------------------------------------


def test_a_job_from_its_beginning_to_its_end(page):
    """It waits, runs, and ends, without a reload."""
    page.script("window.here = true")
    first, second = page.submit_slow(), page.submit(op="max")
    page.until(lambda: page.text(f"#running [data-job='{first.number}'] .badge") == "running")
    page.until(lambda: page.text(f"#waiting [data-job='{second.number}'] .op") == "max")
    assert page.text("#waiting-count") == "1"
    first.cancel()
    page.shows(second, "done")
    page.shows(first, "cancelled")
    page.until(lambda: page.text("#waiting") == "No job waits.")
    assert "python -m distscan submit input.npy" in page.text("#running")
    announcement = "return document.getElementById('said').textContent"  # for those who do not see
    page.until(lambda: page.script(announcement) == f"Job {second.number}: done")
    assert page.script("return window.here")
    bar = page.find(f"{page.row(second)} .timeline").get_attribute("aria-label")
    assert re.match(r"ran [\d.]+ \w+: waited .*, start .*, read .*, scan .*, write ", bar)


def test_progress(page):
    """Phase, bytes, speed, and the time that is left, as the job goes on."""
    job = page.submit_slow()

    def nbytes():
        return page.script("return document.querySelector('#running progress')?.value ?? 0")

    page.until(lambda: nbytes() > 0)
    before = nbytes()
    page.until(lambda: nbytes() > before)
    page.until(lambda: re.search(r"Rate\n[\d.]+ [kMG]B/s", page.text("#running .facts")))
    text = page.text("#running .facts")
    assert re.search(r"Bytes\n[\d.]+ [kMG]?B of 1.07 GB", text)
    assert re.search(r"Left in this phase\n(under )?\d+ (s|min)", text)
    assert re.fullmatch(r"\d+ %", page.text("#running .part"))
    assert re.match(rf"\d+ % · job {job.number}", page.browser.title)
    job.cancel()
    page.shows(job, "cancelled")


def test_cancel_by_keyboard(page):
    """One that waits at once; one that runs after a question."""
    runs = page.submit_slow()
    waits = [page.submit() for _ in range(2)]
    page.until(lambda: page.text(f"#waiting [data-job='{waits[1].number}']"))
    page.tab_to(f"Cancel job {waits[0].number}")
    page.press(Keys.ENTER)
    page.shows(waits[0], "cancelled")
    assert page.focused() == f"Cancel job {waits[1].number}"
    page.script("document.activeElement.blur()")
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
    page.shows(runs, "cancelled")
    page.shows(waits[1], "done")


def test_a_question_whose_job_ends(page):
    """The dialog closes: there is nothing to cancel any more."""
    job = page.submit_slow()
    page.until(lambda: page.text(f"#running [data-job='{job.number}'] .badge") == "running")
    page.click("#running button.cancel")
    page.until(lambda: page.text("#sure-title") == f"Cancel job {job.number}?")
    job.cancel()  # from elsewhere
    page.shows(job, "cancelled")
    page.until(lambda: page.text("#sure-title") == "")
    assert page.focused() == "Running"
    assert page.text("#fault") == ""


def test_a_job_that_fails(page):
    """Its error is there in full, on opening."""
    job = page.submit("none.npy")
    page.shows(job, "failed")
    error = job.refresh()["error"]
    assert page.text(f"{page.row(job)} .paths .wrong").startswith("cannot read")
    button = page.find(f"{page.row(job)} button")
    assert button.get_attribute("aria-expanded") == "false"
    assert page.text(f"{page.row(job)} .error") == ""
    button.send_keys(Keys.ENTER)
    assert button.get_attribute("aria-expanded") == "true"
    assert page.text(f"{page.row(job)} .error") == f"{error['type']}\n{error['message']}"


def test_details_of_a_report(page):
    job = page.submit(op="max", reverse=True)
    page.shows(job, "done")
    page.click(f"{page.row(job)} button")
    text = page.text(f"{page.row(job)} .details")
    for fact in ("Array\n1,000 elements, int64 to int64", "Total\n999", "Options\nreverse, force",
                 f"Output\n{page.service.folder}/y.npy", "1 rank on 1 node"):  # fmt: skip
        assert fact in text
    rows = [row.text.split()[0] for row in page.all(f"{page.row(job)} .phases tbody tr")]
    assert rows == [name for name, time in job.refresh()["report"]["seconds"].items() if time > 0]


def test_hostile_names(page):
    """They are text, and nothing in them is unseen."""
    job = page.submit(HOSTILE, "y.npy")
    page.shows(job, "done")
    page.click(f"{page.row(job)} button")
    text = HOSTILE.replace("\u202e", "\\u{202e}")
    assert text in page.text(f"{page.row(job)} .paths")
    assert f"Input\n{page.service.folder}/{text}" in page.text(f"{page.row(job)} .details")
    assert page.all("main img") == []
    assert page.script("return window.hit") is None


def test_filters(page):
    failed, passes = page.submit("none.npy"), page.submit(op="bitwise_or")
    page.shows(failed, "failed")
    page.shows(passes, "done")

    def numbers():
        return [int(row.get_attribute("data-job")) for row in page.all("#history [data-job]")]

    page.find("#text").send_keys("BITWISE y.npy")
    page.until(lambda: numbers() == [passes.number])
    assert re.fullmatch(r"1 of \d+", page.text("#history-count"))
    page.find("#state").send_keys("failed")
    page.until(lambda: numbers() == [])
    assert "No job passes the filters" in page.text("#history")
    page.find("#text").clear()
    page.find("#text").send_keys("cannot read")
    page.until(lambda: failed.number in numbers() and passes.number not in numbers())


def test_older_jobs(page):
    """A snapshot has the newest hundred; the others are asked for."""
    for _ in range(105):
        page.submit("none.npy")
    newest = page.client.jobs(1)[0]
    page.shows(newest, "failed")
    page.browser.refresh()
    page.shows(newest, "failed")
    assert len(page.all("#history [data-job]")) == 100
    page.click("#history .more")
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
    page.click("#theme")
    assert ground() == light


def test_narrow(page):
    """At 360 pixels nothing needs to be scrolled sideways, also with all details."""
    jobs = [page.submit(HOSTILE, f"{'long-name-' * 20}.npy"),
            page.submit("none.npy"), page.submit_slow(), page.submit()]  # fmt: skip
    page.shows(jobs[1], "failed")
    page.until(lambda: page.text(f"#waiting [data-job='{jobs[3].number}']"))
    page.script("[...document.querySelectorAll('button.open')].slice(0, 20).map(x => x.click())")
    for width in (360, 600, 900, 1280):
        resize(page.browser, width, 800)
        widths = page.script("return [document.documentElement.scrollWidth, innerWidth]")
        assert widths == [width, width]
    jobs[2].cancel()


def test_names_of_all_that_can_be_used(page):
    """Each button and field has a name; the first Tab offers to skip the header."""

    def named():
        for element in page.all("button, input, select, a"):
            if element.is_displayed():
                assert element.accessible_name
        return True

    page.until(named)  # a job that runs has its elements replaced
    page.script("document.activeElement.blur()")
    page.press(Keys.TAB)
    assert page.focused() == "Skip to the jobs"
    page.press(Keys.ENTER)
    assert page.script("return document.activeElement.id") == "main"


# ---- the policy against scripts, and a service that ends -----------------------------------------


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
    job = page.submit_slow()
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
    # It may have come back by itself: the button is gone, or just goes.
    with suppress(ElementNotInteractableException, ElementClickInterceptedException):
        page.click("#again")
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
        page.click("#running button.cancel")
        page.click("#sure-yes")
        page.shows(job, "cancelled")
        assert page.messages() == []
        page.open()
        assert service.end() == 0
