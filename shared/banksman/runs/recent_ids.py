"""Ids that a fold remembers to recognise repeats by, with the moment of each, oldest first.

A conversation may go on for years, and its fold must not grow with it. A repeat comes either soon, or from a
client that sends its request again: the key that gives it the same ids lives 24 hours. So an id is forgotten
when it is older than two days and many newer ones followed; after an outage of days, in which nothing
followed, all are still there.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

KEPT_IDS = 1_000
"""Ids that are remembered whatever their age."""
KEPT_FOR = timedelta(days=2)
"""How long any id is remembered, before the newest one."""


def with_ids(ids: Mapping[str, datetime], *more: str, at: datetime) -> Mapping[str, datetime]:
    """The ids with these as the newest, and without those that may be forgotten."""
    kept = {**ids, **dict.fromkeys(more, at)}
    surplus = len(kept) - KEPT_IDS
    old = [known for known, moment in list(kept.items())[: max(0, surplus)] if at - moment > KEPT_FOR]
    for known in old:
        del kept[known]
    return kept


def without_id(ids: Mapping[str, datetime], gone: str) -> Mapping[str, datetime]:
    """The ids without one of them."""
    return {known: moment for known, moment in ids.items() if known != gone} if gone in ids else ids
