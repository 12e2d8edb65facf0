"""The words of the embedded stories: short lists, so that the vocabulary stays small.

Tested in tests/data/tales/test_story.py.
"""

GIRLS = [
    "Lily",
    "Mia",
    "Anna",
    "Rosa",
    "Ella",
    "Nina",
    "Zoe",
    "Ruby",
    "Ivy",
    "Clara",
    "Mila",
    "Emma",
    "Lucy",
    "Sara",
    "Hana",
    "Tess",
    "Nora",
    "Maya",
    "Amy",
    "Kate",
    "Jane",
    "Lola",
    "Bella",
    "Daisy",
]
BOYS = [
    "Tom",
    "Ben",
    "Max",
    "Leo",
    "Sam",
    "Jack",
    "Finn",
    "Omar",
    "Luca",
    "Theo",
    "Noah",
    "Eli",
    "Adam",
    "Hugo",
    "Oscar",
    "Tim",
    "Milo",
    "Ravi",
    "Paul",
    "Nico",
    "Bobby",
    "Peter",
    "Toby",
    "Gus",
]

ANIMALS = [
    "fox",
    "rabbit",
    "bear",
    "mouse",
    "squirrel",
    "hedgehog",
    "otter",
    "badger",
    "beaver",
    "raccoon",
    "kitten",
    "puppy",
    "goat",
    "lamb",
]
TRAITS = [
    "kind",
    "curious",
    "brave",
    "shy",
    "cheerful",
    "quiet",
    "clever",
    "gentle",
    "careful",
    "silly",
    "busy",
    "friendly",
    "playful",
    "honest",
    "helpful",
    "thoughtful",
]
COLORS = ["red", "blue", "green", "yellow", "orange", "purple", "white", "brown", "pink", "golden"]
WEATHER = ("sunny", "warm", "windy", "bright", "cool", "quiet", "lovely", "fresh")
TIMES = ("morning", "afternoon", "day")
GLAD = ("happy", "glad", "proud", "cheerful", "full of joy")
SAD = ("sad", "unhappy", "very sad", "sad and tired")

# Where children and animals live.
HOUSES = (
    "in a small house near the river",
    "in a yellow house at the end of a quiet street",
    "in a little house by the sea",
    "on a farm with a big red barn",
    "in a tall house across from the park",
    "in a stone house on a green hill",
    "in a cozy house beside the forest",
    "in a small town with a clock tower",
)
DENS = (
    "in a cozy den under an old oak tree",
    "in a warm nest of leaves by the pond",
    "in a little hole beside the stream",
    "in a hollow tree in the deep green forest",
    "in a snug burrow under the hill",
    "in a tiny cave near the waterfall",
)

# What each one likes to do: (loved to ..., was doing ... when the story begins).
HOBBIES = (
    ("paint pictures", "painting a picture"),
    ("sing songs", "singing a song"),
    ("pick flowers", "picking flowers"),
    ("look for pretty stones", "looking for pretty stones"),
    ("climb trees", "climbing a tree"),
    ("watch the clouds", "watching the clouds"),
    ("jump in puddles", "jumping in puddles"),
    ("tell jokes", "telling jokes"),
    ("count the birds", "counting the birds"),
    ("dance in the grass", "dancing in the grass"),
    ("draw maps", "drawing a map"),
    ("collect leaves", "collecting leaves"),
)

# Things that are carried about and lost.
TREASURES = [
    "ball",
    "hat",
    "scarf",
    "kite",
    "drum",
    "book",
    "doll",
    "whistle",
    "boat",
    "blanket",
    "mitten",
    "basket",
    "lantern",
    "bell",
    "puppet",
    "spoon",
    "cup",
    "key",
    "feather",
    "shell",
    "button",
]

# Where something gets lost: (was last there doing ..., so it is ...).
HIDING_PLACES = (
    ("rested under the old tree", "under the old tree", "behind the roots"),
    ("sat on the bench by the pond", "by the pond", "under the bench"),
    ("played in the tall grass", "in the tall grass", "between two yellow flowers"),
    ("crossed the little bridge", "near the little bridge", "beside a round rock"),
    ("helped in the garden", "in the garden", "next to the carrots"),
    ("looked at the hens", "by the hen house", "in a pile of straw"),
    ("waited at the gate", "at the gate", "on top of the wall"),
    ("picked berries on the hill", "on the hill", "under a berry bush"),
)
# Where it is looked for in vain, at home and in the woods.
INDOORS = (
    "under the bed",
    "behind the door",
    "in the kitchen",
    "on every shelf",
    "inside the big box",
    "under the table",
    "behind the curtain",
    "under the rug",
)
OUTDOORS = (
    "behind the big stone",
    "under the dry leaves",
    "beside the stream",
    "along the path",
    "inside a hollow log",
    "under the mushrooms",
    "near the honey tree",
    "at the foot of the hill",
)

TREATS = (
    ("cookie", "cookies"),
    ("apple", "apples"),
    ("muffin", "muffins"),
    ("pear", "pears"),
    ("pancake", "pancakes"),
    ("peach", "peaches"),
    ("bun", "buns"),
    ("orange", "oranges"),
)
# What breaks in the house, and how it is mended.
BREAKABLE = (
    ("vase", "glued the pieces of the vase together"),
    ("cup", "glued the cup and put a flower in it"),
    ("bowl", "glued the bowl and painted a star on it"),
    ("clock", "put the clock back together, wheel by wheel"),
    ("picture frame", "made a new frame out of wood"),
    ("music box", "fixed the music box with a tiny screw"),
    ("plate", "glued the plate and hung it on the wall"),
    ("lamp", "fixed the lamp and made a new shade for it"),
    ("teapot", "glued the teapot and planted a flower in it"),
)
DISHES = (
    ("cake", "sugar"),
    ("apple pie", "butter"),
    ("pot of soup", "salt"),
    ("loaf of bread", "flour"),
    ("honey cake", "honey"),
    ("berry pie", "flour"),
    ("nut cake", "butter"),
    ("big pudding", "milk"),
)
SEEDS = (
    ("sunflower", "sunflower as tall as a door"),
    ("pumpkin", "pumpkin as big as a chair"),
    ("tomato", "bush full of round red tomatoes"),
    ("bean", "bean plant as high as the roof"),
    ("melon", "sweet green melon"),
    ("carrot", "carrot as long as an arm"),
    ("rose", "rose bush with soft pink roses"),
    ("strawberry", "row of sweet strawberries"),
)
# Who is in trouble: (animal, is ..., what is fetched, how it is saved).
RESCUES = (
    (
        "kitten",
        "high up in a tree and could not get down",
        "a ladder",
        "{elder} climbed up and carried the kitten down",
    ),
    (
        "duckling",
        "stuck in the thick mud",
        "a long board",
        "{elder} put the board on the mud and lifted the duckling out",
    ),
    ("puppy", "caught in a thorn bush", "strong gloves", "{elder} bent the thorns back and pulled the puppy out"),
    ("lamb", "at the bottom of a deep hole", "a rope", "{elder} climbed down the rope and brought the lamb up"),
    ("bird", "caught in an old net", "a pair of scissors", "{elder} cut the net and let the bird go"),
    ("hedgehog", "trapped inside a tin can", "a strong cutter", "{elder} cut the can open and set the hedgehog free"),
    ("rabbit", "stuck under a fallen branch", "a saw", "{elder} cut the branch and lifted it off the rabbit"),
    (
        "turtle",
        "on its back and could not turn over",
        "a flat shovel",
        "{elder} pushed the shovel under the turtle and turned it over",
    ),
    (
        "squirrel",
        "in a bucket of water and could not get out",
        "a towel",
        "{elder} lifted the squirrel out and dried it",
    ),
    (
        "goat",
        "on a narrow rock and could not come down",
        "a wide board",
        "{elder} made a bridge for the goat with the board",
    ),
)
# What is heard at night: (sound, what it was, what ended it).
NOISES = (
    ("tap, tap, tap", "a branch that knocked on the window", "tied the branch back"),
    ("squeak, squeak", "a tiny mouse with a piece of cheese", "opened the door for the mouse"),
    ("bang, bang", "a door that moved in the wind", "shut the door"),
    ("drip, drop", "water that fell into a bucket", "moved the bucket"),
    ("hoo, hoo", "an owl that sat on the roof", "waved at the owl until it flew away"),
    ("scratch, scratch", "a lost kitten that wanted to come in", "let the kitten in"),
    ("rustle, rustle", "a paper bag that blew around", "picked up the bag"),
    ("clink, clink", "a spoon that swung on a string", "took the spoon down"),
    ("croak, croak", "a fat green frog in a puddle", "carried the frog outside"),
)
# What can be learnt: (to ..., what went wrong, a friend's advice, how it went right).
SKILLS = (
    (
        "swim",
        "{he} splashed and swallowed water",
        "Lie still first, and let the water hold you.",
        "{he} was swimming across the pond",
    ),
    (
        "skip stones",
        "the stone fell in with a plop",
        "Choose a flat stone, and throw it low.",
        "the stone jumped five times over the water",
    ),
    ("whistle", "only air came out", "Make your mouth round, and blow very softly.", "a clear, high sound came out"),
    (
        "jump rope",
        "the rope caught {his} feet",
        "Do not look at the rope. Listen to it.",
        "{he} jumped twenty times without a stop",
    ),
    ("skate", "{he} fell down on the ice", "Bend your knees, and take small steps.", "{he} was gliding over the ice"),
    (
        "walk on the high log",
        "{he} slipped off",
        "Look at the end of the log, and not at your feet.",
        "{he} walked all the way to the end",
    ),
    (
        "catch a ball",
        "the ball went past {his} hands",
        "Watch the ball until it is in your hands.",
        "the ball landed safely in {his} hands",
    ),
    (
        "do a handstand",
        "{he} rolled over on the grass",
        "Keep your arms straight and strong.",
        "{his} feet were up in the air and stayed there",
    ),
    (
        "juggle",
        "the balls fell on {his} head",
        "Start with one ball, and then take two.",
        "three balls were flying through the air",
    ),
    (
        "climb the rope",
        "{he} slid down again",
        "Hold the rope with your feet, too.",
        "{he} touched the very top of the rope",
    ),
)
TOYS = ["truck", "train", "airplane", "puppet", "drum", "robot", "trumpet", "whistle", "top", "wagon", "boat", "doll"]

MORALS = {
    "look": (
        "If you lose something, think about where you have been.",
        "A calm head finds more than a worried one.",
        "It helps to stop and think.",
    ),
    "help": (
        "Even someone small can be a big help.",
        "A kind heart always finds a way to help.",
        "When we help others, we feel good too.",
    ),
    "share": (
        "Sharing makes good things even better.",
        "Half of something shared is sweeter than all of it alone.",
        "A thing is more fun when there are two to enjoy it.",
    ),
    "truth": (
        "Telling the truth can be hard, but it is always best.",
        "It is brave to say what really happened.",
        "The truth makes a heavy heart light again.",
    ),
    "brave": (
        "Being brave means trying even when you are afraid.",
        "Many scary things are small when you look at them closely.",
        "A light and a friend can chase away fear.",
    ),
    "try": (
        "If you keep trying, hard things become easy.",
        "Nobody can do everything the first time.",
        "Every try makes you a little better.",
    ),
    "wait": (
        "Good things take time.",
        "Those who wait and care will see things grow.",
        "Some of the best things cannot be hurried.",
    ),
    "friend": (
        "A new friend may be only one hello away.",
        "A kind word is a good way to begin.",
        "There is always room for one more friend.",
    ),
    "sorry": (
        "Saying sorry can mend a friendship.",
        "Friends are more important than winning.",
        "It feels good to make peace.",
    ),
    "together": (
        "Work is easier when you do it together.",
        "Together we can do more than one can do alone.",
        "Two pairs of hands are better than one.",
    ),
    "plan": (
        "When a plan goes wrong, a new one may be even better.",
        "A rainy day can be a happy day too.",
        "You can have fun anywhere with the right friend.",
    ),
    "care": (
        "A little care can make someone feel much better.",
        "The best medicine is a good friend.",
        "It is nice to be nice to others.",
    ),
    "listen": (
        "It is wise to remember good advice.",
        "Listen well, and you will find your way.",
        "Good advice is like a lamp in the dark.",
    ),
    "humble": (
        "Being fast is good, but being kind is better.",
        "It is better to help than to win.",
        "Slow and steady friends can go far together.",
    ),
    "wish": (
        "The best wishes are the ones we make for others.",
        "Giving can make you happier than getting.",
        "A kind wish comes back to you.",
    ),
    "tidy": (
        "A place for everything saves a lot of trouble.",
        "Tidying up can bring a nice surprise.",
        "It is good to clean up after you play.",
    ),
}
