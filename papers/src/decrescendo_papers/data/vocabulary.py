"""A public vocabulary of English words, and the tokeniser that goes with it.

A vocabulary counted on the training texts is a function of private data. This one comes from `wordfreq`, which
counts words in encyclopedias, subtitles, news, books, web pages and other collections at large.
"""

import hashlib
import re
from itertools import islice

from decrescendo.base import require
from decrescendo.errors import FileRefused, check_integer

PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2
WORDS = 10_000
TOKEN = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
# Of the 10,000 words, joined by line feeds: what all figures were made with (wordfreq 3.1.1, which is its last).
SHA256 = "37aa8b870075bac5d36bfe97861b4d4cda96316475e8c8fa536c839be6bd3bbb"


def tokens(text: str) -> list[str]:
    """Words of a text: lower case, runs of letters with single apostrophes inside, everything else left out.

    The line breaks of web pages, ``<br />``, are left out as a whole.

    >>> tokens("It's GREAT.<br /><br />10/10, really: 'wow'!")
    ["it's", 'great', 'really', 'wow']
    """
    return TOKEN.findall(text.replace("<br />", " ").replace("’", "'").lower())


def english_words() -> dict[str, int]:
    """The 10,000 most frequent English words of `wordfreq` that `tokens` can give, numbered from 2.

    Code 0 is left for padding, 1 for words that are not among them.

    Raises:
        MissingExtra: wordfreq is not installed.
        FileRefused: the installed wordfreq has another list.

    >>> list(english_words().items())[:3]
    [('the', 2), ('to', 3), ('and', 4)]
    """
    listed = require("wordfreq").iter_wordlist("en", wordlist="large")
    words = list(islice((word for word in listed if TOKEN.fullmatch(word)), WORDS))
    digest = hashlib.sha256("\n".join(words).encode()).hexdigest()
    if digest != SHA256:
        raise FileRefused(
            f"the vocabulary must have SHA-256 {SHA256[:16]}.., got {digest[:16]}.. from the installed wordfreq. "
            "Run pip install wordfreq==3.1.1"
        )
    return {word: code for code, word in enumerate(words, FIRST_WORD)}


def encode(text: str, words: dict[str, int], length: int) -> list[int]:
    """The codes of the first ``length`` tokens of ``text``, without padding.

    Args:
        text: any.
        words: from `english_words`.
        length: >= 1.

    >>> encode("The zyzzyva and the", {"the": 2, "and": 4}, 3)
    [2, 1, 4]
    """
    size = check_integer("length", length, at_least=1)
    return [words.get(token, UNKNOWN) for token in tokens(text)[:size]]
