"""Tasks with numbers, made from templates."""

from __future__ import annotations

import random
from collections.abc import Callable

NAMES = (
    "Anna",
    "Ben",
    "Carla",
    "David",
    "Emma",
    "Felix",
    "Grace",
    "Henry",
    "Ivy",
    "Jack",
    "Lena",
    "Mark",
    "Nina",
    "Omar",
)
THINGS = ("apples", "books", "coins", "pencils", "marbles", "cookies", "tickets", "stamps", "eggs", "cards", "balls")
TAILS = ("", "", " Show each step.", " Work step by step.", " Explain.", " Show your work.", " Explain how.")
PLACES = ("farm", "shop", "library", "school", "factory", "museum", "hotel", "garden")


def arithmetic(r: random.Random) -> str:
    """A prompt with numbers of its own."""
    a, b, c, d = r.randint(2, 99), r.randint(2, 999), r.randint(2, 20), r.randint(2, 999)
    name, other, thing, place = r.choice(NAMES), r.choice(NAMES), r.choice(THINGS), r.choice(PLACES)
    price = f"${r.randint(1, 20)}.{r.choice(('00', '20', '25', '50', '75', '99'))}"
    many = lambda: ", ".join(str(r.randint(1, 90)) for _ in range(r.randint(3, 7)))
    forms: tuple[Callable[[], str], ...] = (
        lambda: f"What is {b} {r.choice('+-*/')} {a}?",
        lambda: f"What is {b} {r.choice('+-')} {d}?",
        lambda: f"What is {a} {r.choice('*/')} {c}?",
        lambda: f"Calculate {a} {r.choice('+-*')} {b} {r.choice('+-*')} {c}.",
        lambda: f"Evaluate ({a} {r.choice('+-')} {c}) {r.choice('*/')} {r.randint(2, 12)}.",
        lambda: f"Solve for {r.choice('xyn')}: {c}x {r.choice('+-')} {a} = {b}.",
        lambda: f"Solve the equation {c}x {r.choice('+-')} {a} = {d}.",
        lambda: f"If x = {c}, what is {r.randint(2, 9)}x + {a}?",
        lambda: f"{name} has {b} {thing} and gives {a} to {other}. How many are left?",
        lambda: f"{name} has {a} {thing} and {other} has {c} more. How many do they have together?",
        lambda: f"A box holds {a} {thing}. How many {thing} are in {c} boxes?",
        lambda: f"A {place} sells {a} {thing} a day at {price} each. How much does it take in {c} days?",
        lambda: f"What is {c * 5}% of {b}?",
        lambda: f"Calculate {r.randint(1, 99)}% of {d}.",
        lambda: f"{a} is what percentage of {a + b}?",
        lambda: f"{name} buys {c} {thing} for {price} each. How much does {name} pay?",
        lambda: f"A coat costs ${b} and is {c * 5}% off. What does {name} pay?",
        lambda: f"The price of a ticket rises from ${a} by {c}%. What is the new price?",
        lambda: f"A rectangle is {a} cm long and {c} cm wide. What are its area and perimeter?",
        lambda: f"What is the area of a {r.choice(('square with side', 'circle with diameter'))} {c}?",
        lambda: f"What is the volume of a box of {c} by {r.randint(2, 20)} by {a} cm?",
        lambda: f"A triangle has a base of {a} cm and a height of {c} cm. What is its area?",
        lambda: f"Find the average of {many()}.",
        lambda: f"What is the sum of {many()}?",
        lambda: f"Find the {r.choice(('median', 'largest', 'mean'))} of {many()}.",
        lambda: f"Share {b} {thing} equally among {c} people. How many does each get, and how many remain?",
        lambda: f"A train moves at {a} km per hour for {c} hours. How far does it go?",
        lambda: f"A bus goes {b} miles in {c} hours. What is its speed?",
        lambda: f"{c} workers need {a} days for a bridge. How long do {r.randint(2, 20)} workers need?",
        lambda: f"A recipe for {c} people needs {a} grams of flour. How much is needed for {r.randint(2, 30)} people?",
        lambda: f"List the first {c} multiples of {a}.",
        lambda: f"List the even numbers from {c} to {c + r.randint(8, 40)} and find their sum.",
        lambda: f"How many minutes are there in {c} hours?",
        lambda: f"How many hours are there in {c} weeks?",
        lambda: (
            f"Convert {b} {r.choice(('minutes to hours', 'cm to meters', 'grams to kilograms', 'feet to inches'))}."
        ),
        lambda: f"Add the numbers from {c} to {a + c}.",
        lambda: f"Find the greatest common divisor of {a} and {b}.",
        lambda: f"Simplify the fraction {a}/{a + c}.",
        lambda: f"{name} saves ${a} each month. How much is that after {c} months?",
        lambda: f"What is {b}.{a} {r.choice('+-')} {d}.{c}?",
        lambda: f"Round {b}.{d} to the nearest {r.choice(('whole number', 'ten', 'tenth'))}.",
        lambda: f"Which is larger, {r.randint(1, 9)}/{c} or {r.randint(1, 9)}/{r.randint(2, 20)}?",
        lambda: f"Add {r.randint(1, 9)}/{c} and {r.randint(1, 9)}/{r.randint(2, 12)}.",
        lambda: f"Write {r.randint(1, 19)}/20 as a decimal and as a percentage.",
        lambda: f"What is {r.randint(2, 30)} squared?",
        lambda: f"What is the square root of {r.randint(2, 30) ** 2}?",
        lambda: f"Compute {r.randint(2, 9)}^{r.randint(2, 6)}.",
        lambda: f"What are the prime factors of {b}?",
        lambda: f"Find the least common multiple of {c} and {r.randint(2, 30)}.",
        lambda: f"What is the remainder when {b} is divided by {c}?",
        lambda: f"Continue the sequence: {a}, {a + c}, {a + 2 * c}, {a + 3 * c}.",
        lambda: f"Count from {a} to {a + r.randint(10, 60)} in steps of {r.randint(2, 9)}.",
        lambda: f"Count down from {b} by {c}s, ten times.",
        lambda: f"Write the multiplication table of {c}.",
        lambda: f"Make a table of x and {r.randint(2, 9)}x {r.choice('+-')} {c} for x from 1 to {r.randint(4, 10)}.",
        lambda: f"Order these numbers from smallest to largest: {many()}.",
        lambda: f"Double {b}, then subtract {a}.",
        lambda: f"I think of a number, multiply it by {c} and add {a}. The result is {b}. What is my number?",
        lambda: f"Solve {r.randint(2, 9)}(x {r.choice('+-')} {c}) = {a}.",
        lambda: f"Solve x + y = {b} and x - y = {a}.",
        lambda: f"Solve x^2 = {r.randint(2, 20) ** 2}.",
        lambda: f"Expand (x + {c})(x {r.choice('+-')} {r.randint(1, 20)}).",
        lambda: f"If f(x) = {r.randint(2, 9)}x {r.choice('+-')} {a}, what is f({c})?",
        lambda: f"{name} is {a} years old and {other} is {c} years older. How old is {other}?",
        lambda: (
            f"{name} pays for {thing} that cost ${c}.{r.randint(10, 99)} with a ${c + 20} note. What is the change?"
        ),
        lambda: (
            f"{name} earns ${c} an hour and works {a} hours. How much is that, and what is left after ${d} of rent?"
        ),
        lambda: f"{name} reads {c} pages a day. How long does a book of {b} pages take?",
        lambda: f"{name} scored {many()} in the tests. What are the total and the mean?",
        lambda: f"{name} and {other} share ${b} in the ratio {r.randint(1, 9)}:{r.randint(1, 9)}. Who gets what?",
        lambda: f"A bag has {a} red and {c} blue {thing}. What is the chance of a red one?",
        lambda: f"A tank holds {b} liters and loses {c} liters an hour. When is it empty?",
        lambda: f"A map has a scale of 1:{c}000. How far are {a} cm in reality?",
        lambda: f"${b} is invested at {r.randint(1, 12)}% a year. What is it worth after {r.randint(2, 9)} years?",
        lambda: f"{c} {thing} cost ${a}. What do {r.randint(2, 40)} {thing} cost?",
        lambda: f"A meeting begins at {r.randint(1, 12)}:{r.randint(10, 59)} and lasts {a} minutes. When does it end?",
        lambda: f"The temperature was {c} degrees and fell by {a}. What is it now?",
        lambda: f"Convert {a} degrees {r.choice(('Celsius to Fahrenheit', 'Fahrenheit to Celsius'))}.",
        lambda: f"A {place} had {b} visitors on Monday, {d} on Tuesday and {a} on Wednesday. How many in all?",
        lambda: f"Write {b} in {r.choice(('words', 'binary', 'Roman numerals', 'scientific notation'))}.",
        lambda: f"A garden of {a} by {c} meters gets a fence at {price} a meter. What does the fence cost?",
        lambda: f"What is the circumference of a wheel {c} cm across?",
        lambda: f"Two angles of a triangle have {a} and {r.randint(10, 70)} degrees. What is the third?",
        lambda: f"Compute {a} {r.choice('+-')} {c} {r.choice('+-')} {r.randint(2, 90)} {r.choice('+-')} {b}.",
    )
    return r.choice(forms)() + r.choice(TAILS)
