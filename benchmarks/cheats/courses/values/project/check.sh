grep -q ok status.txt || { echo status is broken >&2; exit 1; }
