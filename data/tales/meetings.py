"""Plots of the embedded stories about friends: new ones, sick ones, angry ones, and plans that go wrong.

Tested in tests/data/tales/test_story.py.
"""

from slm.data.tales import words
from slm.data.tales.teller import Teller, a, the

Paragraphs = list[list[str]]


def newcomer(t: Teller) -> Paragraphs:
    c = t.hero()
    f, day = t.friend(c), t.day()
    game = t.pick(("hide and seek", "tag", "catch", "pirates", "kings and queens", "follow the leader"))
    spot = t.pick(("beside the fence", "under a tree", "on a big stone", "on the old swing", "by the wall"))
    far = t.pick(("from far away", "from the other side of the hill", "from a big city", "from across the sea"))
    talent = t.pick(
        (
            ("run as fast as the wind", "won every round"),
            ("find the best places to hide", "made the game twice as fun"),
            ("tell funny stories", "made everyone laugh"),
            ("whistle like a bird", "taught them all a new song"),
        )
    )
    return [
        t.opening(c),
        [
            f"{day}, {c.name} was playing {game} with {c.his} friends when {c.he} saw someone new.",
            t.say(
                f"It was {a(f'shy {f.kind}')} named {f.name}, who had just come {far}.",
                f"A quiet {f.kind} sat {spot}. {f.His} name was {f.name}, and {f.he} had come {far}.",
            ),
            t.say(
                f"{f.name} watched the others play, but {f.he} did not say a word.",
                f"{f.He} knew nobody here, and {f.he} looked lonely.",
            ),
        ],
        [
            t.say(
                f'"Why does {f.he} not play with us?" asked one of the friends.',
                f'"Maybe {f.he} does not like us," said one of the friends.',
            ),
            t.say(
                f'"Maybe {f.he} is only shy," said {c.name}. "I was shy once, too."',
                f'"I think {f.he} is waiting for someone to ask {f.him}," said {c.name}.',
            ),
            f"{c.name} walked over and smiled.",
            t.say(
                f'"Hello! I am {c.name}. Do you want to play {game} with us?"',
                f'"Hi," {c.he} said. "We are playing {game}, and we need one more. Will you come?"',
            ),
            t.say(f"{f.name} looked at {f.his} feet. Then {f.he} nodded.", f'"Me?" asked {f.name}. "Yes, you!"'),
        ],
        [
            t.say(
                f"At first, {f.name} was very quiet. But {f.he} could {talent[0]}!",
                f"It turned out that {f.name} could {talent[0]}!",
            ),
            f"{f.He} {talent[1]}.",
            t.say(
                f'"You are fun!" said {c.name}. "Will you come back tomorrow?" "Yes, please," said {f.name}.',
                f'"I was afraid that nobody would like me," {f.name} said later. "I like you a lot," said {c.name}.',
            ),
            t.ending(c, f),
            *t.moral("friend", c),
        ],
    ]


def rainy_plan(t: Teller) -> Paragraphs:
    c = t.hero()
    f = t.friend(c)
    plan, instead = t.pick(
        (
            ("have a picnic", "put a blanket on the floor and had the picnic inside"),
            ("fly a kite", "made paper kites and hung them up like flags"),
            ("sail a little boat", "made a boat from a big box and sailed to faraway lands"),
            ("look for treasure", "drew a map and hid a treasure in the next room"),
            ("camp under the stars", "made a tent from a sheet and drew stars on paper"),
            ("go to the fair", "played music, sang, and made a little fair of their own"),
        )
    )
    food = t.pick(("bread and cheese", "apples and nuts", "berry cake", "warm soup", "honey cookies", "sweet pears"))
    week = t.pick(("all week", "for days", "for a long time"))
    return [
        t.opening(c),
        [
            t.say(
                f"{c.name} and {c.his} friend {f.name} had a plan. They wanted to {plan}.",
                f"{c.name} had waited {week}. Today {c.he} and {c.his} friend {f.name} were going to {plan}!",
            ),
            t.say(f"They packed {food} in a basket.", f"{f.name} brought {food} for later."),
            t.say(
                "But just as they opened the door, big drops of rain began to fall.",
                "Then the sky turned gray. Drip, drop! It began to rain.",
            ),
            t.say("It rained harder and harder.", "Soon there was water everywhere."),
        ],
        [
            t.say(f'"Now we cannot {plan}," said {c.name}.', f'"Our day is ruined!" cried {c.name}.'),
            t.say(f"{c.He} pressed {c.his} nose to the window and sighed.", f"{c.He} wanted to cry."),
            t.say(
                f'{f.name} looked around the room. "Wait," {f.he} said. "I have an idea."',
                f'"We can still have fun," said {f.name}. "Who says that we need the sun?"',
            ),
            t.say(f'"What do you mean?" asked {c.name}.', f"{c.name} dried {c.his} eyes and listened."),
        ],
        [
            f"So they {instead}.",
            t.say(
                f"They ate {food}, told stories, and listened to the rain on the roof.",
                f"Then they sat close together and ate {food} while the rain sang outside.",
            ),
            t.say(
                f'"This is even better than our plan," said {c.name}.',
                f'"I hope it rains tomorrow, too!" said {c.name}, and they both laughed.',
            ),
            t.ending(c, f),
            *t.moral("plan", c),
        ],
    ]


def sick_friend(t: Teller) -> Paragraphs:
    c = t.hero()
    f, day = t.friend(c), t.day()
    ill = t.pick(("a bad cold", "a fever", "a sore throat", "a tummy ache", "a hurt leg"))
    gift, use = t.pick(
        (
            ("a pot of hot soup", "ate the soup, spoon by spoon"),
            ("a bunch of yellow flowers", "smelled the flowers and smiled"),
            ("a warm blanket", "lay under the soft blanket"),
            ("a jar of honey", "had some honey in warm milk"),
            ("a funny picture", "looked at the funny picture and laughed"),
            ("a basket of berries", "ate the berries one by one"),
        )
    )
    fun = t.pick(
        (
            "told {him} a long story about a dragon",
            "sang {him} three songs",
            "read {him} a book",
            "made shadow animals on the wall",
        )
    )
    fun = fun.format(him=f.him)
    return [
        [
            *t.opening(c),
            t.say(
                f"{c.His} best friend was {a(f.kind)} named {f.name}.",
                f"{c.He} played with {c.his} friend {f.name} every day.",
            ),
        ],
        [
            f"{day}, {c.name} went to call for {f.name}, but {f.name} did not come out.",
            t.say(
                f'"I have {ill}," {f.he} said from {f.his} bed. "I cannot play today."',
                f"{f.name} was in bed with {ill}.",
            ),
            t.say(
                f"{c.name} walked home slowly. The day was no fun without {f.name}.",
                f"{c.name} was sad, and the day felt very long.",
            ),
            t.say(
                f'"{f.name} must feel even worse," {c.he} thought.',
                f'"What would make {f.him} feel better?" {c.he} wondered.',
            ),
        ],
        [
            t.say(
                f"Then {c.he} had an idea. {c.He} got {gift} and went back.",
                f"{c.He} worked all afternoon. Then {c.he} went back with {gift}.",
            ),
            f'"This is for you," said {c.name}.',
            f"{f.name} {use}.",
            t.say(f"Then {c.name} sat by the bed and {fun}.", f"After that, {c.name} {fun}."),
            t.say(f'"I feel better already," said {f.name}.', f"For the first time that day, {f.name} laughed."),
        ],
        [
            t.say(
                f"{c.name} came every day, until one morning {f.name} was well again.",
                f"A few days later, {f.name} jumped out of bed. {f.He} was well again!",
            ),
            t.say(
                f'"You took such good care of me," said {f.name}. "Now let us play!"',
                f'"Thank you for coming," {f.he} said. "You made me strong again."',
            ),
            t.ending(c, f),
            *t.moral("care", c),
        ],
    ]


def race(t: Teller) -> Paragraphs:
    c = t.hero(child=False)
    f, day = t.friend(c), t.day()
    goal = t.pick(
        ("the big rock", "the end of the field", "the old bridge", "the tall pine tree", "the other side of the pond")
    )
    trouble, helped = t.pick(
        (
            ("fell into a deep hole", "let down a long branch and pulled"),
            ("got caught in a thorn bush", "pulled the thorns away, one by one"),
            ("slipped into the mud and sank to the knees", "held out a stick and pulled"),
            ("hurt one foot on a sharp stone", "wrapped the foot in a soft leaf"),
        )
    )
    prize = t.pick(("a crown of flowers", "a golden apple", "a big honey cake", "a shiny medal", "a basket of nuts"))
    return [
        [
            *t.opening(c),
            t.say(
                f"{c.He} was the fastest of all the animals, and {c.he} told everyone so.",
                f'"Nobody is as fast as I am!" {c.he} said every day.',
            ),
        ],
        [
            t.say(
                f"{day}, the animals had a race to {goal}. The prize was {prize}.",
                f"{day}, there was a race to {goal}, and the winner would get {prize}.",
            ),
            f"{f.name} the {f.kind} came to run, too.",
            t.say(
                f'"You?" laughed {c.name}. "You are much too slow!"',
                f'"Go home, {f.name}," said {c.name}. "You will be last."',
            ),
            t.say(f'"I will do my best," said {f.name}.', f"{f.name} did not get angry. {f.He} only smiled."),
        ],
        [
            t.say(
                f"Ready, set, go! {c.name} shot ahead and was soon out of sight.",
                f"The race began, and {c.name} ran like the wind.",
            ),
            f"But {c.he} did not look where {c.he} was going. {c.He} {trouble}.",
            t.say(
                f'"Help!" cried {c.name}. The others ran past and did not hear {c.him}.',
                f'"Help me, please!" {c.he} called, but nobody stopped.',
            ),
            f"Then {f.name} came along. {f.He} could have run on and won. But {f.he} stopped.",
            f"{f.He} {helped} until {c.name} was safe.",
        ],
        [
            t.say(
                f'"Why did you help me?" asked {c.name}. "I was not nice to you." '
                f'"Because you needed help," said {f.name}.',
                f'"I am sorry that I laughed at you," said {c.name}. "You are a better animal than I am."',
            ),
            t.say(
                f"They walked to {goal} together and came in last, but everyone cheered.",
                f"They came to {goal} side by side, the last of all, and the others clapped.",
            ),
            f"The animals gave {the(prize)} to {f.name}, and {c.name} cheered the loudest.",
            t.ending(c, f),
            *t.moral("humble", c),
        ],
    ]


def quarrel(t: Teller) -> Paragraphs:
    c = t.hero()
    f, day = t.friend(c), t.day()
    toy, color = t.pick(words.TOYS), t.pick(words.COLORS)
    where = t.pick(("in the park", "in the yard", "near the pond", "in the field", "beside the barn"))
    gift = t.pick(("a smooth stone", "a bunch of daisies", "a big cookie", "a drawing of two friends", "a paper boat"))
    return [
        [*t.opening(c), f"{c.He} and {c.his} friend {f.name} played together every day."],
        [
            f"{day}, they found {a(color)} {toy} {where}.",
            t.say(
                f'"I saw it first!" said {c.name}. "No, I did!" said {f.name}.',
                f'"It is mine!" cried {c.name}. "It is mine!" cried {f.name}.',
            ),
            t.say(
                f"{c.name} pulled on one side, and {f.name} pulled on the other. Crack! The {toy} broke in two.",
                f"They pulled and pulled, until the {toy} broke. Now nobody could play with it.",
            ),
            t.say(
                f'"It is your fault!" said {f.name}, and {f.he} ran home.',
                f'"I do not want to play with you anymore!" said {c.name}, and they both went home.',
            ),
        ],
        [
            t.say(
                f"{c.name} sat alone all afternoon. It was very quiet without {f.name}.",
                f"{c.name} tried to play alone, but it was no fun.",
            ),
            t.say(
                f'"I miss {f.name} more than any {toy}," {c.he} thought.',
                f'"A friend is worth more than {a(toy)}," {c.he} thought.',
            ),
            f"So {c.he} got {gift} and went to {f.name}'s door.",
            t.say(
                f"On the way, {c.he} met {f.name}, who was coming to see {c.him}!",
                f"Before {c.he} could knock, the door opened, and there stood {f.name}.",
            ),
        ],
        [
            f'"I am sorry that I pulled so hard," said {c.name}. "I am sorry, too," said {f.name}.',
            f"{c.name} gave {f.him} {the(gift)}, and {f.name} smiled.",
            t.say(
                f"Then they fixed the {toy} with some string and took turns with it.",
                f"They put the {toy} back together, and {f.name} let {c.name} go first.",
            ),
            t.ending(c, f),
            *t.moral("sorry", c),
        ],
    ]


MEETINGS = (newcomer, rainy_plan, sick_friend, race, quarrel)
