"""A real browser, what it saw on the way, and what axe-core finds in a page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import ActionChains, Chrome, ChromeOptions, ChromeService, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.support.binaries import find_program, require_program
from tests.support.waiting import block_until

_AXE = Path(__file__).parents[2] / "build/axe/axe_playwright_python/axe.min.js"
# It asks nobody but the pages' own server: no updates, no translation, no names.
_OPTIONS = (
    "--headless=new",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--lang=en-GB",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    # Root, and users of containers, may make no namespaces. All pages are our own.
    "--no-sandbox",
)
_WIDTH, _HEIGHT = 1280, 860
_WAIT_S = 60
_COLOURS = 48
_ROUNDS = 3
# What the keyboard must reach: one of the buttons of a radio group stands for all of them.
_CONTROLS = """
const named = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex]";
const all = [...document.querySelectorAll(named)].filter((each) => each.tabIndex >= 0 && !each.disabled
  && each.checkVisibility({visibilityProperty: true}) && !(each.type === "radio" && !each.checked));
"""


class Browser:
    """A browser with one page.

    Attributes:
        driver: What steers it.
        console: Errors in the console that `errors` has not returned yet.
        asked: The address of each request that any page made, since it was looked at last.
        servers: Those whose pages were opened.
    """

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver
        self.console: list[str] = []
        self.asked: list[str] = []
        self.servers: set[str] = set()

    def look(self, url: str, *, dark: bool | None = None) -> None:
        """Opens a page, as a reader sees it who prefers dark colours or light ones."""
        if dark is not None:
            preferred = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [preferred]})
        self.servers.add("{0.scheme}://{0.netloc}/".format(urlsplit(url)))
        self.driver.get(url)

    def forget(self) -> None:
        """Leaves its page, which would go on asking a server that may end, and drops all cookies."""
        self.driver.get("about:blank")
        self.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})

    def fill(self, name: str, value: str) -> None:
        """Types into a field of a form, in place of what is there."""
        field = self.driver.find_element(By.NAME, name)
        field.clear()
        field.send_keys(value)

    def press(self, button: str) -> None:
        """Presses the button with a text, and waits for the next page."""
        before = self.driver.find_element(By.TAG_NAME, "html")
        self.driver.find_element(By.XPATH, f"//button[starts-with(normalize-space(), '{button}')]").click()
        block_until(lambda: self._is_gone(before))

    def buttons(self) -> list[str]:
        """The texts of all buttons."""
        return [each.text for each in self.driver.find_elements(By.TAG_NAME, "button")]

    def log_in(self, url: str, token: str) -> None:
        """Gives a dashboard a token."""
        self.look(f"{url}/login")
        self.fill("token", token)
        self.press("Log in")

    @staticmethod
    def _is_gone(element: WebElement) -> bool:
        try:
            element.is_enabled()
        except StaleElementReferenceException:
            return True
        return False

    @property
    def text(self) -> str:
        """All text of the page, shown or for screen readers alone."""
        return str(self.driver.execute_script("return document.body.textContent"))

    def rows(self, caption: str) -> list[list[str]]:
        """The cells of the table whose caption begins so."""
        found: list[list[str]] = self.run(
            "const table = [...document.querySelectorAll('table')].find((each) =>"
            " each.caption?.textContent.startsWith(arguments[0]));"
            "return [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent.trim()));",
            caption,
        )
        return found

    def run(self, script: str, *arguments: object) -> Any:
        """What a script returns that runs in the page."""
        return self.driver.execute_script(script, *arguments)

    def walk(self, url: str, most: int) -> set[str]:
        """Follows links from the first page of a server to so many others, none of which may have errors."""
        left, seen = ["/stuck"], {"/stuck"}
        while left:
            path = left.pop()
            self.look(url + path)
            for link in self.run("return [...document.links].map((each) => each.pathname + each.search)"):
                if link not in seen and len(seen) < most:
                    seen.add(link)
                    left.append(link)
            assert self.errors() == [], path
        return seen

    def errors(self) -> list[str]:
        """What the console has shown as errors since the last call, such as what the policy of the page forbids."""
        self._read_logs()
        errors, self.console = self.console, []
        return errors

    def outside(self) -> list[str]:
        """Requests of pages since the last call that went to no server whose pages were opened."""
        self._read_logs()
        asked, self.asked = self.asked, []
        return [each for each in asked if not each.startswith((*self.servers, "data:"))]

    def findings(self) -> list[str]:
        """What axe-core finds in the page: the rule and the element, a line each."""
        if not _AXE.exists():
            pytest.skip("axe-core is missing (`make browser` downloads it)")
        self.driver.execute_script(_AXE.read_text(encoding="utf-8"))
        found: list[dict[str, Any]] = self.driver.execute_async_script(
            "const done = arguments[0]; axe.run({resultTypes: ['violations']}).then((found) => done(found.violations),"
            " (error) => done([{id: 'axe-core failed', help: String(error), nodes: [{html: '', failureSummary: ''}]}]))"
        )
        return [
            f"{each['id']}: {each['help']}: {node['html'][:200]} {node.get('failureSummary', '')}"
            for each in found
            for node in each["nodes"]
        ]

    def unreached(self) -> list[str]:
        """Controls of the page that the tab key does not reach."""
        count = self.driver.execute_script(
            # A page that refreshes itself meanwhile has other elements.
            f"document.querySelector('#refresh:checked')?.click(); {_CONTROLS}"
            "window.reached = new Set(); document.activeElement.blur();"
            "document.addEventListener('focusin', (event) => window.reached.add(event.target)); return all.length;"
        )
        left: list[str] = []
        # Browsers stop at more than those, such as at what scrolls.
        for _ in range(_ROUNDS):
            ActionChains(self.driver, duration=0).send_keys(*[Keys.TAB] * (int(count) + 5)).perform()
            left = self.driver.execute_script(
                f"{_CONTROLS} return all.filter((each) => !window.reached.has(each))"
                ".map((each) => each.outerHTML.slice(0, 200));"
            )
            if not left:
                break
        return left

    def picture(self, path: Path) -> None:
        """Writes the page as a small PNG."""
        shown = Image.open(BytesIO(self.driver.get_screenshot_as_png())).convert("RGB")
        path.parent.mkdir(parents=True, exist_ok=True)
        shown.quantize(_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)

    def _read_logs(self) -> None:
        self.console += [str(each["message"]) for each in self._log("browser") if each["level"] == "SEVERE"]
        for each in self._log("performance"):
            message = json.loads(each["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.asked.append(str(message["params"]["request"]["url"]))

    def _log(self, kind: str) -> Sequence[dict[str, Any]]:
        entries: Sequence[dict[str, Any]] = self.driver.get_log(kind)  # type: ignore[no-untyped-call]
        return entries


@contextmanager
def running_browser(directory: Path) -> Iterator[Browser]:
    """Runs a browser with a new profile in a directory; skips the test where there is none."""
    chrome = find_program("google-chrome") or require_program("chromium")
    driver = require_program("chromedriver")
    options = ChromeOptions()
    options.binary_location = str(chrome.path)
    for each in (*_OPTIONS, f"--user-data-dir={directory}", f"--window-size={_WIDTH},{_HEIGHT}"):
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = ChromeService(str(driver.path), env={"LANG": "C.UTF-8", "HOME": str(directory), **chrome.environment})
    chromium = Chrome(options=options, service=service)
    try:
        chromium.set_page_load_timeout(_WAIT_S)
        chromium.set_script_timeout(_WAIT_S)
        browser = Browser(chromium)
        # What it shows before the first page is its own.
        browser.look("about:blank")
        browser.errors()
        browser.outside()
        yield browser
    finally:
        chromium.quit()
