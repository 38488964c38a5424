"""Calls one Python function with the arguments on standard input, and prints each answer.

Started as ``python caller.py``; the first line of standard input says what to call, as JSON: ``root`` (what
``sys.path`` begins with), ``module`` and ``function`` (nothing of which is imported if ``module`` is empty). Each
further line is a packed list of arguments. What the function itself prints goes to standard error.

It keeps no clock and knows no answer: both are in the process that started it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any


def main() -> None:
    """Answer until the input ends."""
    write, dumps, loads = os.write, json.dumps, json.loads
    plain: Any = importlib.import_module("plain")  # it lies beside this file, in the replay
    packed, unpacked = plain.packed, plain.unpacked
    lines = sys.stdin.buffer.read().splitlines()
    asked = loads(lines[0])
    answers = os.dup(1)
    os.dup2(2, 1)
    del sys.path[0]
    sys.path.insert(0, asked["root"])
    function: Any = None
    if asked["module"]:
        function = importlib.import_module(asked["module"])
        for name in asked["function"].split("."):
            function = getattr(function, name)
    for line in lines[1:]:
        out = dumps(packed(function(*unpacked(loads(line))))).encode() + b"\n"
        while out:
            out = out[write(answers, out) :]
    sys.stderr.flush()
    os._exit(0)  # what the interpreter does at its end is no part of the answers


if __name__ == "__main__":
    main()
