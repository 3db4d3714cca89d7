"""A browser without a window, by Selenium: chromium and its chromedriver, as they are installed."""

from collections.abc import Iterator
from contextlib import contextmanager
from shutil import which

from selenium import webdriver
from selenium.webdriver.chrome.service import Service as Driver

_BROWSERS = "chromium", "chromium-browser", "google-chrome"
# A sandbox needs more rights than containers have; /dev/shm may be small there.
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"),
    *("--hide-scrollbars", "--lang=en-US", "--force-device-scale-factor=1"),
)


@contextmanager
def browsing() -> Iterator[webdriver.Chrome]:
    """Yield a browser that keeps its console's messages; raise FileNotFoundError without one."""
    program, driver = next(filter(None, map(which, _BROWSERS)), None), which("chromedriver")
    if program is None or driver is None:
        raise FileNotFoundError(
            "no browser: run launch/browser.sh, or install chromium and its chromedriver"
        )
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in _FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Driver(executable_path=driver))
    try:
        browser.set_page_load_timeout(20)
        browser.set_script_timeout(20)
        yield browser
    finally:
        browser.quit()


def resize(browser: webdriver.Chrome, width: int, height: int) -> None:
    """Give the page so many pixels: a window cannot be as narrow as a telephone."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def prefer(browser: webdriver.Chrome, **features: str) -> None:
    """Let the user prefer something, such as ``prefers_color_scheme="dark"``."""
    media = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
