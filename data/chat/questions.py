"""Questions about the embedded stories with their answers, and the other things that one can ask the story teller.

Tested in tests/data/chat/test_story_chat.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slm.data.chat.story_facts import Facts
from slm.data.tales import words
from slm.data.tales.teller import a


@dataclass(frozen=True)
class Question:
    """One question about a story, with its answer and what tells a right answer from a wrong one."""

    kind: str
    """``who``, ``where`` or ``what``."""
    about: str
    """Which fact is asked for."""
    text: str
    answer: str
    expected: str
    """The words that a right answer contains."""
    others: tuple[str, ...]
    """Words of other possible answers: a right answer contains none of them."""


Fact = Callable[[Facts], tuple[str, str] | None]
"""The answer's sentence and the words that must be in it; None where the story does not say."""


def _found(f: Facts) -> tuple[str, str] | None:
    """Who or what was found, in the plots where something is."""
    if "hiding" in f.picked:
        return f"{f.name} found the {f.picked['color']} {f.picked['treasure']}.", f"{f.picked['treasure']}"
    if "rescue" in f.picked:
        animal = f.picked["rescue"][0]  # type: ignore[index]
        return f"{f.name} found {a(f'little {animal}')}.", str(animal)
    if f.plot == "quarrel":
        toy = f"{f.picked['color']} {f.picked['toy']}"
        return f"{f.name} found {a(toy)}.", str(f.picked["toy"])
    return None


def _made(f: Facts) -> tuple[str, str] | None:
    if "dish" not in f.picked:
        return None
    dish: Any = f.picked["dish"]
    return f"{f.name} wanted to make {a(dish[0])}.", dish[0]


def _missing(f: Facts) -> tuple[str, str] | None:
    if "dish" not in f.picked:
        return None
    dish: Any = f.picked["dish"]
    return f"There was no {dish[1]}.", dish[1]


def _broke(f: Facts) -> tuple[str, str] | None:
    if "broken" not in f.picked:
        return None
    thing: Any = f.picked["broken"]
    return f"{f.name} broke the {f.picked['color']} {thing[0]}.", thing[0]


def _learned(f: Facts) -> tuple[str, str] | None:
    if "skill" not in f.picked:
        return None
    skill: Any = f.picked["skill"]
    return f"{f.name} learned to {skill[0]}.", skill[0]


def _shared(f: Facts) -> tuple[str, str] | None:
    if "treat" not in f.picked:
        return None
    treat: Any = f.picked["treat"]
    return f"{f.name} shared the {treat[1]}.", treat[1]


def _sound(f: Facts) -> tuple[str, str] | None:
    if "noise" not in f.picked:
        return None
    noise: Any = f.picked["noise"]
    return f"It was {noise[1]}.", noise[1]


def _grew(f: Facts) -> tuple[str, str] | None:
    if "seed" not in f.picked:
        return None
    seed: Any = f.picked["seed"]
    return f"{f.name} planted a {seed[0]} seed.", f"{seed[0]} seed"


def _hidden(f: Facts) -> tuple[str, str] | None:
    if "hiding" not in f.picked:
        return None
    place: Any = f.picked["hiding"]
    return f"The {f.picked['treasure']} was {place[1]}.", place[1]


NAMES = tuple(words.GIRLS + words.BOYS)


@dataclass(frozen=True)
class Ask:
    """A fact that can be asked for: its wordings (the last one is kept for the exam) and its possible answers."""

    kind: str
    about: str
    wordings: tuple[str, ...]
    fact: Fact
    answers: tuple[str, ...]

    def question(self, facts: Facts, wording: str) -> Question | None:
        """The question about this story; None where it does not say."""
        found = self.fact(facts)
        if found is None:
            return None
        answer, expected = found
        friend = facts.friend.name if facts.friend else ""
        text = wording.format(name=facts.name, friend=friend)
        others = tuple(each for each in self.answers if not _overlap(each, expected) and each not in answer)
        return Question(self.kind, self.about, text, answer, expected, others)


def _overlap(one: str, other: str) -> bool:
    return one in other or other in one


ASKS: tuple[Ask, ...] = (
    Ask(
        "who",
        "hero",
        (
            "Who is this story about?",
            "Who is the story about?",
            "What is the name of the hero?",
            "Whose story is this?",
            "Who does the story tell about?",
            "Who does this story tell of?",
            "Tell us who this story is about.",
            "Tell me who the story is about.",
            "Who is the hero of this story?",
            "Who is the hero?",
            "What is the hero called?",
            "What is the hero's name?",
            "Which hero does this story have?",
            "About whom is this story?",
            "Whom is the story about?",
            "Who is in the middle of this story?",
            "Can you tell us who the hero is?",
            "Who does this tell us about?",
            "Who does this story speak about?",
            "Who does this story tell us about?",
        ),
        lambda f: (f"The story is about {f.name}.", f.name),
        NAMES,
    ),
    Ask(
        "who",
        "friend",
        (
            "Who is the friend of {name}?",
            "What is the name of the friend?",
            "Who was {name}'s friend?",
            "Who is {name}'s friend?",
            "Which friend does {name} have?",
            "Which friend is in the story?",
            "What is {name}'s friend called?",
            "What is the friend's name?",
            "Who is the other one in the story?",
            "Who was the friend of {name} in the story?",
            "Does {name} have a friend in the story, and who is it?",
            "Tell me the name of the friend.",
            "Tell us who {name}'s friend is.",
            "Which friend did {name} have in this story?",
            "Whom does {name} have for a friend?",
            "What friend does {name} have in this story?",
            "Which friend does {name} have in the story?",
        ),
        lambda f: (f"The friend of {f.name} is {f.friend.name}.", f.friend.name) if f.friend else None,
        NAMES,
    ),
    Ask(
        "where",
        "home",
        (
            "Where did {name} live?",
            "Where does {name} live?",
            "Where was the home of {name}?",
            "Where is the home of {name}?",
            "Where was {name}'s home?",
            "In which place did {name} live?",
            "In what place was the home of {name}?",
            "What place did {name} live in?",
            "At what place does {name} live?",
            "In what kind of place did {name} live?",
            "Tell me where {name} lived.",
            "Tell us where {name} lives.",
            "Where in the world did {name} live?",
            "In which place was {name} at home?",
            "Where was {name} at home?",
            "In what place is {name}'s home?",
            "In what place did {name} live?",
        ),
        lambda f: (f"{f.name} lived {f.home}.", f.home),
        (*words.HOUSES, *words.DENS),
    ),
    Ask(
        "where",
        "hidden",
        (
            "Where was the lost thing?",
            "Where did they find it?",
            "Where did {name} find the lost thing?",
            "Where did {name} find it?",
            "Where was it?",
            "Where was it found?",
            "Where was the lost thing in the end?",
            "Where was the lost thing found?",
            "In what place was it?",
            "In which place did they find it?",
            "Where was it all the time?",
            "Where did it lie?",
            "At the end, where was it?",
            "Tell me where it was.",
            "Tell us where they found it.",
            "Where did they find it in the end?",
            "In the end, where was the lost thing?",
            "Where was it in the end?",
        ),
        _hidden,
        tuple(each[1] for each in words.HIDING_PLACES),
    ),
    Ask(
        "what",
        "hobby",
        (
            "What did {name} love to do?",
            "What did {name} like to do?",
            "What does {name} love to do?",
            "What does {name} like to do?",
            "What did {name} do all day?",
            "What did {name} do each day?",
            "What does {name} do every day?",
            "What did {name} love doing?",
            "What did {name} like best?",
            "What was {name}'s favorite thing to do?",
            "What did {name} love?",
            "Which thing did {name} love to do?",
            "What did {name} want to do every day?",
            "Tell me what {name} loved to do.",
            "Tell us what {name} liked to do.",
            "What did {name} often do?",
            "Every day, what did {name} do?",
            "What did {name} do every day?",
        ),
        lambda f: (f"{f.name} loved to {f.hobby}.", f.hobby),
        tuple(each[0] for each in words.HOBBIES),
    ),
    Ask(
        "what",
        "found",
        (
            "What did {name} find?",
            "What was found?",
            "What did {name} find in the story?",
            "What was found in the story?",
            "What was found by {name}?",
            "Which thing did {name} find?",
            "What was it that they found?",
            "What is it that {name} found?",
            "What thing was found?",
            "What did {name} find in the end?",
            "Tell me what {name} found.",
            "Tell us what was found.",
            "What was the thing that {name} found?",
            "Can you say what {name} found?",
            "What has {name} found?",
            "What was it that {name} found?",
        ),
        _found,
        (*words.TREASURES, *words.TOYS, *(each[0] for each in words.RESCUES)),
    ),
    Ask(
        "what",
        "made",
        (
            "What did {name} want to make?",
            "What did {name} make?",
            "What was {name} making?",
            "What did they make in the story?",
            "What was made?",
            "What was made by {name}?",
            "Which dish did {name} want to make?",
            "What was made at home?",
            "What did {name} want to cook?",
            "What food did {name} make?",
            "Tell me what {name} made.",
            "Tell us what was made.",
            "What was it that {name} wanted to make?",
            "In the story, what was made?",
            "What was made in this story?",
            "What was made in the story?",
        ),
        _made,
        tuple(each[0] for each in words.DISHES),
    ),
    Ask(
        "what",
        "missing",
        (
            "What was missing?",
            "What was there none of?",
            "What did {name} need?",
            "What did they not have?",
            "What was not there?",
            "Which thing was missing?",
            "What did {name} not have at home?",
            "What was {name} missing?",
            "What was it that was missing?",
            "What did {name} have none of?",
            "What was not in the house?",
            "Tell me what was missing.",
            "Tell us what {name} did not have.",
            "Which thing did {name} not have?",
            "What does {name} not have?",
            "What did {name} not have?",
        ),
        _missing,
        tuple(each[1] for each in words.DISHES),
    ),
    Ask(
        "what",
        "broken",
        (
            "What did {name} break?",
            "What broke?",
            "What was broken?",
            "Which thing broke?",
            "Which thing was broken?",
            "What was broken by {name}?",
            "What thing did {name} break?",
            "What was it that {name} broke?",
            "What did {name} break in the story?",
            "Tell me what {name} broke.",
            "Tell us what broke.",
            "Which thing did {name} break in the story?",
            "Which thing was it that {name} broke?",
            "What fell and broke?",
            "In the story, what did {name} break?",
            "Which thing did {name} break?",
        ),
        _broke,
        tuple(each[0] for each in words.BREAKABLE),
    ),
    Ask(
        "what",
        "learned",
        (
            "What did {name} learn?",
            "What did {name} learn to do?",
            "What was learned?",
            "What can {name} do now?",
            "What could {name} do at last?",
            "What could {name} do then?",
            "What did {name} learn in the end?",
            "What was {name} able to do in the end?",
            "What new thing could {name} do?",
            "What is it that {name} learned?",
            "Which thing did {name} learn to do?",
            "Tell me what {name} learned.",
            "Tell us what {name} could do in the end.",
            "What can {name} do in the end?",
            "In the end, what could {name} do?",
            "What could {name} do in the end?",
        ),
        _learned,
        tuple(each[0] for each in words.SKILLS),
    ),
    Ask(
        "what",
        "shared",
        (
            "What did {name} share?",
            "What did they eat?",
            "What did they share?",
            "What was shared?",
            "What did {name} share with the friend?",
            "What did {name} give away?",
            "What did {name} give to {friend}?",
            "What did {name} give {friend}?",
            "What did {friend} get?",
            "What was given to a friend?",
            "Which thing did {name} share?",
            "Tell me what {name} shared.",
            "Tell us what {name} gave to a friend.",
            "What was it that {name} shared?",
            "What did {name} give to the friend?",
            "What food did they share?",
            "What did {name} give to a friend?",
        ),
        _shared,
        tuple(each[1] for each in words.TREATS),
    ),
    Ask(
        "what",
        "sound",
        (
            "What made the sound?",
            "What was the sound?",
            "What did {name} hear?",
            "What did they hear?",
            "What made the sound at night?",
            "What was the sound at night?",
            "What was it that made the sound?",
            "What was heard at night?",
            "What did {name} hear at night?",
            "Which thing made the sound?",
            "What was it in the night?",
            "Tell me what made the sound.",
            "Tell us what they heard at night.",
            "What did they hear in the night?",
            "At night, what did they hear?",
            "What did they hear at night?",
        ),
        _sound,
        tuple(each[1] for each in words.NOISES),
    ),
    Ask(
        "what",
        "seed",
        (
            "What did {name} plant?",
            "What kind of seed was it?",
            "What was planted?",
            "What seed did {name} plant?",
            "Which seed was planted?",
            "What did {name} put into the earth?",
            "What was put in the earth?",
            "What was in the earth?",
            "What was it that {name} planted?",
            "What did they plant?",
            "What grew from the earth?",
            "What seed was put into the ground?",
            "Tell me what {name} planted.",
            "Tell us what was put into the ground.",
            "Which seed did {name} put into the earth?",
            "What kind of seed was put into the earth?",
            "What was put into the earth?",
        ),
        _grew,
        tuple(f"{each[0]} seed" for each in words.SEEDS),
    ),
)
"""Every fact that can be asked for. The last wording of each is kept for the exam."""

HELLO = (
    ("Hello!", "Hello! I can tell you a story, or answer questions about one."),
    ("Hi!", "Hi! Would you like a story, or do you have a question about one?"),
    ("Good morning!", "Good morning! I can tell you a story, or answer questions about one."),
    ("Hi there!", "Hi! Would you like a story, or do you have a question about one?"),
    ("Who are you?", "I am a little story teller. I can tell a story and answer questions about it."),
    ("What can you do?", "I can tell a story and answer questions about it: who, where, and what."),
    ("Thank you!", "You are welcome!"),
    ("Thank you very much!", "You are welcome!"),
    ("Goodbye!", "Goodbye! Come back for another story."),
)
UNKNOWN = (
    "What is the weather like today?",
    "What is two and three?",
    "How many people live in the big city?",
    "Can you write a letter to the king?",
    "What time is it?",
    "How old is the moon?",
    "Can you sing a song for me?",
    "Who is the king of the country?",
    "What will happen tomorrow?",
    "Can you help me with my work?",
    "Where is my hat?",
    "How far away is the sea?",
)
CANNOT = "I do not know that. I only know little stories. Would you like one?"
TELL = ("Tell me a story.", "Please tell me a story.", "Can you tell me a story?", "I would like a story, please.")
TELL_ABOUT = (
    "Tell me a story about {who} named {name}.",
    "Please tell me a story about {name}, {who}.",
    "I would like a story about {who} called {name}.",
)
CONTINUE = ("How does the story go on?", "Please go on with the story.", "Tell me the rest of the story.")
NEXT = (
    'What happened next after this: "{sentence}"',
    'What comes after "{sentence}"',
    'What happened after "{sentence}"',
)
RETELL = ("Tell the story in one sentence.", "What is the story about, in one sentence?", "Say it all in one sentence.")
ENDING = ("Tell me another ending.", "How could the story end in another way?", "End the story differently.")
