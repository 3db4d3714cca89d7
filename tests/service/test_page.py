"""The page of a service, in a real browser: token, jobs, looks, refusals, a service that ends."""

import os
import re
import signal
from contextlib import suppress

import httpx
import numpy as np
import pytest
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
)
from selenium.webdriver.common.keys import Keys

from support.pages import HOSTILE, TOKEN, forwarded, prefer, resize
from support.services import LARGE, over_tcp, serving

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


def test_progress(page):
    """One bar for the whole job, phase, bytes, speed, and the time that is left, as it goes on."""
    job = page.submit_slow()

    def share():
        return page.script("return document.querySelector('#running progress')?.value ?? 0")

    page.until(lambda: share() > 0)
    before = share()
    page.until(lambda: share() > before)
    page.until(lambda: re.search(r"Rate\n[\d.]+ [kMG]B/s", page.text("#running .facts")))
    text = page.text("#running .facts")
    assert re.search(r"Bytes in this phase\n[\d.]+ [kMG]?B of 1.07 GB", text)
    assert re.search(r"Time left\n(under )?\d+ (s|min)", text)
    assert re.fullmatch(r"\d+ %", page.text("#running .part"))
    assert re.fullmatch(rf"\d+ % · job {job.number} · distscan", page.browser.title)
    job.cancel()
    page.shows(job, "cancelled")
    page.until(lambda: page.browser.title == "distscan")


SHARES = """
const [options, steps, answer] = arguments;
import("/page/model.js").then(({ Model }) => {
  const model = new Model();
  const job = { number: 7, state: "running", attempts: 1, request: options, progress: null };
  model.apply("job", job);
  answer(steps.map((progress) => {
    model.apply("progress", { number: 7, progress });
    return model.jobs.get(7).share;
  }));
});
"""


def test_the_share_that_a_service_says(page):
    """It is taken; one that goes backwards is not shown."""
    steps = [{"phase": "scan", "done": 1, "size": 8, "share": x} for x in (0.1, 0.6, 0.4, 0.9)]
    found = page.browser.execute_async_script(SHARES, {"op": "sum"}, steps)
    assert found == [0.1, 0.6, 0.6, 0.9]


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


# ---- links to jobs, and the form -----------------------------------------------------------------


def details(page, job):
    """The details of a job that are shown; "" if they are not."""
    return page.text(f"{page.row(job)} .details")


def test_links(page):
    """The address of the page names a job, which is open then."""
    jobs = [page.submit("none.npy"), page.submit()]
    for job, state in zip(jobs, ("failed", "done"), strict=True):
        page.shows(job, state)
    page.find("#state").send_keys("done")  # the link shows the other one all the same
    page.script("location.hash = arguments[0]", f"#job-{jobs[0].number}")
    page.until(lambda: "InputError" in details(page, jobs[0]))
    page.until(lambda: page.focused() == f"Details of job {jobs[0].number}")
    page.browser.refresh()
    page.until(lambda: "InputError" in details(page, jobs[0]))
    page.click(f"{page.row(jobs[1])} button.open")
    assert page.browser.current_url.endswith(f"#job-{jobs[1].number}")
    link = page.find(f"{page.row(jobs[1])} .actions a")
    assert link.get_attribute("href") == page.browser.current_url
    page.click(f"{page.row(jobs[1])} button.open")
    assert "#" not in page.browser.current_url
    assert details(page, jobs[1]) == ""


def test_a_link_to_a_job_that_has_not_ended(page):
    """It waits, runs, and is open when it has ended."""
    runs, waits = page.submit_slow(), page.submit()
    page.until(lambda: page.text(f"#waiting [data-job='{waits.number}']"))
    page.click(f"#waiting [data-job='{waits.number}'] a")
    assert page.browser.current_url.endswith(f"#job-{waits.number}")
    runs.cancel()
    page.shows(waits, "done")
    page.until(lambda: "Array" in details(page, waits))


def test_a_link_to_no_job(page):
    page.script("location.hash = '#job-123456789'")
    page.until(lambda: page.text("#fault").startswith("Job 123456789 is not shown: there is no"))
    assert all("/v1/jobs/123456789" in each for each in page.messages())


def test_copy(page):
    """The button copies the address of a job."""
    page.browser.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]},
    )
    job = page.submit()
    page.shows(job, "done")
    page.click(f"{page.row(job)} button.open")
    page.click(f"{page.row(job)} .actions button")
    page.until(lambda: "Copied" in page.text(f"{page.row(job)} .actions"))
    read = "navigator.clipboard.readText().then(arguments[0])"
    assert page.browser.execute_async_script(read) == page.browser.current_url


def fill(page, **fields):
    """Write into fields of the form."""
    for name, text in fields.items():
        field = page.find(f"#new-form [name={name}]")
        if field.get_attribute("type") == "checkbox":
            field.click()
        else:
            field.send_keys(text)


def test_the_form(page):
    """Its errors are shown beside it; a job that it submits is opened."""
    folder = page.service.folder
    page.click("#new-open")
    page.until(lambda: page.focused() == "" and page.text("#new-title") == "New job")
    fill(page, inputs="/nowhere/x.npy")
    assert page.find("#new-form [name=output]").get_property("value") == "/nowhere/x.scan.npy"
    page.click("#new-submit")
    page.until(lambda: "in none of the folders" in page.text("#new-wrong"))
    page.find("#new-form [name=inputs]").clear()
    page.find("#new-form [name=output]").clear()
    operators = page.script(
        "return [...document.querySelector('[name=op]').options].map(x => x.text)"
    )
    assert {"sum", "fsum", "logaddexp"} <= {*operators}
    fill(page, inputs=f"{folder}/x.npy", op="max", dtype="float64", initial="5.5", axis="0",
         memory="lots", exclusive=True, reverse=True, check=True, force=True)  # fmt: skip
    page.find("#new-form [name=output]").clear()
    fill(page, output=f"{folder}/form.npy")
    page.click("#new-submit")
    page.until(lambda: page.text("#new-wrong").startswith("The memory is a number of bytes"))
    page.find("#new-form [name=memory]").clear()
    fill(page, memory="1.5 GiB")
    page.click("#new-submit")
    page.until(lambda: "#job-" in page.browser.current_url)
    job = page.client.job(int(page.browser.current_url.rpartition("-")[2]))
    page.shows(job, "done")
    page.until(lambda: "Options" in details(page, job))
    assert page.text("#new-title") == ""
    request = job.refresh()["request"]
    assert request["inputs"] == [f"{folder}/x.npy"]
    options = {"output": f"{folder}/form.npy", "op": "max", "dtype": "float64", "axis": 0,
               "initial": "5.5", "memory": 3 << 29, "exclusive": True, "reverse": True,
               "check": True, "force": True}  # fmt: skip
    assert {name: request[name] for name in options} == options
    expected = np.maximum.accumulate(np.r_[5.5, np.arange(999.0, 0.0, -1)])[::-1]
    np.testing.assert_array_equal(np.load(folder / "form.npy"), expected)
    assert all("/v1/jobs - " in each for each in page.messages())  # that was refused


def test_submit_again(page):
    """The form has the request of a job, also the options that have no field."""
    job = page.submit(op="min", reverse=True, threads=1)
    page.shows(job, "done")
    page.click(f"{page.row(job)} button.open")
    page.until(lambda: details(page, job))
    page.all(f"{page.row(job)} .actions button")[-1].click()
    page.until(lambda: page.text("#new-title") == "New job")
    page.until(lambda: page.find("[name=output]").get_property("value").endswith("y.npy"))
    page.until(lambda: page.text("#new-others") == "Further options, of the job: threads=1")
    page.click("#new-submit")
    page.until(lambda: page.client.jobs(1)[0].number == job.number + 1)
    request = page.client.jobs(1)[0].refresh()["request"]
    assert (request["op"], request["reverse"], request["threads"]) == ("min", True, 1)


def test_the_form_by_keyboard(page):
    """It opens, closes, and gives the focus back."""
    page.tab_to("New job")
    page.press(Keys.ENTER)
    page.until(lambda: page.text("#new-title") == "New job")
    page.press(Keys.ESCAPE)
    page.until(lambda: page.text("#new-title") == "")
    assert page.focused() == "New job"


# ---- what the service has done -------------------------------------------------------------------


def test_scans_of_arrays(page):
    """The newest first: operator, elements, type, way, and why one has failed."""
    page.client.scan(np.ones((2, 3), "f4"), "max")
    page.client.scan(np.ones(LARGE))
    head = {"authorization": f"Bearer {TOKEN}"}
    assert httpx.post(f"{page.service.address}/v1/scans?op=none", headers=head).status_code == 400
    page.until(lambda: len(page.all("#scans tbody tr")) >= 3)
    rows = [row.text.split() for row in page.all("#scans tbody tr")][:3]
    expected = (
        ["failed", "ValueError", "none", "HTTP"],
        ["done", "sum", f"{LARGE:,}", "float64", "memory"],
        ["done", "max", "6", "float32", "HTTP"],
    )
    for row, words in zip(rows, expected, strict=True):
        assert {*words} <= {*row}
    for i in range(20):
        page.client.scan(np.ones(i + 1))
    page.until(lambda: "more scan" in page.text("#scans .more"))
    page.click("#scans .more")
    assert len(page.all("#scans tbody tr")) >= 23


def point(page, selector, share=0.5):
    """Point at a place of an element; return what the chart says of it."""
    box = page.script(
        "return document.querySelector(arguments[0]).getBoundingClientRect()", selector
    )
    at = box["x"] + share * box["width"], box["y"] + box["height"] / 2
    event = {"type": "mouseMoved", "x": at[0], "y": at[1]}
    page.browser.execute_cdp_cmd("Input.dispatchMouseEvent", event)
    return page.text("#timeline .readout")


def test_the_timeline(tmp_path, page):
    """Jobs and ranks have one axis of time; beside it the load. A bar is a link to its job."""
    np.save(tmp_path / "x.npy", np.ones(1 << 22))
    with serving(tmp_path, 2, *over_tcp(tmp_path)) as service, service.client(TOKEN) as client:
        jobs = [client.submit(tmp_path / "x.npy", tmp_path / f"{i}.npy") for i in range(3)]
        jobs[2].wait(30)
        client.scan(np.ones(LARGE))
        page.open(service.address)
        page.live()
        page.find("#timeline-window").send_keys("last minute")
        bars = [f"#timeline a[href='#job-{job.number}'] rect" for job in jobs]
        page.until(lambda: all(page.all(bar) for bar in bars))
        page.until(lambda: page.all("#timeline path.phase.write"))
        page.until(lambda: page.all("#timeline path.array-load"))
        names = [each.text for each in page.all("#timeline text.name")]
        assert names[:4] == ["jobs", "rank 0", "rank 1", "throughput"]
        assert "memory" in names
        rectangles = page.script(
            "return arguments[0].map(x => document.querySelector(x).getBoundingClientRect())", bars
        )
        left = [each["x"] for each in rectangles]
        assert left == sorted(left)
        phases = page.script("return document.querySelector('path.phase.read').getBBox()")
        assert phases["height"] > 15  # on both ranks
        chart = page.find("#timeline svg").rect["x"]
        assert left[0] - 3 <= phases["x"] + chart
        assert phases["x"] + phases["width"] <= left[2] - chart + rectangles[2]["width"] + chart + 3
        page.until(lambda: f"job {jobs[2].number}: done" in point(page, bars[2]))
        page.until(lambda: "arrays" in point(page, "#timeline path.array-load"))
        page.until(lambda: "memory" in point(page, "#timeline path.memory-load"))
        point(page, "#timeline-title")
        page.script("document.querySelector('#timeline svg').focus()")
        for _ in range(60):  # keys read the chart, too
            page.press(Keys.ARROW_LEFT)
            if f"job {jobs[2].number}: done" in page.text("#timeline .readout"):
                break
        else:
            raise AssertionError("the keys lead to no job")
        page.press(Keys.ARROW_DOWN)
        page.press(Keys.ARROW_DOWN)
        page.press(Keys.ARROW_DOWN)
        assert "rank 0" in page.text("#timeline .readout")
        page.click(bars[2])  # that no other bar covers
        page.until(lambda: "Array" in details(page, jobs[2]))
        chart = f"{page.row(jobs[2])} .chart"
        page.until(lambda: "rank 1" in page.text(chart))
        assert "exscan" in page.text(f"{chart} .legend")
        assert page.messages() == []
        page.open()
        assert service.end() == 0


def test_a_chart_of_a_job_that_runs(page):
    """Rank 0 is shown while the job runs."""
    job = page.submit_slow()
    page.find("#timeline-window").send_keys("last minute")
    page.until(lambda: page.all(f"#timeline a.running[href='#job-{job.number}']"))
    page.until(lambda: page.all("#timeline path.phase.scan"))
    job.cancel()
    page.shows(job, "cancelled")
    page.until(lambda: page.all(f"#timeline a.cancelled[href='#job-{job.number}']"))


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


@pytest.fixture
def crowded(page):
    """A page with all that it may have: long and hostile names, all states, all details."""
    jobs = [page.submit(HOSTILE, f"{'long-name-' * 20}.npy"), page.submit("none.npy"),
            page.submit_slow(), page.submit(HOSTILE, f"{'long-name-' * 20}.npy")]  # fmt: skip
    page.client.scan(np.ones(10))
    page.shows(jobs[1], "failed")
    page.until(lambda: page.text(f"#waiting [data-job='{jobs[3].number}']"))
    page.until(lambda: page.text("#running .part"))
    page.script("[...document.querySelectorAll('button.open')].slice(0, 20).map(x => x.click())")
    yield page
    jobs[2].cancel()


@pytest.mark.parametrize("width", [390, 1280])
def test_looks(width, crowded):
    """No text is hard to read, light or dark, also in the form; nothing is cut at the side."""
    page = crowded
    resize(page.browser, width, 840)
    for theme in ("light", "dark"):
        prefer(page.browser, prefers_color_scheme=theme)
        for dialog in (False, True):
            if dialog:
                page.click("#new-open")
                page.until(lambda: page.text("#new-title"))
            faint, count = page.faint_texts()
            assert faint == []
            assert count > 60
            if dialog:
                box = page.find("#new").rect
                assert box["x"] >= 0
                assert box["x"] + box["width"] <= width
                page.click("#new-close")


def test_narrow(crowded):
    """At no width anything needs to be scrolled sideways, also with all details."""
    for width in (320, 360, 390, 600, 861, 900, 1280):
        resize(crowded.browser, width, 800)
        widths = crowded.script("return [document.documentElement.scrollWidth, innerWidth]")
        assert widths == [width, width]


def test_names_of_all_that_can_be_used(page):
    """Each button and field has a name; the first Tab offers to skip the header."""

    buttons = "button, input, select, textarea, main a:not(svg *)"  # charts are drawn again
    few = f":is({buttons}):not(#history tbody:nth-of-type(n + 4) *)"  # rows are alike

    def named():
        for element in page.all(few):
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
