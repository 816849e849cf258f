"""A browser for tests of the dashboard: the distribution's Chromium, which `make test` installs."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, sync_playwright

T = TypeVar("T")

NAMES = ("chromium", "chromium-browser", "google-chrome")
IN_TIME = 60_000
"""Milliseconds for anything to appear on a page."""
SERIOUS = frozenset({"serious", "critical"})
PHONE, DESK = 360, 1400


def find_browser() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def require_browser() -> str:
    """The program. Without one, tests are skipped; in CI they fail, unless TARRY_ALLOW_MISSING_BROWSER is set."""
    if found := find_browser():
        return found
    reason = "NO BROWSER: the dashboard is not tested. Run `make test`, or install the package chromium."
    if os.environ.get("CI") and not os.environ.get("TARRY_ALLOW_MISSING_BROWSER"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def apart(work: Callable[[], T]) -> T:
    """In another thread: this one belongs to the event loop of Playwright while a browser is open."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    program = require_browser()
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=[*options, "--disable-dev-shm-usage"])
        try:
            yield opened
        finally:
            opened.close()


@dataclass
class Visitor:
    """One person at the dashboard, with a window of their own."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)
    """Errors of scripts, refusals by the content security policy, and dialogs that a page opened."""
    foreign: list[str] = field(default_factory=list)
    """Requests to other places than the service."""

    def __post_init__(self) -> None:
        self.page.set_default_timeout(IN_TIME)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda message: self._note(message.type, message.text))
        self.page.on("dialog", self._dismiss)
        self.page.on("request", lambda request: self._check(request.url))

    def _note(self, kind: str, text: str) -> None:
        if kind == "error" and not text.startswith("Failed to load resource"):
            self.complaints.append(text)

    def _dismiss(self, dialog: Dialog) -> None:
        self.complaints.append(dialog.message)
        dialog.dismiss()

    def _check(self, url: str) -> None:
        if not url.startswith(self.url):
            self.foreign.append(url)

    def log_in(self, token: str, person: str = "") -> Visitor:
        self.open("/login")
        self.page.get_by_label("Token", exact=True).fill(token)
        self.page.get_by_label("Your name").fill(person)
        self.click("Log in")
        self.page.get_by_role("button", name="Log out").wait_for()
        return self

    def open(self, path: str) -> int:
        """The status of the answer."""
        answer = self.page.goto(self.url + path)
        assert answer is not None
        return answer.status

    def click(self, button: str) -> None:
        self.page.get_by_role("button", name=button, exact=True).click()

    def follow(self, link: str) -> None:
        self.page.get_by_role("link", name=link, exact=True).click()

    @property
    def text(self) -> str:
        return self.page.locator("body").inner_text()

    def wait_text(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for()

    def is_too_wide(self) -> bool:
        """Whether the page has to be scrolled sideways."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth"))

    def barriers(self) -> list[str]:
        """What axe finds on this page that is a serious barrier for somebody."""
        found: list[dict[str, Any]] = Axe().run(self.page).response["violations"]
        return [
            f"{one['id']}: {one['help']} ({one['nodes'][0]['html'][:200]})" for one in found if one["impact"] in SERIOUS
        ]


@contextlib.contextmanager
def visitor(
    opened: Browser, url: str, *, width: int = DESK, scheme: str = "light", scripts: bool = True
) -> Iterator[Visitor]:
    context: BrowserContext = opened.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
        java_script_enabled=scripts,
    )
    try:
        yield Visitor(context.new_page(), url)
    finally:
        context.close()
