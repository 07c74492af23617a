"""The kinds of documents in the built-in corpus, each a function from draws to a text.

Every kind carries facts over a distance (who owns what, how many are left, what an animal eats),
so that a model goes on learning after it has the spelling and the grammar.

May import: corpus.words, corpus.grammar.
"""

from __future__ import annotations

from p2pnode.train.corpus import words
from p2pnode.train.corpus.grammar import (
    Draws,
    a,
    cap,
    count,
    linked_sentence,
    listing,
    noun_phrase,
    number,
    plain_sentence,
    thing,
)


def story(d: Draws) -> str:
    """Someone looks for a thing, asks a helper, finds it where it was said to be."""
    hero, helper = d.some(words.PEOPLE, 2)
    job = d.one(words.JOBS).one
    town = d.one(words.TOWNS)
    start, goal = d.some(words.PLACES, 2)
    wanted, noun = thing(d)
    mood, later = d.some(words.MOODS, 2)
    move = d.one(words.MOVES)
    giver = d.one(("mother", "father", "sister", "brother", "friend", "neighbour"))
    first = [
        f"{cap(d.one(words.TIMES))} there lived {a(job)} called {hero.name} in {town}.",
        f"{cap(hero.he)} had {a(wanted)} that {hero.his} {giver} had given {hero.him}.",
        linked_sentence(d, hero),
        f"One morning the {noun.one} was gone, and {hero.name} was {mood}.",
    ]
    second = [
        f"{hero.name} {move.past} to the {start} and asked {helper.name} for help.",
        f'"Have you seen my {wanted}?" {hero.he} asked.',
        f'"Yes," said {helper.name}, "it is at the {goal}."',
        *(plain_sentence(d, past=True) for _ in range(1 + d.below(2))),
    ]
    third = [
        f"So {hero.he} {d.one(words.MOVES).past} to the {goal} {d.one(words.TIMES)}.",
        linked_sentence(d, hero),
        f"There {hero.he} found the {wanted} under {a(d.one(words.THINGS).one)}.",
        f"{hero.name} thanked {helper.name}, and the {job} of {town} was {later} again.",
    ]
    return "\n".join(" ".join(part) for part in (first, second, third))


def counting(d: Draws) -> str:
    """Goods are given, taken and counted; every total is right."""
    owner, friend = d.some(words.PEOPLE, 2)
    fruit = d.one(words.FRUITS)
    have = 3 + d.below(40)
    lines = [f"{owner.name} has {count(have, fruit)}."]
    for _ in range(2 + d.below(4)):
        amount = 1 + d.below(12)
        if d.chance(50) and amount <= have:
            have -= amount
            lines.append(
                d.one(
                    (
                        f"{cap(owner.he)} gives {number(amount)} of them to {friend.name}.",
                        f"{friend.name} takes {number(amount)} away.",
                        f"{cap(owner.he)} sells {number(amount)} at the {d.one(words.PLACES)}.",
                    )
                )
            )
        else:
            have += amount
            lines.append(
                d.one(
                    (
                        f"{friend.name} brings {owner.him} {number(amount)} more.",
                        f"{cap(owner.he)} buys {number(amount)} more from the "
                        f"{d.one(words.JOBS).one}.",
                        f"Then {owner.he} finds another {number(amount)}.",
                    )
                )
            )
        lines.append(f"Now {owner.name} has {count(have, fruit)}.")
    lines.append(f"How many {fruit.many} does {owner.name} have? {owner.name} has {have}.")
    return " ".join(lines)


def animal_facts(d: Draws) -> str:
    """Facts of one animal, in changing order and wording but never contradicting."""
    x = d.one(words.ANIMALS)
    other = d.one([y for y in words.ANIMALS if y.kind != x.kind])
    one, many = x.noun
    facts = [
        d.one((f"{cap(many)} live in {x.home}.", f"You can find {a(one)} in {x.home}.")),
        d.one((f"{cap(a(one))} eats {x.food}.", f"The food of {many} is {x.food}.")),
        d.one((f"Most {many} are {x.colour}.", f"The {one} is {x.colour}.")),
        f"{cap(a(one))} {x.habit}.",
        f"Like every {x.kind}, the {one} has {number(x.legs)} legs.",
        f"Unlike the {one}, the {other.noun.one} is {a(other.kind)} and eats {other.food}.",
    ]
    head = f"The {one}\n\nThe {one} is {a(x.kind)}. "
    tail = f" {cap(number(3))} {many} have {number(3 * x.legs)} legs together."
    return head + " ".join(d.some(facts, 3 + d.below(4))) + tail


def dialogue(d: Draws) -> str:
    """Questions and answers; a later question is answered by what was said before."""
    asker, other = d.some(words.PEOPLE, 2)
    place, town = d.one(words.PLACES), d.one(words.TOWNS)
    goods, noun = thing(d)
    colour = d.one(words.COLOURS)
    price = 2 + d.below(60)
    hour = 1 + d.below(12)
    exchanges = d.some(
        (
            (f"Where are you going, {other.name}?", f"I am going to the {place} in {town}."),
            ("What do you want there?", f"I want to buy {a(goods)}."),
            ("Which colour should it have?", f"It should be {colour}."),
            ("What does it cost?", f"It costs {number(price)} coins."),
            ("When will you come back?", f"I will come back at {number(hour)} o'clock."),
            ("May I come with you?", d.one(("Yes, gladly.", "No, not today.", "If you hurry."))),
        ),
        4,
    )
    lines = [f"{asker.name}: {q}\n{other.name}: {answer}" for q, answer in exchanges]
    asked, answer = d.one(exchanges)
    lines.append(f'{asker.name}: I asked, "{asked}" What did you say?')
    lines.append(f'{other.name}: I said, "{answer}"')
    lines.append(f"Then {asker.name} and {other.name} talked about the {noun.one}.")
    return "\n".join(lines)


def recipe(d: Draws) -> str:
    """A list of goods, then numbered steps that use exactly those."""
    goods = d.some(words.FRUITS, 3)
    amounts = [2 + d.below(7) for _ in goods]
    dish = d.one(("soup", "pie", "salad", "stew", "pudding", "jam"))
    minutes = 5 * (1 + d.below(12))
    lines = [f"How to make {goods[0].one} {dish}", "", "You need:"]
    lines += [f"- {count(n, x)}" for n, x in zip(amounts, goods, strict=True)]
    steps = [f"Wash the {goods[0].many} and cut them."]
    steps += [
        d.one(
            (
                f"Add the {number(n)} {x.many} {d.one(('slowly', 'quickly', 'one by one'))}.",
                f"Mix in the {x.many}.",
            )
        )
        for n, x in zip(amounts[1:], goods[1:], strict=True)
    ]
    steps.append(f"Wait for {number(minutes)} minutes.")
    steps.append(f"Serve the {dish} {d.one(('hot', 'cold', 'warm'))} on {a(thing(d)[0])}.")
    lines += ["", *(f"{i}. {step}" for i, step in enumerate(steps, 1))]
    lines.append(f"The {dish} is made of {listing([x.many for x in goods])}.")
    return "\n".join(lines)


def letter(d: Draws) -> str:
    """A dated letter; its end comes back to its beginning."""
    writer, reader = d.some(words.PEOPLE, 2)
    town, place = d.one(words.TOWNS), d.one(words.PLACES)
    goods, noun = thing(d)
    who, plural = noun_phrase(d)
    date = f"{1 + d.below(28)} {d.one(words.MONTHS)} {1850 + d.below(140)}"
    mood = d.one(words.MOODS)
    body = [
        f"I hope you are not {mood}. I write to you from the {place}.",
        f"{cap(who)} {'have' if plural else 'has'} sent me {a(goods)}.",
        *(plain_sentence(d, past=d.chance(50)) for _ in range(1 + d.below(3))),
        f"If you come to {town}, I will show you the {noun.one}.",
    ]
    return (
        f"{town}, {date}\n\nDear {reader.name},\n\n{' '.join(body)}\n\n"
        f"Your friend from {town},\n{writer.name}"
    )


def diary(d: Draws) -> str:
    """Days in their order, with weather, money spent and the right sum at the end."""
    writer = d.one(words.PEOPLE)
    first = d.below(7)
    spent = 0
    lines = [f"The diary of {writer.name}", ""]
    for i in range(2 + d.below(4)):
        amount = 1 + d.below(20)
        spent += amount
        weather = d.one(words.WEATHER)
        lines.append(
            f"{words.DAYS[(first + i) % 7]}: {cap(weather)}, {number(5 + d.below(25))} degrees. "
            f"I bought {a(thing(d)[0])} for {count(amount, words.Noun('coin', 'coins'))}. "
            f"{plain_sentence(d, past=True)}"
        )
    lines.append(f"I spent {count(spent, words.Noun('coin', 'coins'))} together ({spent}).")
    return "\n".join(lines)


def inventory(d: Draws) -> str:
    """A table of goods and its total."""
    place = d.one(words.PLACES)
    rows = [(x, 1 + d.below(99)) for x in d.some(words.THINGS, 3 + d.below(4))]
    lines = [f"Things in the {place} of {d.one(words.TOWNS)}:"]
    lines += [f"  {x.many:<12}{n:>3}" for x, n in rows]
    lines.append(f"  {'total':<12}{sum(n for _, n in rows):>3}")
    most = max(rows, key=lambda row: row[1])[0]
    lines.append(f"There are more {most.many} than anything else.")
    return "\n".join(lines)


def essay(d: Draws) -> str:
    """Free sentences in one tense: grammar without a plot."""
    past = d.chance(50)
    return " ".join(plain_sentence(d, past) for _ in range(4 + d.below(6)))


TOPICS = (story, counting, animal_facts, dialogue, recipe, letter, diary, inventory, essay)
