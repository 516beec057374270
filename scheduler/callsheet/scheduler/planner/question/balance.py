"""How what waits divides among the resources of a kind, where classes can use several of them.

Were it divided by sizes alone, a resource that some classes cannot do without would look dearer than others of its kind
to all the rest, and these would rather wait for the cheaper one, however busy, than start on the dearer one while it
idles. So who can go elsewhere counts elsewhere, as far as that makes prices equal: a balanced fractional assignment,
found by moving shares in proportion to 1 / price again and again.
"""

from __future__ import annotations

import numpy as np
from callsheet.scheduler.planner.question.instance import Floats, Integers

MOST_STEPS = 16
# Shares that move less than this are as good as balanced.
CLOSE = 1e-3


def balanced_shares(group: Integers, resource: Integers, weight: Floats, capacity: Floats, fixed: Floats) -> Floats:
    """Shares of a class at each of the resources of a kind that it can use, shape (entries,).

    Args:
        group: Class and kind of each entry, as one number, shape (entries,).
        resource: Index of the resource of each entry, shape (entries,).
        weight: Weight of the class of each entry, shape (entries,).
        capacity: Units of each resource, shape (resources,); one without any gets no share.
        fixed: Weight that waits for each resource and can go nowhere else, shape (resources,).
    """
    share = _normalised(capacity[resource], group)
    usable = capacity > 0
    for _ in range(MOST_STEPS):
        if (share == np.rint(share)).all():
            break
        waiting = fixed + np.bincount(resource, weights=weight * share, minlength=len(capacity))
        price = np.divide(waiting, capacity, out=np.ones(len(capacity)), where=usable)
        least = price[price > 0.0].min(initial=np.inf)
        moved = _normalised(share / np.maximum(price, least)[resource], group)
        settled = np.abs(moved - share).max() < CLOSE
        share = moved
        if settled:
            break
    return share


def _normalised(share: Floats, group: Integers) -> Floats:
    total = np.bincount(group, weights=share)[group] if len(group) else share
    normalised: Floats = np.divide(share, total, out=np.zeros(len(share)), where=total > 0)
    return normalised
