"""The whole way on studio's page, without one typed command: from a dropped folder to a model that writes."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from reportlab.pdfgen import canvas

from slm.studio.jobs import job as jobs
from slm.studio.jobs.queue import Queue

LONG_MS = 120_000
HOSTILE = "<img src=x onerror=document.title=7>.txt"
SCREENS = ("", "text", "answers", "export", "chat", "queue", "run?run=runs/notes")


@pytest.fixture(scope="module")
def studio(tmp_path_factory) -> Iterator[str]:
    """The printed address of a studio over an empty workspace."""
    workspace = tmp_path_factory.mktemp("workspace")
    process = subprocess.Popen(
        [sys.executable, "-m", "slm", "studio", "port=0", "open=false"],
        cwd=workspace,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())
    assert found
    yield found[0]
    process.terminate()
    process.wait(20)
    queue = Queue(workspace / "runs" / ".studio" / "jobs")
    for _, job_folder in queue.all():  # what a failed test left
        began = jobs.facts(job_folder / jobs.BEGAN)
        for each in (began.get("runner"), began.get("command")):
            if each and jobs.alive(each):
                os.kill(each["pid"], signal.SIGKILL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("texts") / "notes"
    folder.mkdir()
    lines = [f"The cat number {n} sat on the mat and saw {n % 7} red balls in the garden." for n in range(200)]
    (folder / "a.txt").write_text("\n".join(lines))
    (folder / "b.md").write_text("# Notes\n\n" + "\n".join(reversed(lines)))
    (folder / HOSTILE).write_text("\n".join(lines[:50]))
    pdf = canvas.Canvas(str(folder / "c.pdf"))
    pdf.drawString(72, 720, "A letter about the house, the garden and the cat.")
    pdf.save()
    (folder / "d.png").write_bytes(b"\x89PNG")
    return folder


@pytest.mark.slow
def test_from_a_folder_to_a_model_that_writes(page, studio, folder, pictures):
    tab = page.tab
    page.open(studio)
    assert "token" not in tab.url
    page.click("text=A model from my text")
    tab.set_input_files("input[webkitdirectory]", folder)
    tab.wait_for_selector("#start", timeout=LONG_MS)
    for said in ("2 .txt", "1 .md", "1 .pdf", "1 file left out: of types that are not read"):
        assert said in page.text("section[aria-label='What is in the text']"), said
    assert tab.input_value("#name") == "notes"
    tab.fill("#time", "3m")
    page.click("#start")
    tab.wait_for_selector(".chart .line, .chart .dot", timeout=LONG_MS)  # it learns
    page.click("button:has-text('Stop')")
    tab.wait_for_selector("h1 .stopped, h1 .finished", timeout=LONG_MS)
    page.screenshot(pictures / "studio-run.png")
    tab.click("a.button:has-text('Export')", timeout=LONG_MS)  # when the job has ended, too
    page.click("button:has-text('Export')")
    tab.click("article a:has-text('Chat')", timeout=LONG_MS)
    tab.fill("#prompt", "The cat number")
    tab.click("button:has-text('Send')", timeout=LONG_MS)  # when the model is loaded
    tab.wait_for_selector(".turn:not(.mine) .quiet", timeout=LONG_MS)
    assert len(page.text(".turn:not(.mine)")) > 20
    page.screenshot(pictures / "studio-chat.png")
    assert page.run("document.title").startswith("Chat")
    assert page.errors == []


def test_every_screen_fits_a_phone_and_breaks_no_rule_of_accessibility(page, studio, pictures):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe: pip install 'slm[dev]'").Axe()
    for scheme, open_tab in (("light", lambda: page.size(1200, 800)), ("dark", lambda: page.phone(390, 844))):
        page.scheme(scheme)
        open_tab()
        page.open(studio)
        for screen in SCREENS:
            page.run(f"location.hash = '#/{screen}'")
            page.wait("document.querySelector('h1') && !document.querySelector('[role=status]:not(:empty)')")
            page.tab.wait_for_timeout(400)  # what it asks for is there
            assert page.run("document.documentElement.scrollWidth <= innerWidth"), (screen, scheme)
            page.screenshot(pictures / f"studio-{screen.partition('?')[0] or 'home'}-{scheme}.png")
            found = axe.run(page.tab).response["violations"]
            serious = [each for each in found if each["impact"] in ("serious", "critical")]
            assert not serious, (screen, scheme, [(each["id"], each["nodes"][0]["html"]) for each in serious])
    assert page.errors == []
