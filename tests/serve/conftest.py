"""Fixtures of the service's tests."""

import contextlib
import os

import pytest

import outfield as of

CHROMIUM = "/usr/bin/chromium"
CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Paths of two guards, ``fused`` and ``ssd``."""
    from tests.helpers.service import guard_files  # needs the extra, which a machine with a GPU may lack

    return guard_files(tmp_path_factory.mktemp("guards"))


@pytest.fixture(scope="session")
def images():
    """Three that both guards know, and two that they do not."""
    from tests.helpers.guards import labelled, noise

    return [*labelled(3, 5).images, *noise(2)]


@pytest.fixture(scope="session")
def row_guards(tmp_path_factory):
    """A folder of guards of rows: ``people`` and ``sizes`` of tables, ``plain`` of features."""
    from tests.guard.test_rows import people
    from tests.helpers.samples import make_set

    folder, guard = tmp_path_factory.mktemp("row guards"), of.Guard
    guard.build_rows(people(400, 0), label="group", missing="median").save(folder / "people.guard")
    guard.build_rows(people(400, 0)[["size", "weight"]]).save(folder / "sizes.guard")
    guard.build_rows(make_set(n=300), detector="SSD").save(folder / "plain.guard")
    return folder


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if not os.path.exists(CHROMIUM):
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as found:
        opened = found.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *CAMERA])
        yield opened
        opened.close()


@pytest.fixture
def opened(browser):
    """Opens the page of a service for a block, at whose end its scripts must not have failed, nor asked other places.

    With ``quiet`` nothing must have been refused either.
    """

    @contextlib.contextmanager
    def opened(service, width=1200, height=900, quiet=False):
        wrong = []
        context = browser.new_context(viewport={"width": width, "height": height})
        page, ours = context.new_page(), (service.address, "blob:")
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if quiet and said.type == "error" else None)
        page.on("request", lambda asked: None if asked.url.startswith(ours) else wrong.append(asked.url))
        page.goto(service.address)
        if service.service.settings.token is None:
            page.locator("#guard option").first.wait_for(state="attached")
        yield page
        context.close()
        assert wrong == []

    return opened
