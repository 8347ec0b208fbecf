"""What conversations begin with: openers, tasks made from templates, and held-out prompts that none of them makes."""

from __future__ import annotations

import random

from turbospark.train.arithmetic import arithmetic

OPENERS = {
    "code": (
        "Write a Python function", "Write a Python function that", "Write a Python function to",
        "Write a Python program",
        "Write a Python script", "Write a Python class", "Write code", "Write a function",
        "Write a JavaScript function",
        "Write a SQL query", "Write a C program", "Write a Java method", "Write a recursive function", "Implement",
        "Implement a", "Create a Python function", "Create a class", "Fix the bug in this code:",
        "Explain this code:\n",
        "Complete this function:\ndef", "```python\n", "Given a list of", "In Python, how do I",
        "How can I use Python to",
        "Write unit tests for", "Write a bash script", "Refactor", "Write a program that", "Show me how to",
        "Define a function", "Sort", "Use a loop to", "Parse", "Write an HTML page",
    ),
    "arithmetic": (
        "Calculate", "Calculate the", "What is the sum of", "What is", "Solve", "Solve for x:", "Solve the equation",
        "How many", "If a train", "A store sells", "Compute", "Find the value of", "Find the area of",
        "Find the average of",
        "What is the product of", "Simplify", "Convert", "Evaluate", "A rectangle has", "The price of", "If x =",
        "Sarah has", "Tom buys", "What percentage of", "Multiply", "Divide", "Add", "List the first",
    ),
    "prose": (
        "Explain", "Describe", "Write a story", "Write a short story about", "Write a poem about", "Write an essay",
        "What are the benefits of", "What is the difference between", "How does", "Why do", "Tell me about",
        "Summarize",
        "Give me tips for", "Who was", "What happened", "Write a letter", "Write an email to", "Compare", "Discuss",
        "What is the history of", "Write a paragraph about", "How can I", "Can you explain",
        "Give three reasons why",
        "List five", "Translate", "Imagine", "Write a dialogue between", "Rewrite", "What causes",
    ),
}  # fmt: skip

CODE_TASKS = (
    "reverses a string", "counts the vowels in a string", "returns the largest number in a list",
    "computes the factorial of a number", "returns the nth Fibonacci number", "removes duplicates from a list",
    "merges two dictionaries", "sorts a list of tuples by the second element", "counts words in a text file",
    "flattens a nested list", "finds the second smallest element of a list", "computes the sum of digits of a number",
    "transposes a matrix", "multiplies two matrices", "finds the longest word in a sentence",
    "checks balanced parentheses",
    "implements bubble sort", "implements insertion sort", "implements merge sort", "implements quicksort",
    "implements a linked list", "implements a queue with two stacks", "reads a CSV file and prints each row",
    "converts Celsius to Fahrenheit", "rotates a list by k places", "finds common elements of two lists",
    "counts how often each character occurs", "generates a random password", "validates an email address",
    "finds all pairs that add up to a target", "returns the intersection of two sets", "prints a multiplication table",
    "computes the mean and median of a list", "checks whether a year is a leap year",
    "converts a decimal number to binary",
    "finds the greatest common divisor of two numbers", "computes the power of a number without using **",
    "capitalizes each word in a string", "groups words by their first letter", "removes all punctuation from a string",
    "simulates rolling two dice", "counts down from ten", "finds missing numbers in a range",
    "chunks a list into parts",
    "computes compound interest", "parses a date string", "filters even numbers from a list",
    "zips two lists together",
    "finds the depth of a binary tree", "traverses a graph breadth first", "implements a simple calculator",
    "keeps a running average", "downloads a web page", "writes a dictionary to a JSON file", "swaps two variables",
    "calculates the area of a triangle", "caches the results of another function", "retries a function three times",
)  # fmt: skip
CODE_FORMS = (
    "Write a Python function that {}.", "Write a function that {} in Python.", "Write Python code that {}.",
    "Create a Python function which {}. Include an example.", "Write a Python program that {} and explain it.",
    "Can you write a function that {}?", "Write a JavaScript function that {}.", "Write a class that {}.",
    "Implement a function that {}. Add comments and tests.", "I need a short script that {}.",
    "Write a Python function called solve that {}. Use type hints.", "Please write a C function that {}.",
)  # fmt: skip
TOPICS = (
    "the moon", "recycling", "the Roman Empire", "democracy", "volcanoes", "honey bees", "the water cycle",
    "jazz music",
    "electric cars", "learning a language", "the human heart", "chess", "climate change", "coffee",
    "the printing press",
    "sleep", "rivers", "friendship", "a lost dog", "a dragon who is afraid of fire", "a lighthouse keeper",
    "gravity",
    "vaccines", "the stock market", "gardening", "time management", "remote work", "dinosaurs",
    "the Great Wall of China",
    "black holes", "bread baking", "public speaking", "an old clock", "the internet", "earthquakes", "birds",
    "budgeting",
    "healthy breakfasts", "the industrial revolution", "a robot who paints", "tea", "space travel",
    "a small village",
)  # fmt: skip
PROSE_FORMS = (
    "Explain {} to a child.", "Write a short story about {}.", "What should I know about {}?",
    "Describe {} in detail.",
    "Write a poem about {}.", "Why is {} important?", "Write an essay about {}.", "Give me five facts about {}.",
    "Tell me about {}.", "Write a blog post about {}.", "What are the advantages and disadvantages of {}?",
    "Write three paragraphs about {}.", "How did {} change the world?", "Summarize what is known about {}.",
)  # fmt: skip

# None of these is trained on.
HELD_OUT = {
    "code": (
        "Write a Python function that checks whether a number is prime.",
        "Write a Python function that checks if a string is a palindrome.",
        "Write a Python class for a bank account with deposit and withdraw methods.",
        "Write a Python function to perform binary search on a sorted list.",
        "Write a Python program that plays rock, paper, scissors against the user.",
        "Implement a stack in Python with push, pop and peek.",
        "Write a function that checks whether two strings are anagrams.",
        "Write a Python script that renames all files in a folder.",
        "Write a SQL query that selects the ten customers with the highest total orders.",
        "Write a Python function that solves the towers of Hanoi.",
        "Write a JavaScript function that debounces another function.",
        "Write a Python decorator that measures how long a function takes.",
    ),
    "arithmetic": (
        "What is 347 + 589? Show your steps.",
        "A bakery sells 24 loaves a day at $3.50 each. How much does it earn in a week?",
        "Calculate 15% of 240 step by step.",
        "A car travels 180 miles in 3 hours. How far does it go in 7 hours?",
        "Solve for x: 3x + 7 = 25.",
        "What is the area of a circle with radius 6?",
        "List the multiples of 7 up to 140 and add them together.",
        "If 8 workers build a wall in 6 days, how long do 12 workers need?",
        "Calculate the average of 12, 18, 25, 31 and 44.",
        "A shirt costs $40 and is reduced by 25%. What is the new price?",
        "What is 23 * 47? Explain each step.",
        "How many seconds are there in 3 days?",
    ),
    "prose": (
        "Explain how photosynthesis works.",
        "Write a short story about a girl who finds a map in her attic.",
        "What are the main causes of the First World War?",
        "Describe a walk through an autumn forest.",
        "Write a letter to a friend about moving to a new city.",
        "How do airplanes fly?",
        "What makes a good leader?",
        "Write a paragraph about the importance of reading.",
        "Explain the difference between weather and climate.",
        "Tell me about the life of Marie Curie.",
        "What are some tips for a job interview?",
        "Write a poem about the sea.",
    ),
}


def _code(r: random.Random) -> str:
    return r.choice(CODE_FORMS).format(r.choice(CODE_TASKS))


def _prose(r: random.Random) -> str:
    return r.choice(PROSE_FORMS).format(r.choice(TOPICS))


MAKERS = {"code": _code, "arithmetic": arithmetic, "prose": _prose}


def beginning(r: random.Random, shares: dict[str, float], made: float) -> tuple[str, bool]:
    """The words of a first user turn, and whether they are all of it.

    shares: how often the words are of each kind; the rest has none, so the trunk writes the whole turn. made: how
    often words of a kind are a whole prompt from a template.
    """
    point = r.random()
    for kind, share in shares.items():
        point -= share
        if point < 0:
            whole = r.random() < made
            words = MAKERS[kind](r) if whole else r.choice(OPENERS[kind])
            return (words, whole) if words not in HELD_OUT[kind] else ("", False)
    return "", False
