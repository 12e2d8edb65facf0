"""Plots of the embedded stories about trials: telling the truth, fear, failure, being lost, helping someone in need.

Tested in tests/data/tales/test_story.py.
"""

from slm.data.tales import words
from slm.data.tales.teller import Teller, a

Paragraphs = list[list[str]]


def stuck_animal(t: Teller) -> Paragraphs:
    c = t.hero(child=True)
    elder, day = t.elder(), t.day()
    animal, trouble, tool, saved = t.pick(words.RESCUES)
    saved = saved.format(elder=f"{c.his} {elder.kind}")
    cry = t.pick(("a small cry", "a strange little sound", "someone calling for help", "a soft, sad sound"))
    on_walk = t.pick(("on the way to school", "in the park", "near the river", "behind the barn", "along the road"))
    return [
        t.opening(c),
        [
            f"{day}, {c.name} was {on_walk} when {c.he} heard {cry}.",
            t.say(
                f"{c.He} stopped and listened. Then {c.he} saw it.",
                f'"Who is there?" {c.he} asked. {c.He} looked around.',
            ),
            f"A little {animal} was {trouble}.",
            t.say(f"The poor {animal} was shaking.", f"The {animal} looked at {c.him} with big, scared eyes."),
        ],
        [
            t.say(
                f'"Do not be afraid," said {c.name}. {c.He} tried to help, but {c.he} was too small to do it alone.',
                f"{c.name} reached out {c.his} hand, but {c.he} could not get to the {animal}.",
            ),
            f'"Wait here," {c.he} said. "I will be back soon!"',
            t.say(
                f"{c.He} ran home as fast as {c.he} could and found {c.his} {elder.kind}.",
                f"{c.His} {elder.kind} was not far away, and {c.name} ran to get {elder.him}.",
            ),
            t.say(
                f'"Come quickly! A little {animal} needs us!" {c.he} cried.',
                f'"There is {a(animal)} in trouble," {c.he} said. "Please come!"',
            ),
            f"{c.His} {elder.kind} took {tool}, and they hurried back.",
        ],
        [
            t.say(
                f"Very carefully, {saved}.",
                f"Slowly and gently, {saved}.",
                f"{c.name} spoke softly to the {animal} while {saved}.",
            ),
            t.say(
                f"The little {animal} was free! It looked all around and then came to {c.name}.",
                f"At last the {animal} was safe. It put its head on {c.name}'s arm.",
            ),
            t.say(
                f'"You have a new friend," said {c.his} {elder.kind}.',
                f'"You did well to call me," said {c.his} {elder.kind}. "I am proud of you."',
            ),
            t.ending(c),
            *t.moral("help", c),
        ],
    ]


def night_noise(t: Teller) -> Paragraphs:
    c = t.hero(child=True)
    f = t.friend(c)
    noise, cause, what_to_do = t.pick(words.NOISES)
    guess = t.pick(("a monster", "a ghost", "a dragon", "a giant", "a big bad wolf"))
    light = t.pick(("a small lamp", "a candle", "a lantern"))
    return [
        t.opening(c),
        [
            t.say(
                f"One night, {c.name}'s friend {f.name} came to stay.",
                f"It was a dark night, and {c.name}'s friend {f.name} was sleeping over.",
            ),
            t.say(
                f"They had just closed their eyes when they heard it: {noise}!",
                f"Everything was still. Then there was a sound. {noise.capitalize()}!",
            ),
            t.say(
                f'"What was that?" whispered {c.name}. "Maybe it is {guess}!"',
                f'{c.name} sat up. "Did you hear that?" {c.he} whispered. "I think it is {guess}!"',
            ),
            t.say(f"{f.name} pulled the blanket over {f.his} head.", f"{f.name} held {c.his} hand tight."),
            f"{noise.capitalize()}! There it was again.",
        ],
        [
            t.say(
                f"{c.name} was afraid too, but {c.he} wanted to know.",
                f"{c.name}'s knees were shaking. But {c.he} took a deep breath.",
            ),
            f'"Let us go and see," {c.he} said. "We will go together."',
            f"{c.name} took {light}, and {f.name} walked close behind {c.him}.",
            t.say("One step, two steps, three steps.", "They walked on the tips of their toes."),
        ],
        [
            t.say(
                f"Then the light fell on it. It was not {guess} at all. It was only {cause}!",
                f"{c.name} held up the light and began to laugh. It was only {cause}!",
            ),
            f"{c.name} {what_to_do}, and the sound stopped.",
            t.say(
                f'"And I thought it was {guess}!" said {f.name}, and they both laughed.',
                f'"We were afraid of that?" said {f.name}. They laughed and laughed.',
            ),
            t.say(
                "Then they went back to bed and slept until the sun came up.",
                "Soon they were warm in bed again, and nobody was afraid.",
            ),
            *t.moral("brave", c),
        ],
    ]


def learn(t: Teller) -> Paragraphs:
    c = t.hero()
    f, day = t.friend(c), t.day()
    skill, failed, tip, done = t.pick(words.SKILLS)
    failed = failed.format(he=c.he, his=c.his)
    done = done.format(he=c.he, his=c.his)
    many = t.pick(("three", "four", "five", "ten"))
    return [
        [
            *t.opening(c),
            t.say(
                f"But {c.he} did not know how to {skill}.",
                f"There was one thing {c.he} could not do: {c.he} could not {skill}.",
            ),
        ],
        [
            t.say(
                f"{day}, {c.name} saw {c.his} friend {f.name} and the others having fun. They all could {skill}.",
                f'"I want to {skill} too," {c.he} told {c.his} friend {f.name} {day[0].lower() + day[1:]}.',
            ),
            f"{c.He} tried, but {failed}.",
            t.say(f"{c.He} tried again, and again {failed}.", f"{c.He} tried {many} times, but it was no use."),
            t.say(
                f'"I will never learn it!" said {c.name}, and {c.he} wanted to go home.',
                f'{c.name} sat down on the ground. "I give up," {c.he} said.',
            ),
        ],
        [
            f'{f.name} sat down beside {c.him}. "I could not do it at first, either," {f.he} said.',
            t.say(f'"Really?" asked {c.name}.', f"{c.name} looked up. {c.He} had not known that."),
            f'"Really," said {f.name}. "Let me tell you a secret. {tip}"',
            t.say(
                f"{c.name} stood up and tried once more. It was better, but not yet right.",
                f"So {c.name} tried it that way. The first time, it almost worked.",
            ),
            t.say(f'"Again!" called {f.name}.', f'"You can do it!" said {f.name}.'),
        ],
        [
            t.say(
                f"{c.name} thought about what {f.name} had said. Then, all at once, {done}!",
                f"And then it happened: {done}!",
            ),
            t.say(
                f'"Look at me!" shouted {c.name}. "I can {skill}!"',
                f'"I did it! I did it!" sang {c.name}.',
            ),
            t.say(f"{f.name} cheered and jumped up and down.", f'"I knew you could do it," said {f.name}.'),
            t.ending(c, f),
            *t.moral("try", c),
        ],
    ]


def way_home(t: Teller) -> Paragraphs:
    c = t.hero()
    elder, day = t.elder(), t.day()
    lure, went = t.pick(
        (
            ("a blue butterfly", "flew from flower to flower"),
            ("a little white rabbit", "hopped away into the trees"),
            ("a shiny green beetle", "crawled along the path"),
            ("a small red bird", "flew from branch to branch"),
            ("a big round bubble", "floated over the bushes"),
        )
    )
    advice, found, led = t.pick(
        (
            ("follow the stream, for it runs past our home", "heard the sound of water", "followed the stream"),
            ("stay where you are and call my name", "found a big flat stone to sit on", "called as loud as {he} could"),
            ("look for the tall tower on the hill", "saw the top of the tower", "walked toward the tower"),
            ("look for the white tree beside our home", "saw the top of a white tree", "walked toward the tree"),
            (
                "look for the white stones beside the path",
                "saw one white stone, and then another",
                "followed the stones",
            ),
        )
    )
    led = led.format(he=c.he, him=c.him)
    it = lure.split()[-1]
    return [
        [
            *t.opening(c),
            f'"If you are ever lost," {c.his} {elder.kind} always said, "{advice}."',
        ],
        [
            f"{day}, {c.name} saw {lure}. It {went}.",
            t.say(
                f'"Wait for me!" called {c.name}, and {c.he} ran after it.',
                f"{c.name} went after it, deeper and deeper into the woods.",
            ),
            t.say("On and on they went.", f"{c.He} ran past the pond and over the hill."),
            f"When {c.name} stopped at last, the {it} was gone. And {c.he} did not know where {c.he} was.",
        ],
        [
            t.say(
                "The trees were tall, and it was getting dark.",
                "Every tree looked the same, and the shadows grew long.",
            ),
            t.say(
                f'"I am lost," {c.he} whispered. A tear ran down {c.his} face.',
                f"{c.name} called out, but nobody answered. {c.He} felt very small.",
            ),
            f"Then {c.he} remembered what {c.his} {elder.kind} had said.",
            f"{c.name} looked and listened with care. Soon {c.he} {found}.",
            f"{c.He} {led}.",
        ],
        [
            t.say(
                f'Before long, {c.he} heard a voice. "{c.name}! {c.name}!" It was {c.his} {elder.kind}.',
                f"And there, between the trees, came {c.his} {elder.kind} with a lamp.",
            ),
            f"{c.name} ran into {elder.his} arms.",
            t.say(
                f'"I remembered your words," {c.he} said. "I am so proud of you," said {c.his} {elder.kind}.',
                f'"I was afraid, but I did what you told me," {c.he} said. {elder.He} held {c.him} close.',
            ),
            t.say(f"At home there was warm soup, and {c.name} ate two bowls.", "They walked home hand in hand."),
            *t.moral("listen", c),
        ],
    ]


def wish(t: Teller) -> Paragraphs:
    c = t.hero()
    f, day = t.friend(c), t.day()
    magic = t.pick(("a silver fish", "a tiny fairy", "a golden frog", "an old owl with bright eyes", "a talking star"))
    trap, freed = t.pick(
        (
            ("caught in a net", "untied the net"),
            ("stuck under a heavy stone", "pushed the stone away"),
            ("trapped in a glass jar", "opened the jar"),
            ("caught in a spider web", "brushed the web away"),
        )
    )
    own = t.pick(("a mountain of candy", "a crown", "a hundred toys", "a pony", "a ship of gold"))
    need, result = t.pick(
        (
            ("could not walk without pain", "was running and jumping like never before"),
            ("had not been able to see well for a long time", "could see every leaf on every tree"),
            ("had lost {his} voice", "was singing for joy"),
            ("was always cold, for {he} had no warm coat", "was wearing a thick, warm coat"),
        )
    )
    need = need.format(he=f.he, his=f.his)
    who = magic.split(" ", 1)[1].split(" with")[0]
    return [
        t.opening(c),
        [
            f"{day}, {c.name} found {magic}, {trap}.",
            t.say(
                f'"Please help me!" said the {who} in a thin voice.',
                f'"Let me go, and you will not be sorry," said the {who}.',
            ),
            t.say(f"{c.name} was surprised, but {c.he} {freed} at once.", f"{c.name} did not wait. {c.He} {freed}."),
            f'"Thank you," said the {who}. "Because you were kind, I will give you one wish."',
        ],
        [
            t.say(
                f'"One wish!" thought {c.name}. "I could wish for {own}!"',
                f"{c.name} closed {c.his} eyes. {c.He} could already see {own}.",
            ),
            f"But then {c.he} thought of {c.his} friend {f.name}, who {need}.",
            t.say(f"{c.name} thought for a long time.", f"{c.name} looked at {c.his} hands and then at the sky."),
            t.say(
                f'"I wish that {f.name} may be well and happy," {c.he} said.',
                f'"My wish is not for me," {c.he} said at last. "Please help {f.name}."',
            ),
            f"The {who} smiled, and the air was full of little lights.",
        ],
        [
            f"{c.name} ran to {f.name}'s home. And what did {c.he} see? {f.name} {result}!",
            t.say(
                f'"Something wonderful has happened!" cried {f.name}.',
                f'"I do not know how it happened!" said {f.name}, and {f.he} danced around {c.name}.',
            ),
            t.say(
                f"{c.name} only smiled and gave {f.him} a hug.",
                f"{c.name} told {f.him} about the {who}, and {f.name} had tears in {f.his} eyes.",
            ),
            t.ending(c, f),
            *t.moral("wish", c),
        ],
    ]


def broken_thing(t: Teller) -> Paragraphs:
    c = t.hero(child=True)
    elder = t.elder()
    thing, mended = t.pick(words.BREAKABLE)
    color, day = t.pick(words.COLORS), t.day()
    game = t.pick(("played with a ball", "danced around", "ran a race with the dog", "played airplane", "jumped about"))
    blame = t.pick(("the cat did it", "the wind did it", "the dog did it"))
    return [
        t.opening(c),
        [
            t.say(
                f"{day}, {c.name} {game} in the house, even though {c.his} {elder.kind} had told {c.him} not to.",
                f'"Please do not play in the house," {c.his} {elder.kind} always said. '
                f"But {day[0].lower() + day[1:]}, {c.name} {game} in the house.",
            ),
            f"Crash! {c.He} bumped into the table, and the {color} {thing} fell on the floor and broke.",
            t.say(
                f"It was the one {c.his} {elder.kind} loved best. {c.name}'s heart beat fast.",
                f"{c.name} was afraid. That {thing} was very dear to {c.his} {elder.kind}.",
            ),
            t.say(
                f'"I could say that {blame}," {c.he} thought.',
                f'"If I hide it, nobody will know," {c.he} thought. "Or I could say that {blame}."',
            ),
        ],
        [
            t.say(
                f"But {c.name} did not want to tell a lie.",
                f"But that did not feel right, and {c.name} shook {c.his} head.",
            ),
            f"{c.He} picked up the pieces and went to {c.his} {elder.kind}.",
            t.say(
                f'"I broke your {thing}," {c.he} said in a small voice. "I am very sorry."',
                f'"I played in the house and broke the {thing}," {c.he} said. "It was my fault."',
            ),
            t.say(
                f'{c.His} {elder.kind} was quiet for a moment. "Thank you for telling me the truth," {elder.he} said.',
                f'{c.His} {elder.kind} looked at the pieces and then at {c.name}. "You were brave to tell me," '
                f"said {c.his} {elder.kind}.",
            ),
        ],
        [
            t.say(
                f"Together they {mended}.",
                f'"Let us see what we can do," {elder.he} said, and together they {mended}.',
            ),
            t.say(
                f"The {thing} looked a little different now, but {c.his} {elder.kind} said it was even more special.",
                f'"Now it has a story," said {c.his} {elder.kind}, and {elder.he} gave {c.name} a hug.',
            ),
            t.say(
                f"From that day on, {c.name} played outside.",
                f"After that, {c.name} took {c.his} games out to the yard.",
            ),
            t.ending(c),
            *t.moral("truth", c),
        ],
    ]


TRIALS = (broken_thing, stuck_animal, night_noise, learn, way_home, wish)
