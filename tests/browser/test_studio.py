"""The whole way on studio's page, without one typed command: from a dropped folder to a model that writes, from a table
of questions to one that answers."""

import contextlib
import json
import random
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from reportlab.pdfgen import canvas

from tests.helpers.small_run import OPTIONS, last_step, write_corpus
from tests.helpers.studio import StudioProcess

PATIENT_S = 400
"""The most that one step of the way may take, on a machine that does much else."""
LEARNS = "main:has(h1 .status) .chart .line"
"""The curve of a run: the plan of a text has one, too."""
HOSTILE = "<img src=x onerror=document.title=7>.txt"
THINGS = ("ball", "lamp", "spoon", "boat", "drum", "kite", "bell", "cup")
COLOURS = ("red", "blue")


@pytest.fixture(scope="module")
def studio(tmp_path_factory) -> Iterator[StudioProcess]:
    """A studio over an empty workspace."""
    studio = StudioProcess(tmp_path_factory.mktemp("workspace"))
    yield studio
    studio.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Enough text that two minutes do not read it often: such a run would train a teacher first."""
    folder = tmp_path_factory.mktemp("texts") / "notes"
    folder.mkdir()
    chance = random.Random(5)
    words = ["".join(chance.choices("abdeiklmnorstu", k=chance.randint(3, 9))) for _ in range(4000)]

    def line(n: int) -> str:
        return f"The cat number {n} sat on the {chance.choice(words)} and saw {' '.join(chance.choices(words, k=12))}."

    (folder / "a.txt").write_text("\n\n".join("\n".join(map(line, range(40))) for _ in range(500)))
    (folder / "b.md").write_text("# Notes\n\n" + "\n".join(map(line, range(200))))
    (folder / HOSTILE).write_text("\n".join(map(line, range(50))))
    pdf = canvas.Canvas(str(folder / "c.pdf"))
    pdf.drawString(72, 720, "A letter about the house, the garden and the cat.")
    pdf.save()
    (folder / "d.png").write_bytes(b"\x89PNG")
    return folder


def until(tab, *selectors: str) -> str:
    """Wait until one of the selectors is on the page; which. A problem that the page tells ends the wait at once."""
    deadline = time.monotonic() + PATIENT_S
    while True:
        for selector in selectors:
            if tab.locator(selector).count():
                return selector
        told = tab.locator("main .problem").all_text_contents()
        assert not told, told
        assert time.monotonic() < deadline, (selectors, tab.locator("main").inner_text())
        tab.wait_for_timeout(200)


def export_and_chat(page, tab) -> None:
    until(tab, "a.button:has-text('Export')")  # when the job has ended, too
    page.click("a.button:has-text('Export')")
    page.click("button:has-text('Export')")
    until(tab, "article a:has-text('Chat')")
    page.click("article a:has-text('Chat')")
    until(tab, "button:has-text('Send'):enabled, .column p:has-text('parameters')")  # the model is loaded


@pytest.mark.slow
def test_from_a_folder_to_a_model_that_writes(page, studio, folder, look):
    tab = page.tab
    page.open(studio.url)
    assert "token" not in tab.url
    page.click("text=A model from my text")
    tab.set_input_files("input[webkitdirectory]", folder)
    until(tab, "#start")
    for said in ("2 .txt", "1 .md", "1 .pdf", "1 file left out: of types that are not read"):
        assert said in page.text("section[aria-label='What is in the text']"), said
    assert tab.input_value("#name") == "notes"
    until(tab, "#dial")
    page.click("summary:has-text('Three documents')")
    look("text-planned")
    assert re.search(
        "(This is what|The nearest is a .* model's: what) a model of English books wrote", page.text("#reads-like")
    )
    tab.fill("#time", "9m")
    assert page.text("label:has(#dial) span") == "Time: 10 min, the point nearest to 9m"
    tab.fill("#time", "2m")
    assert page.text("label:has(#dial) span") == "Time: 2 min 0 s"
    assert page.text(".tile:has-text('money') b").startswith("0.003")
    page.click("#start")
    until(tab, LEARNS)

    # Another window shows the same, live. It goes on when studio is killed and started again.
    window = page.context.new_page()
    window.goto(tab.url)
    until(window, LEARNS)
    studio.kill()
    window.wait_for_selector("text=Studio does not answer", timeout=30_000)
    studio.start()
    window.wait_for_selector("text=Studio does not answer", state="detached", timeout=30_000)
    step = last_step(studio.workspace / "runs" / "notes")
    deadline = time.monotonic() + PATIENT_S
    while tab.locator(".stopped, .finished").count() == 0 and shown_step(window) <= step:
        assert time.monotonic() < deadline
        tab.wait_for_timeout(200)

    from playwright.sync_api import Error

    with contextlib.suppress(Error):  # it may have come to its end
        tab.click("button:has-text('Stop')", timeout=3000)
    for each in (tab, window):
        until(each, "h1 .stopped, h1 .finished")
    window.close()
    look("run")
    export_and_chat(page, tab)
    tab.fill("#prompt", "The cat number")
    page.click("button:has-text('Send')")
    until(tab, ".turn:not(.mine) .quiet:not(:has-text('so far'))")
    assert len(page.text(".turn:not(.mine)")) > 20
    look("chat-text")
    assert page.run("document.title").startswith("Chat")
    assert [each for each in page.errors if "ERR_" not in each] == []  # studio was gone for a moment


def shown_step(tab) -> int:
    return int(tab.locator(".tile:has-text('step') b").first.text_content().split(" of ")[0].replace(",", ""))


@pytest.mark.slow
def test_a_table_of_questions_tunes_that_run(page, studio, tmp_path, look):
    """It is killed on the way, and resumed with one click; the score before and after; both models side by side."""
    tab = page.tab
    # Two answers to learn, one to each second question.
    rows = [(f"What colour is {thing} {n}?", f"It is {COLOURS[n % 2]}.") for thing in THINGS for n in range(5)]
    table = tmp_path / "questions.csv"
    table.write_text("question,answer\n" + "".join(f"{question},{answer}\n" for question, answer in rows))
    page.open(studio.url)
    page.click("text=A model that answers like this")
    tab.set_input_files("input[type=file] >> nth=0", table)
    until(tab, "#start")
    assert page.text(".tile:has-text('conversations')") == "conversations40"
    assert "scorenone" in page.text(".tile:has-text('put aside')")  # as tuning does with so few
    page.click("label:has-text('put a tenth')")
    assert "scoreabout 4" in page.text(".tile:has-text('put aside')")
    page.click("label:has-text('put a tenth')")
    assert tab.input_value("#base") == "runs/notes"
    assert tab.input_value("#name") == "notes-chat"
    look("answers-read")
    page.click("#start")
    until(tab, ".asked:has-text('before training')")
    until(tab, LEARNS)
    studio.kill_command("notes-chat")
    tab.wait_for_selector("h1 .failed", timeout=1000 * PATIENT_S)
    assert "it was killed (SIGKILL)" in page.text("main .problem")
    page.click("button:has-text('Resume')")
    tab.wait_for_selector("h1 .running, h1 .finished", timeout=1000 * PATIENT_S)
    until(tab, ".asked:has-text('after training')")
    until(tab, "h1 .finished")
    found = re.search(
        r": (\d+) of \d+ right; before training: (\d+) of \d+ right", page.text(".asked:has-text('after')")
    )
    assert found
    assert int(found[1]) > int(found[2])
    look("run-answers")
    export_and_chat(page, tab)
    page.click("nav a:has-text('Models')")
    page.click("article:has(h3 a:text-is('notes-chat')) a:has-text('Compare')")
    for n in (1, 2):
        until(tab, f".column:nth-child({n}) p:has-text('parameters')")
    assert "notes: " in page.text(".column:nth-child(2) option:checked")
    tab.fill("#prompt", rows[0][0])
    page.click("button:has-text('Send')")
    for n in (1, 2):
        until(tab, f".column:nth-child({n}) .turn:not(.mine) .quiet:not(:has-text('so far'))")
    look("compare")
    assert page.errors == []


def test_a_teacher_is_the_first_part_of_its_run(page, studio, tmp_path):
    """And the queue: what waits can be put before another, and be removed."""
    corpus = write_corpus(tmp_path / "texts.jsonl")
    words = [*OPTIONS, f"data.files=[{corpus}]", "distill.born_again=0.5", "distill.alpha=0.5", "train.eval_every=9999"]
    studio.queue.add("train", "pupil", ["train", *words, "name=pupil", "train.max_steps=2000"], "runs/pupil")
    for title in ("one", "two"):
        studio.queue.add("train", title, ["train", *words, f"name={title}"], f"runs/{title}")
    tab = page.tab
    page.open(f"{studio.url}#/run?run=runs/pupil")
    until(tab, "#teacher:has-text('pupil-teacher')")
    until(tab, LEARNS)
    page.run("location.hash = '#/queue'")
    until(tab, "main :text('part 1 of 2: its teacher')")
    assert tab.locator("ol li").all_text_contents()[0].startswith("one")
    page.click("ol li:has-text('two') button:has-text('Earlier')")
    tab.wait_for_selector("ol li:first-child:has-text('two')")
    for title in ("one", "two"):
        page.click(f"ol li:has-text('{title}') button:has-text('Remove')")
        tab.wait_for_selector(f"ol li:has-text('{title}')", state="detached")
    page.click("button:has-text('Stop')")
    until(tab, "article .status.stopped")
    assert page.errors == []


def test_a_failed_job_leads_back_to_what_was_entered(page, studio):
    form = {"sources": [{"path": "questions.csv", "label": "questions.csv"}], "base": "nobody/none", "name": "failing"}
    words = ["tune", "base=nobody/none", "name=failing", "data=chat", "data.files=['questions.csv']", "tune.lora=none"]
    job = studio.queue.add(
        "tune", "failing", words, "runs/failing", {**form, "lora": True, "time": "3m", "aside": True}
    )
    (studio.workspace / "questions.csv").write_text("question,answer\nWho?,I.\nWhat?,It.\n")
    tab = page.tab
    page.open(f"{studio.url}#/run?run=runs/failing")
    tab.wait_for_selector("main .problem a", timeout=1000 * PATIENT_S)
    assert "tune.lora" in page.text("main .problem")  # the command's own line
    page.click("main .problem a")
    until(tab, "#start")
    assert (tab.input_value("#base"), tab.input_value("input[placeholder*=SmolLM2]")) == ("other", "nobody/none")
    assert (tab.input_value("#name"), tab.input_value("#time")) == ("failing", "3m")
    assert tab.is_checked("label:has-text('LoRA') input")
    assert tab.is_checked("label:has-text('put a tenth') input")
    assert tab.url.endswith(job.id)
    assert page.errors == []


def test_the_types_are_shown_by_quality_size_and_speed(page, studio, look):
    run = studio.workspace / "runs" / "typed"
    (run / "checkpoints" / "step-00000008").mkdir(parents=True)
    (run / "checkpoints" / "step-00000008" / "config.json").write_text("{}")
    (run / "quantization").mkdir()
    row = {"size_mib": 1.0, "perplexity_change": 0.0, "perplexity_change_stderr": 0.1, "same_top": 0.99}
    rows = {
        name: row | {"size_mib": 2.0 / n, "perplexity_change": n / 100, "decode_tok_s": 100.0 * n}
        for n, name in enumerate(("f32", "q8_0", "q4_k_m", "q4_0"), 1)
    }
    (run / "quantization" / "rows.json").write_text(json.dumps({"key": "", "rows": rows}))
    page.open(f"{studio.url}#/export?model=runs/typed")
    page.wait("document.querySelectorAll('.chart .point').length == 6")  # two plots, without the reference
    assert page.text(".figures tbody tr:first-child") == "q4_00.524+4.00 %40099.0 %"
    look("export-types")
    shutil.rmtree(run)
    page.open(f"{studio.url}#/run?run=runs/typed")  # it was deleted while another window shows it
    page.wait("document.querySelector('main .problem')")
    assert "does not exist" in page.text("main .problem")
    assert page.errors == []
