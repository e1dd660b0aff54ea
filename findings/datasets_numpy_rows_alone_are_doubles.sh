#!/bin/bash
# datasets 5.2.0: with the format "numpy" a row that is read alone has other types than the same row read with others.
#
# A column of Python floats is a float64 number in table[i], and a float32 number in the rows that table.__getitems__
# returns, which is what torch's DataLoader calls. The two differ by rounding. A column of lists of several lengths is a
# writable array in table[i], and a read-only one among others. So a program that is right with rows by index may stop,
# or compute in another precision, behind a DataLoader, and who compares a row alone with the row in a batch finds a
# difference that no code of the user's made. The format "torch" gives the same both ways if no value is missing.
#
# Seen, of one row: alone float64, writable; with another float32, read-only.
source "$(dirname "$0")/install.bash"
install datasets==5.2.0 numpy==2.4.6

python -W ignore - <<'END'
import datasets

datasets.disable_progress_bars()
table = datasets.Dataset.from_dict({"score": [0.1, 0.2], "words": [[1, 2, 3], [4, 5]]}).with_format("numpy")
alone, among = table[0], table.__getitems__([0, 1])[0]
for name, row in (("alone", alone), ("with another", among)):
    print(f"{name}: {row['score'].dtype}, {'writable' if row['words'].flags.writeable else 'read-only'}")
assert (alone["score"].dtype, among["score"].dtype) == ("float64", "float32")
assert alone["score"] != among["score"]
assert alone["words"].flags.writeable and not among["words"].flags.writeable
END
