"""Programs that run inside of replays, read as text and written into them. They import nothing but the standard
library, and run with any Python from 3.8 on. The framework itself imports only `race.inside.plain`.
"""
