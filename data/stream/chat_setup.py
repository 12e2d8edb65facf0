"""The tokenizer that a run's conversations need: with a chat template that writes all of them, and its moment.

Tested in tests/data/stream/test_chat_setup.py.
"""

import datetime
import itertools
import json
from collections import Counter

from slm.data.chat.template import TOOL_WORDS, TemplateRefusesError
from slm.data.chat.tokens import MOMENT, ChatEncoder, chat_tokenizer, own_template
from slm.data.chat.tool_template import with_tools
from slm.data.config import DataConfig, SourceConfig
from slm.data.errors import UserError
from slm.data.sources import hub
from slm.data.sources.conversations import chat_files
from slm.data.sources.conversations.chat_files import Findings
from slm.data.sources.corpus import records as corpus_records
from slm.data.sources.plan import source_files
from slm.data.tokenizers.tokenizer import Tokenizer

HUB_ROWS = 1000
"""Rows of a data set of the Hub that are looked at before training."""
OPTION = "data.tool_template"


def chat_setup(tokenizer: Tokenizer, data: DataConfig) -> tuple[Tokenizer, list[str]]:
    """The tokenizer with a chat template that writes the conversations of ``data``, and lines on what was found.

    The lines say where the template is not the tokenizer's own, and what the first rows of data sets of the Hub hold.

    Its own template stays where it writes tools, their calls and results, or where none of them has any. UserError
    where no template can be made.
    """
    made = chat_tokenizer(tokenizer)
    uses = Counter[str]()
    forced = False
    lines: list[str] = []
    for source in data.all_sources():
        found = findings_of(source)
        if found is None:
            continue
        if source.from_hub:
            lines.append(f"{source.label}, {found.line()}")
        if source.tool_template != "own":
            uses += +found.uses
            forced = forced or source.tool_template == "ours"
    if uses:
        made, line = _with_tools(made, uses, forced=forced)
        lines += [line] if line else []
    return with_moment(made), lines


def findings_of(source: SourceConfig) -> Findings | None:
    """What a source of conversations holds: of files all (up to a limit), of the Hub the first rows."""
    if source.kind != "chat":
        return None
    stop = not source.skips_bad
    if not source.from_hub:
        return chat_files.inspect(tuple(source_files(source)), stop=stop, columns=source.column_pairs)
    records = corpus_records(hub.HubCorpus(source, source.split).open(0, 0, None))
    found = chat_files.of_records(itertools.islice(records, HUB_ROWS), stop=stop, columns=source.column_pairs)
    found.complete = found.conversations + found.bad < HUB_ROWS
    return found


def _with_tools(tokenizer: Tokenizer, uses: Counter[str], *, forced: bool) -> tuple[Tokenizer, str]:
    template = ChatEncoder(tokenizer).template
    wanted = [each for each in TOOL_WORDS if uses[each]]
    lacks = [each for each in wanted if each not in template.writes]
    if not lacks and not forced:
        return tokenizer, ""
    counts = ", ".join(f"{uses[each]:,} with {TOOL_WORDS[each]}" for each in wanted)
    named = _template_for_tools(tokenizer)
    if named and not forced and set(wanted) <= template.with_source(named).writes:
        text, which = named, "the one that it has for tools"
    else:
        try:
            text, which = with_tools(template, wanted), "one of slm around it that writes them as text"
        except TemplateRefusesError as error:
            raise UserError(
                f"the chat template of {tokenizer.name} does not write tools, and no other can be made of it: {error}; "
                f"give it one that does, or leave such conversations out ({OPTION}=own)"
            ) from error
    line = (
        f"the chat template of {tokenizer.name} does not write {', '.join(TOOL_WORDS[each] for each in lacks)}"
        if lacks
        else f"{OPTION}=ours"
    )
    return with_template(tokenizer, text), f"{line} ({counts}): the run carries {which} ({OPTION}=own keeps its own)"


def _template_for_tools(tokenizer: Tokenizer) -> str | None:
    """The template for tools, if there are several by name."""
    settings = json.loads(tokenizer.files.get("tokenizer_config.json", b"{}"))
    several = settings.get("chat_template")
    named = several if isinstance(several, list) else []
    by_name = {each.get("name"): each.get("template") for each in named if isinstance(each, dict)}
    return by_name.get("tool_use")


def with_template(tokenizer: Tokenizer, template: str) -> Tokenizer:
    """The tokenizer with another chat template."""
    files = {name: content for name, content in tokenizer.files.items() if name != "chat_template.jinja"}
    return _with_settings(tokenizer, files, {"chat_template": template})


def with_moment(tokenizer: Tokenizer, moment: datetime.datetime | None = None) -> Tokenizer:
    """The tokenizer with the moment that its chat template prints, where it prints one; ``moment`` None: now.

    All conversations of a run have this one, also when it is resumed.
    """
    if "strftime_now" not in (own_template(tokenizer) or ""):
        return tokenizer
    now = (moment or datetime.datetime.now()).isoformat()
    return _with_settings(tokenizer, tokenizer.files, {MOMENT: now})


def _with_settings(tokenizer: Tokenizer, files: dict[str, bytes], changed: dict[str, str]) -> Tokenizer:
    settings = json.loads(files.get("tokenizer_config.json", b"{}")) | changed
    content = (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()
    return Tokenizer({**files, "tokenizer_config.json": content}, name=tokenizer.name, eot_token=tokenizer.eot_token)
