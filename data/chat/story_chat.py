"""The embedded instruction set: conversations about the embedded stories, and an exam that needs no judge.

A conversation asks about a story (who, where, what, what comes next), lets it go on, be retold in a sentence or end in
another way, says hello, or asks for what the story teller cannot do. There are far more than a million. The exam asks
about stories that training never holds, about names that are never asked about there, and in wordings that are kept
from it.
"""

import itertools
import random
import re
from dataclasses import dataclass
from typing import Any, Literal

from slm.data.chat import questions
from slm.data.chat.questions import ASKS, Ask, Question
from slm.data.chat.story_facts import MADE_UP_SHARE, Facts, NotingTeller
from slm.data.tales.teller import a

Family = Literal["stories", "names", "wordings"]
"""What a question of the exam has that training has not: the story only, the name too, the wording too."""
Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class ExamQuestion:
    """One question of the exam."""

    family: Family
    question: Question
    messages: Messages
    """The story and the question, as a user asks."""

    def is_right(self, reply: str) -> bool:
        """Whether the reply contains the expected words, and those of no other possible answer."""
        said = f" {_plain(reply)} "
        return f" {_plain(self.question.expected)} " in said and not any(
            f" {_plain(each)} " in said for each in self.question.others
        )


def conversation(seed: int, index: int, *, held_out: bool = False) -> dict[str, Any]:
    """Conversation number ``index`` of the collection ``seed``; ``held_out``: of the validation split, new stories."""
    key = f"chat/{'validation' if held_out else 'train'}/{seed}/{index}"
    draw = random.Random(f"{key}/talk")
    kind = draw.choices(("ask", "next", "continue", "retell", "ending", "told", "small"), (70, 5, 3, 5, 3, 6, 8))[0]
    if kind == "small":
        return {"messages": _small_talk(draw)}
    facts = NotingTeller(key, made_up_share=0 if held_out else MADE_UP_SHARE).tell()
    return {"messages": _MAKERS[kind](facts, draw)}


def exam(n: int, seed: int = 0) -> list[ExamQuestion]:
    """``n`` held-out questions: half about new stories, a quarter with new names, a quarter in new wordings too.

    A third of each asks who, where and what.
    """
    made: list[ExamQuestion] = []
    families: tuple[Family, ...] = ("stories", "stories", "names", "wordings")
    while len(made) < n:
        number = len(made)
        family, kind = families[number % 4], ("who", "where", "what")[number % 3]
        draw = random.Random(f"chat/exam/{seed}/{number}")
        facts = NotingTeller(f"chat/exam/{seed}/{number}/story", held_out_names=family != "stories").tell()
        asks = [each for each in ASKS if each.kind == kind and each.fact(facts) is not None]
        # Every story has a hobby: where it has something else to ask for, that is asked.
        ask = draw.choice([each for each in asks if each.about != "hobby"] or asks)
        wording = ask.wordings[-1] if family == "wordings" else draw.choice(ask.wordings[:-1])
        question = ask.question(facts, wording)
        assert question is not None
        made.append(ExamQuestion(family, question, [_user(_with_story(facts.story, question.text, draw))]))
    return made


def _plain(text: str) -> str:
    return " ".join(re.findall(r"[\w']+", text.lower()))


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def _assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def _with_story(text: str, question: str, draw: random.Random) -> str:
    return draw.choice((f"{text}\n\n{question}", f"{text}\n\n{question}", f"{question}\n\n{text}"))


def _questions(facts: Facts, draw: random.Random, most: int) -> list[Question]:
    """At most ``most`` questions about one story, in training's wordings.

    Where more are wanted than there are facts, a fact is asked for twice, in two wordings: so a model learns what a
    wording asks for from few tokens.
    """
    asks: list[Ask] = [each for each in ASKS if each.fact(facts) is not None]
    first, second = draw.sample(asks, len(asks)), draw.sample(asks, len(asks))
    wordings = {each.about: draw.sample(each.wordings[:-1], 2) for each in asks}
    found = [each.question(facts, wordings[each.about][0]) for each in first]
    found += [each.question(facts, wordings[each.about][1]) for each in second]
    return [each for each in found[:most] if each is not None]


def _turns(questions: list[Question]) -> Messages:
    return [turn for each in questions for turn in (_user(each.text), _assistant(each.answer))]


def _ask(facts: Facts, draw: random.Random) -> Messages:
    """About a whole story, or as often about its beginning: that is short, so more is asked in as many tokens."""
    asked = _questions(facts, draw, draw.choice((1, 4, 8, 12)))
    text = facts.story
    if draw.random() < 0.5:
        beginning = "\n\n".join(facts.story.split("\n\n")[: draw.choice((1, 1, 2))])
        in_it = [each for each in asked if each.expected in beginning]
        asked, text = (in_it, beginning) if in_it else (asked, text)
    first, *more = asked
    return [_user(_with_story(text, first.text, draw)), _assistant(first.answer), *_turns(more)]


def _told(facts: Facts, draw: random.Random) -> Messages:
    """The assistant tells the story, and is asked about it."""
    assert facts.hero is not None
    wish = draw.choice(questions.TELL + questions.TELL_ABOUT)
    wish = wish.format(name=facts.name, who=a(facts.hero.kind))
    return [_user(wish), _assistant(facts.story), *_turns(_questions(facts, draw, draw.choice((0, 4, 8))))]


def _next(facts: Facts, draw: random.Random) -> Messages:
    """A sentence of the story, and the one that follows it."""
    whole = re.split(r"(?<=[.!?\"])\s+", facts.story.replace("\n\n", " "))
    pairs = [
        (one, two) for one, two in itertools.pairwise(whole) if '"' not in one + two and len(one) > 20 and len(two) > 10
    ]
    if not pairs:
        return _ask(facts, draw)
    one, two = draw.choice(pairs)
    asked = draw.choice(questions.NEXT).format(sentence=one)
    return [
        _user(_with_story(facts.story, asked, draw)),
        _assistant(two),
        *_turns(_questions(facts, draw, draw.choice((0, 2)))),
    ]


def _continue(facts: Facts, draw: random.Random) -> Messages:
    paragraphs = facts.story.split("\n\n")
    kept = draw.randrange(1, len(paragraphs))
    start, rest = "\n\n".join(paragraphs[:kept]), "\n\n".join(paragraphs[kept:])
    return [_user(f"{start}\n\n{draw.choice(questions.CONTINUE)}"), _assistant(rest)]


def summary(facts: Facts) -> str:
    """The story in one sentence."""
    assert facts.hero is not None
    who = f"{facts.name}, {a(f'little {facts.hero.kind}')} who lived {facts.home},"
    picked: dict[str, Any] = facts.picked
    friend = facts.friend.name if facts.friend else ""
    did = {
        "lost_thing": lambda: f"lost the {picked['color']} {picked['treasure']} and found it {picked['hiding'][1]}",
        "sharing": lambda: f"did not want to share the {picked['treat'][1]} with {friend} at first, but then did",
        "missing_part": lambda: f"wanted to make {a(picked['dish'][0])}, and {friend} had the {picked['dish'][1]}",
        "garden": lambda: f"planted a {picked['seed'][0]} seed and waited until it grew",
        "blown_away": lambda: f"lost something in the wind, and {friend} helped to get it down",
        "tower": lambda: f"built too fast, and then built it again with {friend}",
        "tidy_up": lambda: f"fell over the {picked['color']} {picked['toy']} and then cleaned the room",
        "newcomer": lambda: f"asked {friend} to play and found a new friend",
        "rainy_plan": lambda: f"had a plan with {friend}, but it rained, and they had fun inside",
        "sick_friend": lambda: f"took care of {friend}, who was sick",
        "race": lambda: f"ran a race, fell, and was helped by {friend}",
        "quarrel": lambda: f"broke the {picked['toy']} in a fight with {friend}, and they said sorry",
        "broken_thing": lambda: f"broke the {picked['color']} {picked['broken'][0]} and told the truth",
        "stuck_animal": lambda: f"found a little {picked['rescue'][0]} in trouble and got help",
        "night_noise": lambda: f"heard a sound at night, and it was only {picked['noise'][1]}",
        "learn": lambda: f"learned to {picked['skill'][0]} with the help of {friend}",
        "way_home": lambda: "got lost and found the way home",
        "wish": lambda: f"had one wish and used it to help {friend}",
    }[facts.plot]()
    return f"{who} {did}."


def _retell(facts: Facts, draw: random.Random) -> Messages:
    asked = _with_story(facts.story, draw.choice(questions.RETELL), draw)
    return [_user(asked), _assistant(summary(facts)), *_turns(_questions(facts, draw, draw.choice((0, 2))))]


def _ending(facts: Facts, draw: random.Random) -> Messages:
    """Another last scene: whom they ask home, and what they do there."""
    name, home = facts.name, facts.home
    whom = facts.friend.name if facts.friend else f"the {facts.elder}" if facts.elder else "a friend"
    treat = draw.choice(("soup", "cake", "bread and cheese", "honey cookies", "apples"))
    then = draw.choice(("they sang until it was dark", "they told each other stories", "they slept under the stars"))
    answer = draw.choice(
        (
            f"In the end, {name} asked {whom} to come home {home}. They ate {treat}, and {then}.",
            f"At last, {name} and {whom} went home {home}. There was {treat} for both, and {then}.",
        )
    )
    return [_user(_with_story(facts.story, draw.choice(questions.ENDING), draw)), _assistant(answer)]


def _small_talk(draw: random.Random) -> Messages:
    messages: Messages = []
    for _ in range(draw.choice((1, 2, 3))):
        if draw.random() < 0.5:
            asked, answer = draw.choice(questions.HELLO)
        else:
            asked, answer = draw.choice(questions.UNKNOWN), questions.CANNOT
        messages += [_user(asked), _assistant(answer)]
    return messages


_MAKERS = {"ask": _ask, "next": _next, "continue": _continue, "retell": _retell, "ending": _ending, "told": _told}
