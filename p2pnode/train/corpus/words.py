"""Word lists of the built-in corpus. Tuples only: the order is part of the corpus.

May import: nothing of ours.
"""

from __future__ import annotations

from typing import NamedTuple


class Person(NamedTuple):
    """A name with its pronouns: subject, object, possessive."""

    name: str
    he: str
    him: str
    his: str


class Noun(NamedTuple):
    one: str
    many: str


class Verb(NamedTuple):
    """A transitive verb: `see`, `sees`, `saw`, `seen`."""

    base: str
    third: str
    past: str
    participle: str


class Animal(NamedTuple):
    """An animal and the facts every text about it keeps to."""

    noun: Noun
    kind: str
    home: str
    food: str
    colour: str
    habit: str
    legs: int


def _people(names: str, he: str, him: str, his: str) -> list[Person]:
    return [Person(name, he, him, his) for name in names.split()]


def _nouns(text: str) -> tuple[Noun, ...]:
    """`box/boxes cup` -> nouns; without a plural an `s` is added."""
    pairs = (word.partition("/") for word in text.split())
    return tuple(Noun(one, many or one + "s") for one, _, many in pairs)


def _verbs(text: str) -> tuple[Verb, ...]:
    return tuple(Verb(*word.split("/")) for word in text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


PEOPLE = tuple(
    _people(
        "Anna Clara Edith Fiona Greta Hilda Ingrid Joan Kate Lena Maud Nora Olga Paula Rosa Sally "
        "Tilda Ursula Vera Wanda Alice Bella Dora Esther",
        "she",
        "her",
        "her",
    )
    + _people(
        "Adam Boris Carl Daniel Emil Frank George Henry Ivan Jacob Karl Leo Martin Nils Oscar "
        "Peter Robert Samuel Thomas Victor Walter Arthur Bruno Simon",
        "he",
        "him",
        "his",
    )
)
THINGS = _nouns(
    "basket book bottle box/boxes brush/brushes bucket button candle chair clock coat coin cup "
    "drum feather flute hammer hat jar kettle key knife/knives ladder lamp letter map mirror "
    "needle oar painting pencil pillow plate ribbon ring rope saddle sail shoe shovel spoon stone "
    "table umbrella violin watch/watches wheel whistle window"
)
FRUITS = _nouns(
    "apple pear plum cherry/cherries lemon walnut fig peach/peaches berry/berries melon carrot "
    "potato/potatoes onion turnip egg loaf/loaves cake biscuit"
)
PLACES = _phrases(
    "village, harbour, market, mill, forest, river, castle, garden, school, library, station, "
    "workshop, farm, lighthouse, bridge, island, valley, orchard, bakery, museum, town hall, "
    "old quarry, meadow, tower"
)
JOBS = _nouns(
    "baker carpenter doctor farmer fisher gardener painter sailor shepherd singer smith tailor "
    "teacher miller hunter clockmaker weaver potter soldier postman/postmen"
)
ADJECTIVES = _phrases(
    "big, small, old, new, heavy, light, broken, clean, dusty, golden, silver, wooden, round, "
    "narrow, wide, bright, dark, warm, cold, empty, full, famous, forgotten, strange, plain, "
    "useful, pretty, ugly, ancient, expensive"
)
MOODS = _phrases(
    "happy, sad, tired, angry, proud, calm, curious, nervous, hungry, thirsty, surprised, lonely, "
    "grateful, bored, brave, careful"
)
COLOURS = _phrases("red, blue, green, yellow, white, black, brown, grey, orange, purple")
ACTIONS = _verbs(
    "find/finds/found/found carry/carries/carried/carried sell/sells/sold/sold "
    "buy/buys/bought/bought repair/repairs/repaired/repaired hide/hides/hid/hidden "
    "clean/cleans/cleaned/cleaned paint/paints/painted/painted lose/loses/lost/lost "
    "see/sees/saw/seen bring/brings/brought/brought take/takes/took/taken "
    "make/makes/made/made keep/keeps/kept/kept want/wants/wanted/wanted "
    "need/needs/needed/needed break/breaks/broke/broken draw/draws/drew/drawn "
    "borrow/borrows/borrowed/borrowed admire/admires/admired/admired "
    "steal/steals/stole/stolen throw/throws/threw/thrown measure/measures/measured/measured "
    "choose/chooses/chose/chosen"
)
MOVES = _verbs(
    "walk/walks/walked/walked run/runs/ran/run go/goes/went/gone "
    "travel/travels/travelled/travelled ride/rides/rode/ridden hurry/hurries/hurried/hurried "
    "return/returns/returned/returned "
    "come/comes/came/come"
)
WEATHER = _phrases(
    "rain, snow, fog, bright sunshine, strong wind, a thunderstorm, light clouds, hail, drizzle, "
    "a clear sky"
)
TIMES = _phrases(
    "in the morning, at noon, in the evening, at night, before sunrise, after lunch, every day, "
    "one day, last winter, in spring, long ago, on the same day"
)
DAYS = _phrases("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday")
MONTHS = _phrases(
    "January, February, March, April, May, June, July, August, September, October, November, "
    "December"
)
TOWNS = tuple(
    head + tail
    for head in ("Ash", "Brook", "Elm", "Fair", "Green", "North", "Oak", "Stone", "West", "Wind")
    for tail in ("bury", "field", "ford", "ham", "ton")
)
ANIMALS = tuple(
    Animal(Noun(*row[0].split("/")), row[1], row[2], row[3], row[4], row[5], int(row[6]))
    for row in (
        ("heron/herons", "bird", "rivers and lakes", "fish and frogs", "grey", "stands still", "2"),
        ("owl/owls", "bird", "woods", "mice", "brown", "hunts at night", "2"),
        ("robin/robins", "bird", "gardens", "worms", "red", "sings in winter", "2"),
        ("swan/swans", "bird", "ponds", "water plants", "white", "swims in pairs", "2"),
        ("raven/ravens", "bird", "mountains", "almost anything", "black", "learns fast", "2"),
        ("fox/foxes", "mammal", "fields", "mice and fruit", "red", "sleeps by day", "4"),
        ("hare/hares", "mammal", "meadows", "grass", "brown", "runs in zigzags", "4"),
        ("badger/badgers", "mammal", "deep burrows", "roots", "grey", "digs all night", "4"),
        ("otter/otters", "mammal", "clean streams", "fish", "brown", "plays on the bank", "4"),
        ("mouse/mice", "mammal", "barns", "grain", "grey", "stores its food", "4"),
        ("goat/goats", "mammal", "steep hills", "leaves", "white", "climbs well", "4"),
        ("ox/oxen", "mammal", "farms", "hay", "brown", "pulls heavy carts", "4"),
        ("frog/frogs", "amphibian", "wet grass", "flies", "green", "croaks in spring", "4"),
        ("newt/newts", "amphibian", "old ponds", "small insects", "orange", "hides in mud", "4"),
        ("lizard/lizards", "reptile", "warm walls", "beetles", "green", "lies in the sun", "4"),
        ("ant/ants", "insect", "nests in the ground", "seeds", "black", "works in lines", "6"),
        ("bee/bees", "insect", "hives", "nectar", "yellow", "dances to tell the way", "6"),
        ("moth/moths", "insect", "dark corners", "wool", "grey", "flies towards lamps", "6"),
    )
)
NUMBERS = _phrases(
    "no, one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, "
    "fourteen, fifteen, sixteen, seventeen, eighteen, nineteen, twenty"
)
TENS = _phrases("twenty, thirty, forty, fifty, sixty, seventy, eighty, ninety")
NAME_PARTS = (
    _phrases(
        "Al, Ber, Bran, Cor, Dal, Dun, El, Far, Gar, Hal, Hol, Ken, Lor, Mar, Mor, Nor, Pel, Ral, "
        "Sel, Tor, Ul, Win"
    ),
    _phrases("a, an, ber, den, e, el, gar, i, in, lo, mer, o, or, ra, ri, ten, u, ver"),
    _phrases(
        "by, croft, dale, ford, gate, ham, ley, man, mere, ner, son, ster, stock, ton, ward, wick, "
        "wood, worth"
    ),
)
"""Beginnings, middles and ends of family names."""
