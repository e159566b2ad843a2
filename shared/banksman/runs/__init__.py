"""The protocol of a run: what the log means, what comes next, and who may do it.

`state` folds a log, `steps` says what comes next, `record` says what an outcome becomes in the log,
`delivery` what a work message means: all pure. `owner`, `settle`, `handlers`, `runner` and `door` are the
procedures of the four peers, written against `ports` and free of any I/O of their own, so that the model
test runs this very code under crashes, duplicates, reordering and delay at every await.
"""
