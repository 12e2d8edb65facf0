"""The language of a text: short texts of many languages, long ones by stretches, and the option."""

import pytest

from slm.data.config import DataConfig, SourceConfig
from slm.data.errors import UserError
from slm.data.quality.language import STRETCH, known, language_of
from slm.data.sources.documents import iter_documents
from slm.data.sources.filters import make_filter, options

SENTENCES = {
    "en": "The children went down to the river because the water was warm in the evening.",
    "de": "Die Kinder gingen zum Fluss hinunter, weil das Wasser am Abend warm war.",
    "fr": "Les enfants sont descendus à la rivière parce que l'eau était chaude le soir.",
    "es": "Los niños bajaron al río porque el agua estaba caliente por la tarde.",
    "it": "I bambini scesero al fiume perché la sera l'acqua era calda.",
    "pt": "As crianças desceram até o rio porque a água estava quente à noite.",
    "nl": "De kinderen gingen naar de rivier omdat het water 's avonds warm was.",
    "sv": "Barnen gick ner till floden eftersom vattnet var varmt på kvällen.",
    "pl": "Dzieci poszły nad rzekę, ponieważ woda wieczorem była ciepła.",
    "cs": "Děti šly dolů k řece, protože voda byla večer teplá.",
    "fi": "Lapset menivät joelle, koska vesi oli illalla lämmintä.",
    "hu": "A gyerekek lementek a folyóhoz, mert este meleg volt a víz.",
    "tr": "Çocuklar nehre indiler çünkü akşamları su sıcaktı.",
    "ru": "Дети спустились к реке, потому что вечером вода была тёплой.",
    "uk": "Діти спустилися до річки, бо ввечері вода була теплою.",
    "el": "Τα παιδιά κατέβηκαν στο ποτάμι γιατί το νερό ήταν ζεστό το βράδυ.",
    "ja": "夕方は水が温かかったので、子供たちは川へ降りて行きました。",
    "zh": "因为傍晚的水很温暖，孩子们走到河边去了。",
    "ko": "저녁에는 물이 따뜻했기 때문에 아이들은 강으로 내려갔습니다.",
    "ar": "نزل الأطفال إلى النهر لأن الماء كان دافئا في المساء.",
    "hi": "बच्चे नदी के किनारे गए क्योंकि शाम को पानी गर्म था।",
}


@pytest.mark.parametrize("code", SENTENCES)
def test_a_sentence(code):
    assert language_of(SENTENCES[code]) == code
    assert code in known()


def test_of_a_long_text_three_stretches_count():
    english, german = (f"{SENTENCES[code]} " for code in ("en", "de"))
    text = english * 4 + german * 500
    assert language_of(text[:STRETCH]) == "en"
    assert language_of(text) == "de"
    assert language_of(german + english * 2) == language_of(english * 500 + german * 2) == "en"


@pytest.mark.parametrize("text", ["", " \n", "12 + 34 = 46 ...", "\ud800 !"])
def test_without_letters_there_is_none(text):
    assert language_of(text) == "none"


def test_the_option(tmp_path, capsys):
    reason = make_filter(SourceConfig(kind="tales", languages=["en", "de"]))
    assert [reason(SENTENCES[code]) for code in ("en", "de", "fr")] == [None, None, "languages (fr)"]
    assert reason("42") == "languages (none)"
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"text": "{n}. {SENTENCES[code]}"}}\n' for n in range(8) for code in ("en", "fr", "ru")))
    config = DataConfig(kind="files", files=[str(path)], languages=["fr"], val_fraction=0.3)
    found = [text for split in ("train", "validation") for text in iter_documents(config, split, 1)]
    assert len(found) == 8
    assert all(SENTENCES["fr"] in text for text in found)
    kept = [dict(options(SourceConfig(kind="tales", languages=each))).get("languages") for each in ([], ["en"], ["fr"])]
    assert len(set(kept)) == 3
    assert kept[0] is None


@pytest.mark.parametrize(
    ("code", "hint"), [("english", "two or three"), ("enn", "'en'"), ("EN", "small"), ("q", "two")]
)
def test_a_language_that_is_not_known(code, hint):
    with pytest.raises(UserError, match=hint):
        make_filter(SourceConfig(kind="tales", languages=[code]))
