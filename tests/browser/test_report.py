"""A run's report in a real browser, of a real run that was interrupted and resumed."""

import json
import signal
import time
from pathlib import Path

import pytest

from tests.helpers.programs import Program
from tests.helpers.small_run import OPTIONS

HOSTILE = "</script><script>document.title = 7</script><img src=x onerror=document.title=7><b>bold</b>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Two runs: ``one`` was stopped by Ctrl-C and resumed, and its prompt is an attack; ``two`` has another rate."""
    folder = tmp_path_factory.mktemp("runs")
    documents = folder / "documents.jsonl"
    texts = (f"The cat number {n} sat on the mat and saw the {n % 7} red balls." for n in range(999))
    documents.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    common = (
        *OPTIONS,
        "data.shuffle_buffer=0",
        "train.eval_every=20",
        "train.calibrate_head=false",
        f"data.files=[{documents}]",
        f"runs_dir={folder}",
        f"train.sample_prompts=['{HOSTILE}','The cat']",
    )
    one = (*common, "name=one")

    def start(*arguments: str) -> Program:
        return Program("slm.train", list(arguments), folder)

    process = start(*one, "train.max_steps=100000")
    deadline = time.monotonic() + 120
    while not (folder / "one" / "samples.md").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, out + err
    stopped = max(int(path.name[5:]) for path in (folder / "one" / "checkpoints").glob("step-????????"))
    rest = [
        start(*one, f"train.max_steps={stopped + 60}"),
        start(*common, "name=two", "optim.lr=1e-4", "train.max_steps=60"),
    ]
    for process in rest:
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, out + err
    return folder


@pytest.fixture
def opened(page, runs):
    """The report of run ``one``, wide and light."""
    page.open((runs / "one" / "report.html").as_uri())
    return page


def drawn(page, chart: str) -> int:
    """How many pieces the lines of a chart have."""
    script = f"[...document.querySelectorAll('#chart-{chart} .line')].map((line) => line.getAttribute('d').length)"
    return sum(page.run(script))


def test_it_is_one_file_with_every_curve(opened, pictures):
    for chart in ("loss", "bits", "rate", "norm", "speed", "memory", "wait"):
        assert drawn(opened, chart) > 40, chart
    assert opened.run("document.querySelectorAll('#chart-loss .line').length") == 3
    assert opened.run("document.querySelectorAll('#chart-loss .flag').length") == 1
    assert opened.text(".status") == "finished"
    assert opened.errors == []
    assert [url for url in opened.requested() if not url.startswith(("file:", "data:"))] == []
    assert len(opened.requested()) <= 2
    assert not opened.run("document.querySelector('#reload-label').offsetParent")
    opened.size(1280, 1750)
    opened.screenshot(pictures / "report-light.png")


def test_text_of_models_and_people_stays_text(opened):
    assert opened.run("document.title").startswith("one")
    assert opened.run("document.querySelectorAll('img, b:not(.legend b)').length") == 0
    assert opened.run("document.scripts.length") == 2
    quoted = opened.run("[...document.querySelectorAll('blockquote')].map((quote) => quote.textContent)")
    assert any(text.startswith(HOSTILE) for text in quoted)
    assert any(text.startswith("The cat") for text in quoted)
    # A script that came in all the same would not be run.
    opened.run(
        "(() => { const late = document.createElement('script'); late.textContent = \"document.title = 'taken'\";"
        "document.body.append(late); })()"
    )
    assert opened.run("document.title").startswith("one")
    assert any("Content Security Policy" in error for error in opened.errors)


def test_the_mouse_reads_values_and_looks_closer(opened, pictures):
    opened.tab.hover("#chart-loss svg[tabindex]")
    opened.wait("document.getElementById('tip')")
    tip = opened.run("document.getElementById('tip').innerText")
    for part in ("step ", "tokens", "training, smoothed", "validation at step"):
        assert part in tip, tip
    assert opened.run("document.querySelectorAll('.guide').length") == 7
    # The value that is shown is the record's.
    step = int(tip.split("step ")[1].split(" ")[0].replace(",", ""))
    value = opened.run(f"data.runs[0].train.loss[data.runs[0].train.step.indexOf({step})].toFixed(4)")
    assert opened.text("#chart-loss .legend b") == value
    opened.screenshot(pictures / "report-hover.png")
    before = opened.run("document.querySelector('#chart-rate .line').getAttribute('d')")
    box = opened.run("(() => { const b = document.querySelector('#chart-loss svg[tabindex]').getBoundingClientRect();"
                     "return [b.x + b.width * 0.4, b.x + b.width * 0.7, b.y + 100]; })()")  # fmt: skip
    opened.tab.mouse.move(box[0], box[2])
    opened.tab.mouse.down()
    opened.tab.mouse.move(box[1], box[2])
    opened.tab.mouse.up()
    opened.wait("!document.getElementById('reset').hidden")
    assert opened.run("document.querySelector('#chart-rate .line').getAttribute('d')") != before
    opened.click("#reset")
    assert opened.run("document.querySelector('#chart-rate .line').getAttribute('d')") == before
    assert opened.errors == []


def test_the_keyboard_reads_values(opened):
    opened.run("document.querySelector('#chart-bits svg[tabindex]').focus()")
    opened.press("ArrowRight")
    first = opened.text("#readout")
    assert "validation at step 20" in first
    opened.press("ArrowRight")
    assert "validation at step 40" in opened.text("#readout")
    opened.press("ArrowLeft")
    assert opened.text("#readout") == first
    opened.press("Escape")
    assert opened.run("document.getElementById('tip')") is None
    label = opened.run("document.querySelector('#chart-bits svg[tabindex]').getAttribute('aria-label')")
    assert label.startswith("Bits per byte, bits per byte of validation text: validation from ")


def test_what_is_chosen_is_drawn_and_kept(opened):
    def axis() -> str:
        return opened.run(
            "[...document.querySelectorAll('#chart-loss text')].map((each) => each.textContent).join(' ')"
        )

    assert "optimizer steps" in axis()
    seen = {axis()}
    for name, value, label in (("x", "tokens", "training tokens"), ("x", "time", "training time"), ("y", "linear", "")):
        opened.click(f"input[name={name}][value={value}]")
        assert label in axis()
        seen.add(axis())
    assert len(seen) == 4
    smooth = "document.querySelectorAll('#chart-loss .line')[1].getAttribute('d')"
    rough = opened.run(smooth)
    opened.run("$('smooth').value = 80; $('smooth').dispatchEvent(new Event('input'))")
    assert opened.run(smooth) != rough
    opened.click("input[name=range][value=half]")
    kept = axis()
    opened.tab.reload()
    opened.wait("document.body.dataset.ready")
    assert axis() == kept
    assert opened.run("document.querySelector('input[name=x]:checked').value") == "time"
    assert opened.errors == []


def test_what_is_folded_out_stays_so_when_the_page_is_loaded_again(opened):
    state = "[...document.querySelectorAll('details')].map((fold) => fold.open)"
    before = opened.run(state)
    assert len(before) >= 2
    opened.run("for (const summary of document.querySelectorAll('summary')) summary.click()")
    opened.wait(f"Object.keys(JSON.parse(sessionStorage.getItem(FOLDS) || '{{}}')).length === {len(before)}")
    changed = [not each for each in before]
    assert opened.run(state) == changed
    opened.tab.reload()
    opened.wait("document.body.dataset.ready")
    assert opened.run(state) == changed
    assert opened.errors == []


def test_dark_and_on_a_phone(opened, runs, pictures):
    opened.scheme("dark")
    dark = "getComputedStyle(document.body).backgroundColor"
    assert sum(map(int, opened.run(dark).strip("rgb()").split(","))) < 150
    opened.screenshot(pictures / "report-dark.png")
    opened.phone(390, 844)
    opened.open((runs / "one" / "report.html").as_uri())
    assert opened.run("document.documentElement.scrollWidth <= innerWidth")
    assert drawn(opened, "loss") > 100
    boxes = "[...document.querySelectorAll('figure, .tiles > div, article')]"
    assert opened.run(f"{boxes}.filter((box) => box.getBoundingClientRect().right > innerWidth).length") == 0
    assert not opened.tab.is_visible("#hint .mouse"), "keys and dragging are named on a phone"
    assert opened.tab.is_visible("#hint .touch")
    opened.screenshot(pictures / "report-phone.png")
    assert opened.errors == []


CONTRAST = """() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const parse = (text) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const out = {};
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    const line = element.matches('.line:not(.thin), .legend line');
    if ((!own && !line) || !element.getClientRects().length || element.matches('script, style, .hidden-text')) continue;
    let behind = element;
    while (behind.parentElement && !parse(getComputedStyle(behind).backgroundColor)[3]) behind = behind.parentElement;
    const style = getComputedStyle(element);
    const ink = line ? style.stroke : element.closest('svg') ? style.fill : style.color;
    if (element.matches('.legend .faint')) continue;
    const [a, b] = [light(parse(ink)), light(parse(getComputedStyle(behind).backgroundColor))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < (line ? 3 : 4.5)) out[`${element.tagName}.${element.getAttribute('class')}`] = ratio;
  }
  return out;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_can_be_read_in_both_schemes(page, runs, scheme):
    compare(runs)
    page.scheme(scheme)
    for path in (runs / "one" / "report.html", runs / "compare.html"):
        page.open(path.as_uri())
        assert page.run(f"({CONTRAST})()") == {}


def test_without_scripts_the_figures_are_there(page, runs):
    page.renew(java_script_enabled=False)
    page.tab.goto((runs / "one" / "report.html").as_uri())
    page.wait("document.querySelector('.tiles')")
    text = page.run("document.body.innerText")
    for part in ("bits per byte", "perplexity", "need JavaScript", "nats per token", "resumed from step-"):
        assert part in text, part
    assert page.run("document.querySelectorAll('#charts > *').length") == 0
    assert page.run("document.querySelectorAll('tbody tr').length") > 20


def compare(runs: Path) -> Path:
    if not (runs / "compare.html").exists():
        process = Program("slm.train.report.html", [f"runs=[{runs / 'one'},{runs / 'two'}]"], runs)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, out + err
    return runs / "compare.html"


def test_two_runs_next_to_each_other(page, runs, pictures):
    page.open(compare(runs).as_uri())
    assert page.run("[...document.querySelectorAll('#charts figure')].map((each) => each.id)")[0] == "chart-bits"
    assert page.run("[...document.querySelectorAll('#chart-bits .legend span')].map((each) => each.textContent)") == [
        "one",
        "two",
    ]
    strokes = "[...document.querySelectorAll('#chart-bits .line')].map((each) => getComputedStyle(each).stroke)"
    assert len(set(page.run(strokes))) == 2
    assert page.run("document.querySelectorAll('.final tbody tr').length") == 2
    assert "optim.lr" in page.text("body")
    assert "losses per token may be compared, too" in page.text("main")
    page.tab.hover("#chart-bits svg[tabindex]")
    page.wait("document.getElementById('tip')")
    assert page.run("document.querySelectorAll('#tip tr').length") == 2
    page.screenshot(pictures / "compare-light.png")
    page.phone(390, 844)
    page.open(compare(runs).as_uri())
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    page.screenshot(pictures / "compare-phone.png")
    assert page.errors == []
