"""The statistics of the finals: pure functions of arrays, each with its source.

`fit` turns samples into levels and standard errors, `boundary` says how large a difference must be, `decision` draws
the conclusion, `cautions` says what looked wrong with the data. Around them `rule` and `standings` are the input and
the output of the finals, `record` holds the samples, and `verdict` goes from the record to the standings.
"""
