"""Plots of the embedded stories about things that are lost, shared or made, and the list of all plots.

A plot takes a Teller and returns paragraphs, each a list of sentences. It first chooses its characters and objects.
The solution names the chosen objects again, so that a story is about one thing from its beginning to its end.

Tested in tests/data/tales/test_story.py.
"""

from collections.abc import Callable

from slm.data.tales import words
from slm.data.tales.meetings import MEETINGS
from slm.data.tales.teller import Teller, a
from slm.data.tales.trials import TRIALS

Paragraphs = list[list[str]]


def lost_thing(t: Teller) -> Paragraphs:
    c = t.hero()
    f, giver = t.friend(c), t.elder()
    thing, color, sad, day = t.pick(words.TREASURES), t.pick(words.COLORS), t.pick(words.SAD), t.day()
    did, where, spot = t.pick(words.HIDING_PLACES)
    first, second = t.two(words.INDOORS if c.is_child else words.OUTDOORS)
    return [
        [
            *t.opening(c),
            t.say(
                f"{c.His} favorite thing was {a(color)} {thing} from {c.his} {giver.kind}.",
                f"{c.His} {giver.kind} had given {c.him} {a(color)} {thing}, and {c.he} took it everywhere.",
                f"{c.He} had {a(color)} {thing} that {c.he} loved very much.",
            ),
        ],
        [
            t.say(
                f"{day}, the {thing} was gone.",
                f"{day}, {c.name} could not find the {thing} anywhere.",
                f'{day}, {c.name} cried, "Oh no! Where is my {thing}?"',
            ),
            t.say(
                f"{c.He} looked {first}, but it was not there.",
                f"First {c.he} looked {first}. There was no {thing}.",
            ),
            t.say(
                f"{c.He} looked {second}, but it was not there either.",
                f"Then {c.he} looked {second}. Still no {thing}!",
            ),
            t.say(
                f"{c.name} began to cry.", f"{c.name} felt {sad}.", f"{c.name} sat down and did not know what to do."
            ),
        ],
        [
            t.say(
                f'{c.His} friend {f.name} came by. "What is wrong?" {f.he} asked.',
                f'Just then {f.name}, {c.his} friend, came along. "Why do you look so sad?" asked {f.name}.',
            ),
            f'"I lost my {color} {thing}," said {c.name}.',
            t.say(
                f'"Let us think," said {f.name}. "Where were you yesterday?"',
                f'"Do not worry," said {f.name}. "Where did you have it last?"',
            ),
            f'{c.name} thought hard. "Yesterday I {did}," {c.he} said.',
            t.say(
                "So they went back to look.", "They ran there together.", f'"Then let us look there!" said {f.name}.'
            ),
        ],
        [
            t.say(
                f"And there it was! The {thing} lay {where}, {spot}.",
                f"{c.name} looked {where}. There, {spot}, was the {color} {thing}!",
                f'"I see it!" cried {f.name}. The {thing} was {where}, just {spot}.',
            ),
            t.say(
                f'{c.name} hugged {f.name}. "Thank you for helping me," {c.he} said.',
                f'"Thank you, {f.name}!" said {c.name}, and {c.he} held the {thing} tight.',
            ),
            t.ending(c, f),
            *t.moral("look", c),
        ],
    ]


def sharing(t: Teller) -> Paragraphs:
    c = t.hero()
    f, giver = t.friend(c), t.elder()
    one, many = t.pick(words.TREATS)
    number, day = t.pick(("two", "three", "four", "six")), t.day()
    place = t.pick(("on a bench in the park", "under a tall tree", "by the pond", "on the steps", "on a soft hill"))
    return [
        t.opening(c),
        [
            t.say(
                f"{day}, {c.name}'s {giver.kind} gave {c.him} {number} {many} in a small basket.",
                f"{day}, {c.his} {giver.kind} made {number} {many} and gave them all to {c.name}.",
            ),
            t.say(
                f"The {many} smelled so good! {c.name} sat {place} to eat them.",
                f'"They are all for me," thought {c.name}, and {c.he} sat down {place}.',
            ),
            t.say(
                f"Then {c.his} friend {f.name} came by. {f.He} had lost {f.his} lunch, and {f.his} tummy was empty.",
                f"Soon {c.his} friend {f.name} came along the path. {f.He} looked hungry and had nothing to eat.",
            ),
            f'"May I have {a(one)}, please?" asked {f.name}.',
        ],
        [
            t.say(
                f'"No," said {c.name}. "They are mine." {f.name} looked down and walked away slowly.',
                f"{c.name} hid the basket behind {c.his} back. {f.name} said nothing and went to sit alone.",
            ),
            t.say(
                f"{c.name} took a bite, but now it did not taste good.",
                f"{c.name} tried to eat, but {c.he} could only think about {f.name}'s sad face.",
            ),
            t.say(
                f'"I am not being a good friend," {c.he} thought.',
                f'"If I were hungry, {f.name} would share with me," {c.he} thought.',
            ),
        ],
        [
            t.say(
                f'{c.name} ran after {f.name}. "I am sorry," {c.he} said. "Please have some of my {many}."',
                f"{c.name} picked up the basket and went to {f.name}. "
                f'"I was wrong," {c.he} said. "Let us share the {many}."',
            ),
            t.say(
                f"{f.name} smiled a big smile. They ate the {many} together, and every bite was sweet.",
                f"They sat close together and shared every last {one}. How good it tasted now!",
                f'"Thank you!" said {f.name}. {f.He} took {a(one)}, and {c.name} took one too.',
            ),
            t.ending(c, f),
            *t.moral("share", c),
        ],
    ]


def missing_part(t: Teller) -> Paragraphs:
    """Something is baked for someone; one thing is missing; whoever lends it is invited."""
    c = t.hero()
    f, elder = t.friend(c), t.elder()
    dish, part = t.pick(words.DISHES)
    day = t.day()
    why = t.pick(
        (
            f"It was {c.his} {elder.kind}'s birthday",
            f"{c.His} {elder.kind} was coming to visit",
            f"{c.His} {elder.kind} had worked hard all week",
        )
    )
    return [
        t.opening(c),
        [
            f"{day}, {c.name} had an idea. {why}, so {c.he} wanted to make {a(dish)}.",
            t.say(
                f"{c.He} put a big bowl on the table and washed {c.his} hands.",
                f"{c.He} found a bowl and a big spoon, and {c.he} began to sing as {c.he} worked.",
            ),
            t.say(
                f"But when {c.he} looked for the {part}, there was none left.",
                f'"Oh dear," {c.he} said. "There is no {part}!"',
            ),
            f"Nobody can make {a(dish)} without {part}.",
        ],
        [
            t.say(
                f"{c.name} went next door and knocked. {c.His} friend {f.name} opened the door.",
                f"So {c.name} went to see {c.his} friend {f.name}, who lived close by.",
            ),
            f'"Do you have some {part}?" asked {c.name}. "I want to make {a(dish)} for my {elder.kind}."',
            t.say(
                f'"I do!" said {f.name}. "Take as much as you need."',
                f'{f.name} looked on {f.his} shelf. "Here you are," {f.he} said, and {f.he} gave {c.him} some {part}.',
            ),
            t.say(
                f'"Will you help me?" asked {c.name}. {f.name} was glad to come.',
                f'"Come and help me," said {c.name}. "Then you can eat with us."',
            ),
        ],
        [
            t.say(
                f"They added the {part}, and {c.name} mixed while {f.name} read the steps out loud.",
                f"{f.name} poured in the {part}, and {c.name} mixed and mixed.",
            ),
            t.say(f"Soon the {dish} was ready, and it smelled wonderful.", f"Before long, the {dish} was done."),
            t.say(
                f'"Surprise!" they called when {c.name}\'s {elder.kind} came in. '
                f'"This is the best {dish} I have ever had," {elder.he} said.',
                f"{c.name}'s {elder.kind} came in and clapped {elder.his} hands. "
                f'"You made this for me?" {elder.he} asked, and {elder.he} hugged them both.',
            ),
            t.ending(c, f),
            *t.moral("together", c),
        ],
    ]


def garden(t: Teller) -> Paragraphs:
    c = t.hero()
    elder, day = t.elder(), t.day()
    seed, grown = t.pick(words.SEEDS)
    sign = t.pick(("a tiny green leaf", "a small green tip", "one little green shoot"))
    spot = t.pick(("beside the wall", "in a sunny corner", "near the gate", "in a big pot", "under the big tree"))
    return [
        t.opening(c),
        [
            f"{day}, {c.his} {elder.kind} gave {c.him} a little {seed} seed.",
            t.say(
                f'"Plant it, give it water, and wait," said {c.his} {elder.kind}.',
                f'"With sun, water, and time, it will grow," {elder.he} said.',
            ),
            t.say(
                f"{c.name} made a hole {spot}, dropped the seed in, and gave it water.",
                f"{c.name} dug a small hole {spot}. {c.He} put the seed inside and covered it with soft earth.",
            ),
            t.say(
                f"The next day {c.he} ran to look, but there was nothing to see.",
                f"Then {c.he} sat down to watch. Nothing happened at all.",
            ),
        ],
        [
            t.say(
                f'"It does not work!" cried {c.name}. "My seed is not growing."',
                f'"I have waited and waited," said {c.name}. "Maybe I should dig it up and look."',
            ),
            t.say(
                f'{c.His} {elder.kind} smiled. "Seeds are slow," {elder.he} said. "Under the ground, it is busy."',
                f'"Do not dig," said {c.his} {elder.kind}. "It is sleeping in the earth. Be patient."',
            ),
            t.say(
                f"So {c.name} gave it water every morning and sang it a song every night.",
                f"So every day {c.name} brought water, pulled out the weeds, and waited.",
            ),
            t.say("It rained, and the sun came out again.", "One week passed, and then another."),
        ],
        [
            f"Then, one morning, {c.name} saw {sign}.",
            f'"It is growing!" {c.he} shouted.',
            t.say(
                f"The plant grew taller and taller, and at the end of summer there was {a(grown)}.",
                f"Day by day it grew, until {c.name} had {a(grown)} of {c.his} own.",
            ),
            t.say(
                f'"I am proud of you," said {c.his} {elder.kind}. "You took good care of it."',
                f'"You see?" said {c.his} {elder.kind}. "You waited well."',
            ),
            t.ending(c),
            *t.moral("wait", c),
        ],
    ]


def blown_away(t: Teller) -> Paragraphs:
    """The wind takes something up into a tree; what was tried alone works with help."""
    c = t.hero()
    f, day = t.friend(c), t.day()
    thing, color = t.pick(("kite", "balloon", "hat", "paper bird", "scarf", "paper star")), t.pick(words.COLORS)
    tree = t.pick(("tall pine tree", "big oak tree", "apple tree", "tall tree by the road", "old willow tree"))
    tried = t.pick(
        (
            "jumped as high as {he} could, but {he} could not reach it",
            "shook the tree, but nothing came down",
            "threw a small stone at it, but {he} missed",
            "tried to climb, but the tree was too smooth",
        )
    ).format(he=c.he)
    way, done = t.pick(
        (
            ("a long stick", "lifted the long stick and gave a gentle push"),
            ("a ladder", "held the ladder still while {c} climbed up, step by step"),
            ("a rope", "threw the rope over the branch and shook it hard"),
            ("a rake", "reached up with the rake and pulled"),
        )
    )
    done = done.format(c=c.name)
    return [
        [
            *t.opening(c),
            t.say(f"{c.He} was very proud of {c.his} new {color} {thing}.", f"{c.He} had a new {color} {thing}."),
        ],
        [
            t.say(
                f"{day}, {c.name} took the {thing} out to the field.",
                f"{day}, {c.name} went out to play with the {thing}.",
            ),
            t.say(
                f"Suddenly a strong wind came. Whoosh! It pulled the {thing} right out of {c.his} hands.",
                f"A big wind blew and blew. It took the {thing} high up into the air.",
            ),
            t.say(f"The {thing} got stuck in {a(tree)}.", f"It landed at the very top of {a(tree)}."),
            f"{c.name} {tried}.",
        ],
        [
            t.say(
                f"{c.His} friend {f.name} was walking by and saw it all.",
                f"Then {c.he} heard a voice. It was {c.his} friend {f.name}.",
            ),
            t.say(
                f'"I cannot get my {thing} down," said {c.name}, and {c.he} was close to tears.',
                f'"Please help me," said {c.name}. "My {thing} is stuck up there."',
            ),
            f'"I know what we need," said {f.name}. {f.He} ran home and came back with {way}.',
            t.say(f"Then {f.name} {done}.", f'"Stand here," {f.he} said. Then {f.name} {done}.'),
        ],
        [
            t.say(
                f"Down came the {color} {thing}! It was not even torn.",
                f"The {thing} moved a little, then a little more, and then it was free.",
            ),
            t.say(
                f'"Hooray!" shouted {c.name}. "Now you can play with it too."',
                f'"You are so clever!" said {c.name}. "Let us play with it together."',
            ),
            t.ending(c, f),
            *t.moral("together", c),
        ],
    ]


def tidy_up(t: Teller) -> Paragraphs:
    c = t.hero(child=True)
    elder, day = t.elder(), t.day()
    toy, color = t.pick(words.TOYS), t.pick(words.COLORS)
    missing, place = t.pick(
        (
            ("blue sock", "under a pile of books"),
            ("favorite pencil", "inside an old shoe"),
            ("silver coin", "under the bed"),
            ("storybook", "behind the toy box"),
            ("little lamp", "under the blanket"),
            ("music box", "at the bottom of the toy box"),
        )
    )
    return [
        [*t.opening(c), f"But there was one thing {c.he} did not like: {c.he} did not like to clean {c.his} room."],
        [
            t.say(
                f"{day}, there were toys all over the floor. There was hardly any room to walk.",
                f"{day}, {c.his} room was full of toys, books, and clothes. They lay everywhere.",
            ),
            t.say(
                f'"Please tidy up," said {c.his} {elder.kind}. "Later," said {c.name}.',
                f'{c.His} {elder.kind} looked in. "Someone could fall," {elder.he} said. "I will do it tomorrow," '
                f"said {c.name}.",
            ),
            t.say(
                f"That evening, {c.name} walked across the dark room and stepped on {a(color)} {toy}. Ouch!",
                f"A little later, {c.name} ran in, tripped over {a(color)} {toy}, and fell down with a bump.",
            ),
        ],
        [
            t.say(f"{c.He} sat on the floor and held {c.his} foot.", f"{c.His} foot hurt, and {c.he} cried a little."),
            f'"I think I should tidy up now," {c.he} said.',
            t.say(
                f'"I will help you," said {c.his} {elder.kind}, and they began.',
                f"{c.His} {elder.kind} came to help, and they worked side by side.",
            ),
            f"They put the {toy} on the shelf and the clothes in the box.",
        ],
        [
            f'Then {c.name} saw something {place}. "My {missing}!" {c.he} cried. "I looked for it all week!"',
            t.say(
                f'"See what a tidy room can do?" said {c.his} {elder.kind}.',
                f'{c.His} {elder.kind} laughed. "It was here all the time," {elder.he} said.',
            ),
            t.say(
                "Soon the room was clean, and there was space to dance.",
                f"When they were done, the room looked big and bright, and {c.name} could run across it.",
            ),
            t.ending(c),
            *t.moral("tidy", c),
        ],
    ]


def tower(t: Teller) -> Paragraphs:
    """Something built too fast falls down; built with care, and with a friend, it stands."""
    c = t.hero()
    f, day = t.friend(c), t.day()
    what, of, base = t.pick(
        (
            ("tower", "wooden blocks", "the widest blocks"),
            ("castle", "wet sand", "a thick wall of sand"),
            ("little house", "sticks", "four strong sticks"),
            ("bridge", "stones", "two flat stones"),
            ("snowman", "soft snow", "a big round ball of snow"),
            ("fort", "old boxes", "the heaviest boxes"),
        )
    )
    fell = t.pick(("a bird landed on it", "the wind blew", "{he} put on the last piece", "{he} let go of it"))
    fell = fell.format(he=c.he)
    return [
        t.opening(c),
        [
            f"{day}, {c.name} wanted to build {a(what)} out of {of}.",
            t.say(
                f'"It will be the tallest in the world!" {c.he} said, and {c.he} worked very fast.',
                f"{c.He} was in a hurry and did not stop to think.",
            ),
            t.say(
                f"But when {fell}, the {what} began to shake. Then it fell down.",
                f"It looked fine at first. Then {fell}, and everything came down.",
            ),
            t.say(
                f'"This is too hard!" {c.he} cried. {c.He} kicked the {of} and sat down with {c.his} back to them.',
                f"{c.name} was angry. {c.He} wanted to give up.",
            ),
        ],
        [
            t.say(
                f"{c.His} friend {f.name} had been watching. {f.He} sat down next to {c.name}.",
                f'{c.His} friend {f.name} came over. "That was a good start," {f.he} said.',
            ),
            t.say(
                f'"I think it was weak at the bottom," {f.he} said. "What if we begin with {base}?"',
                f'"Let us try again," {f.he} said. "First we need {base}."',
            ),
            t.say(f"{c.name} wiped {c.his} eyes and nodded.", f'"Will you help me?" asked {c.name}. "Of course!"'),
        ],
        [
            f"This time they worked slowly. They began with {base}, and then they went up, bit by bit.",
            t.say(
                f"{c.name} built, and {f.name} checked that it was straight.",
                f"{f.name} brought the {of}, and {c.name} put each piece in its place.",
            ),
            t.say(
                f"When the {what} was done, it did not shake at all.",
                f"The wind blew again, but the {what} stood still.",
            ),
            t.say(f'"We did it!" shouted {c.name}.', f'"It is perfect," said {c.name}, and {f.name} clapped.'),
            t.ending(c, f),
            *t.moral("together", c),
        ],
    ]


PLOTS: tuple[Callable[[Teller], Paragraphs], ...] = (
    lost_thing,
    sharing,
    missing_part,
    garden,
    blown_away,
    tidy_up,
    tower,
    *MEETINGS,
    *TRIALS,
)
"""All plots; each is equally likely."""
