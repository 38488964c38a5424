import json
import sys

for line in sys.stdin:
    (words,) = json.loads(line)
    counts = []
    for word in words:
        counts.append(sum(1 for other in words if other == word))
    print(json.dumps(counts))
