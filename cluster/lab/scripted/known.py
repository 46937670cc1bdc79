"""What the pretended model knows by heart."""

from __future__ import annotations

import re

SKY = (
    "Sunlight looks white, but it holds every colour of the rainbow. When it enters the atmosphere it meets molecules "
    "of nitrogen and oxygen that are far smaller than its waves. They scatter short waves much more strongly than long "
    "ones, an effect named after Lord Rayleigh. Blue light is therefore thrown about in all directions and reaches our "
    "eyes from every part of the sky, while red light travels on almost undisturbed. Violet would be scattered even "
    "more, but the Sun sends less of it, the upper air absorbs some, and our eyes are not very sensitive to it. In the "
    "evening the light crosses much more air, most of the blue is lost on the way, and the west turns orange."
)
UNITS = (
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
)
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
COUNTED = ", ".join(
    [*UNITS, *(ten + end for ten in TENS for end in ("", *(f"-{unit}" for unit in UNITS[:9]))), "one hundred"]
)

REPLIES = (
    (r"capital of France", "The capital of France is Paris."),
    (r"sky is blue", SKY),
    (r"Say hello", "Hello, it is nice to meet you today."),
    (r"numbers from one to one hundred", COUNTED.capitalize() + "."),
    (r"pens and three books", "A pen costs 4 euros, as two pens and three books at 11 euros make 41."),
    (r"price of a lamp", "The factors are 1.2, 0.75 and 1.1, together 0.99, and 118.80 / 0.99 is 120.\nAnswer: 120"),
    (r"knight", "Taking each of the sixteen ways in turn leaves one without a contradiction.\nAnswer: R, S"),
    (r"divisible by exactly one", "50 + 30 + 20 less twice 30 and with 30 once more is 70.\nAnswer: 70"),
    (r"ticket is valid", "Ninety-nine days after 14 February 2024, a leap year.\nAnswer: 2024-05-23"),
    (r"marbles", "Of 84 draws, 5 show one colour and 24 all three.\nAnswer: 55/84"),
    (r"thunderstorm", "What occurs once is h u n d e s o m.\nAnswer: mosednuh"),
    (r"ran a race", "Cleo is first, Ana is last.\nAnswer: Cleo, Dan, Ben, Eva, Ana"),
    (r"Which shapes are in this picture", "I see no picture."),
)


def reply(text: str) -> str:
    """The answer to a text: a line that is to be repeated, what is known, or that it is not."""
    repeated = re.search(r"Repeat this line exactly[^\n]*\n(.+)", text)
    if repeated:
        return repeated.group(1)
    return next((said for pattern, said in REPLIES if re.search(pattern, text)), "I am sorry, I do not know that.")


def thoughts(text: str) -> str:
    """What it thinks before it answers."""
    if re.search(r"pens and three books", text):
        return (
            "The user asks for the price of a pen. Let p be a pen and b a book. Then 2p + 3b = 41 and b = p + 7. "
            "So 2p + 3p + 21 = 41, which gives 5p = 20 and p = 4. Check: 8 + 33 = 41, which is right."
        )
    return "The user wants a short and exact answer. I shall look at what was given and then say it plainly."
