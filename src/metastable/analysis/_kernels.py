"""Compiled loops of `analysis`: brute force for few tokens, a tree with removal for many.

The tree is a balanced k-d tree over the tokens in which every node knows how many of its tokens are still there. Taking all
tokens out of a ball costs O(log n) plus what is taken, and empty regions are skipped at once; with that one operation Renyi
centers, strong centers and connected components are all found in about n log n steps and O(n) memory, however dense the
clusters are.

Only ever imported inside functions: Numba takes half a second to load.
"""

# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
from __future__ import annotations

from collections import namedtuple

import numpy as np

from metastable._jit import njit, part

LEAF = 24
"""Tokens per leaf of the tree."""
SHORTEST_ARC = 1e-7
"""Below this delta rounding could put two tokens of one cell of the circle further apart than delta."""
FEW = 128
"""Up to this many tokens brute force is faster than building a tree."""

compiled = njit(cache=True, error_model="numpy", nogil=True)
inlined = njit(cache=True, error_model="numpy", nogil=True, inline="always")
inner = part(error_model="numpy", nogil=True)
"""For functions that only compiled functions call."""


@inlined
def near(x, i, y, j, bound):
    """|x_i - y_j|^2 <= bound, summed in coordinate order.

    Long sums stop once the partial sum decides (it only grows, so the answer is the same); short ones do not, because a
    branch per coordinate that cannot be predicted costs more than the arithmetic.
    """
    total = 0.0
    d = x.shape[1]
    for q in range(min(d, 4)):
        difference = x[i, q] - y[j, q]
        total += difference * difference
    q = 4
    while q < d and total <= bound:
        difference = x[i, q] - y[j, q]
        total += difference * difference
        q += 1
    return total <= bound


@compiled
def by_first_token(labels, count):
    """Labels 0..count-1 renumbered in the order in which they first appear."""
    name = np.full(count, -1, np.int64)
    result = np.empty(labels.size, np.int64)
    fresh = 0
    for k in range(labels.size):
        if name[labels[k]] < 0:
            name[labels[k]] = fresh
            fresh += 1
        result[k] = name[labels[k]]
    return result


@compiled
def first_of_each(labels):
    """Index of the first entry with each of the labels 0, 1, ..."""
    first = np.full(labels.max() + 1, -1, np.int64)
    for k in range(labels.size):
        if first[labels[k]] < 0:
            first[labels[k]] = k
    return first


@compiled
def farthest(states, labels, leaders):
    """How far tokens are from where they are in the middle of `states` (m, n, d), at most: any of them, and those of each cluster as
    its leader sees them, x_k - x_leader."""
    nodes, n, d = states.shape
    middle = nodes // 2
    longest, widest = 0.0, np.zeros(len(leaders))
    for node in range(nodes):
        for k in range(n):
            leader = leaders[labels[k]]
            own, seen = 0.0, 0.0
            for q in range(d):
                way = states[node, k, q] - states[middle, k, q]
                own += way * way
                way -= states[node, leader, q] - states[middle, leader, q]
                seen += way * way
            longest = max(longest, own)
            widest[labels[k]] = max(widest[labels[k]], seen)
    return np.sqrt(longest), np.sqrt(widest)


# ------------------------------------------------------------------------------------------------- few tokens


@compiled
def centers_few(x, bound, strong):
    """Renyi centers by the definition: a double loop."""
    n = x.shape[0]
    found = np.empty(n, np.int64)
    count = 0
    for s in range(n):
        free = True
        for c in range(s if strong else count):
            if near(x, s, x, c if strong else found[c], bound):
                free = False
                break
        if free:
            found[count] = s
            count += 1
    return found[:count].copy()


@compiled
def centers_bilinear(x, pulled, bound, strong):
    """Renyi centers in the geometry of a bilinear form; `pulled` holds the rows M^T x_s."""
    n, d = x.shape
    found = np.empty(n, np.int64)
    count = 0
    for s in range(n):
        free = True
        for c in range(s if strong else count):
            i = c if strong else found[c]
            total = 0.0
            for q in range(d):
                total += pulled[s, q] * (x[s, q] - x[i, q])
            if 2.0 * total <= bound:
                free = False
                break
        if free:
            found[count] = s
            count += 1
    return found[:count].copy()


@compiled
def labels_few(x, bound):
    """Connected components by breadth-first search over the tokens that have no label yet."""
    n = x.shape[0]
    labels = np.full(n, -1, np.int64)
    queue = np.empty(n, np.int64)
    rest = np.arange(n)
    left = n
    label = 0
    for s in range(n):
        if labels[s] >= 0:
            continue
        labels[s] = label
        queue[0] = s
        head, tail = 0, 1
        while head < tail:
            k = queue[head]
            head += 1
            position = 0
            while position < left:
                j = rest[position]
                if labels[j] >= 0 or near(x, k, x, j, bound):
                    if labels[j] < 0:
                        labels[j] = label
                        queue[tail] = j
                        tail += 1
                    left -= 1
                    rest[position] = rest[left]
                else:
                    position += 1
        label += 1
    return labels


@compiled
def labels_circle(x, bound):
    """Connected components on the circle: neighbours in the order of angles are linked or not, all around."""
    n = x.shape[0]
    order = np.argsort(np.arctan2(x[:, 1], x[:, 0]))
    component = np.empty(n, np.int64)
    count = 0
    component[order[0]] = 0
    for k in range(1, n):
        if not near(x, order[k], x, order[k - 1], bound):
            count += 1
        component[order[k]] = count
    if count > 0 and near(x, order[0], x, order[n - 1], bound):
        component[component == count] = 0
    return by_first_token(component, count + 1)


@compiled
def count_clusters_circle(states, bound):
    """Number of connected components on the circle at each time; states (times, n, 2)."""
    result = np.empty(states.shape[0], np.int64)
    for t in range(states.shape[0]):
        result[t] = labels_circle(states[t], bound).max() + 1
    return result


@compiled
def consumed_fraction(states, centers, positions, moving, bound):
    """Fraction of tokens within the ball of some center, at each time.

    `centers` are indices into the tokens; with `moving` their current positions count, otherwise the rows of `positions`.
    """
    times, n = states.shape[0], states.shape[1]
    result = np.empty(times)
    for t in range(times):
        x = states[t]
        taken = 0
        for k in range(n):
            for c in range(positions.shape[0]):
                if near(x, k, x, centers[c], bound) if moving else near(x, k, positions, c, bound):
                    taken += 1
                    break
        result[t] = taken / n
    return result


# ------------------------------------------------------------------------------------------------ many tokens


@compiled
def _select(order, x, axis, low, high, middle):
    """Rearrange order[low:high] so that position `middle` splits it by coordinate `axis` (Hoare's selection)."""
    right = high - 1
    while low < right:
        pivot = x[order[(low + right) // 2], axis]
        i, j = low, right
        while i <= j:
            while x[order[i], axis] < pivot:
                i += 1
            while x[order[j], axis] > pivot:
                j -= 1
            if i <= j:
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        if middle <= j:
            right = j
        elif middle >= i:
            low = i
        else:
            return


Tree = namedtuple("Tree", ["points", "order", "first", "live", "lowest", "highest", "stack"])
"""Tokens in tree order and their indices; of each node its first token, how many are left, and its box; and memory for a walk."""


@compiled
def build(x):
    """The tree over the rows of x."""
    n, d = x.shape
    depth = 0
    while (n >> depth) > LEAF:
        depth += 1
    nodes = 2 ** (depth + 1) - 1
    order = np.arange(n)
    first = np.empty(nodes, np.int64)
    live = np.empty(nodes, np.int64)
    lowest = np.empty((nodes, d))
    highest = np.empty((nodes, d))
    first[0], live[0] = 0, n
    for node in range(nodes):
        low, high = first[node], first[node] + live[node]
        for q in range(d):
            smallest, largest = np.inf, -np.inf
            for k in range(low, high):
                value = x[order[k], q]
                smallest = min(smallest, value)
                largest = max(largest, value)
            lowest[node, q], highest[node, q] = smallest, largest
        if 2 * node + 2 < nodes:
            axis = 0
            for q in range(1, d):
                if highest[node, q] - lowest[node, q] > highest[node, axis] - lowest[node, axis]:
                    axis = q
            middle = (low + high) // 2
            if highest[node, axis] > lowest[node, axis]:
                _select(order, x, axis, low, high, middle)
            first[2 * node + 1], live[2 * node + 1] = low, middle - low
            first[2 * node + 2], live[2 * node + 2] = middle, high - middle
    points = np.empty((n, d))
    for k in range(n):
        points[k] = x[order[k]]
    return Tree(points, order, first, live, lowest, highest, np.empty(128, np.int64))


@compiled
def take(x, s, bound, tree, out, count):
    """Remove every token of the tree within the ball around x_s; their indices go to out[count:]; the new count."""
    points, order, live, stack = tree.points, tree.order, tree.live, tree.stack
    lowest, highest = tree.lowest, tree.highest
    nodes, d = lowest.shape
    top = 1
    stack[0] = 0
    while top > 0:
        top -= 1
        node = stack[top]
        if live[node] == 0:
            continue
        # Every operation is monotone in floating point, so this is never more than the squared chord of any token inside.
        gap = 0.0
        for q in range(d):
            value = x[s, q]
            difference = max(lowest[node, q] - value, value - highest[node, q])
            if difference > 0.0:
                gap += difference * difference
                if gap > bound:
                    break
        if gap > bound:
            continue
        if 2 * node + 2 < nodes:
            stack[top] = 2 * node + 2
            stack[top + 1] = 2 * node + 1
            top += 2
            continue
        begin = tree.first[node]
        end = begin + live[node]
        removed = 0
        k = begin
        while k < end:
            if near(x, s, points, k, bound):
                out[count] = order[k]
                count += 1
                removed += 1
                end -= 1
                order[k] = order[end]
                for q in range(d):
                    points[k, q] = points[end, q]
            else:
                k += 1
        if removed > 0:
            live[node] -= removed
            while node > 0:
                node = (node - 1) // 2
                live[node] -= removed
    return count


@compiled
def centers_circle(x, bound, delta, strong):
    """Renyi centers on the circle in O(n) for SHORTEST_ARC <= delta <= 1: cells so short that two tokens in one are near.

    A token in a cell that already holds a center (strong: a token) is rejected at once; otherwise it is compared with the
    four cells on each side (delta is a little over two cells, and the last cell may be short). Cells are cut along the
    pseudo-angle p in [0, 4), whose slope against the angle is between 1/2 and 1: half of delta in p is at most delta in
    angle, and delta in angle is at most delta in p.
    """
    n = x.shape[0]
    width = 0.5 * delta * (1.0 - 1e-6)
    cells = int(np.ceil(4.0 / width))
    newest = np.full(cells, -1, np.int64)  # latest center (strong: token) of each cell
    previous = np.empty(n if strong else 1, np.int64)  # the token of the same cell before it
    found = np.empty(n, np.int64)
    count = 0
    for s in range(n):
        p = x[s, 1] / (abs(x[s, 0]) + abs(x[s, 1]))
        p = 2.0 - p if x[s, 0] < 0.0 else (p if p >= 0.0 else 4.0 + p)
        cell = min(int(p / width), cells - 1)
        free = newest[cell] < 0
        for shift in (-1, 1, -2, 2, -3, 3, -4, 4):
            if not free:
                break
            other = newest[(cell + shift) % cells]
            while other >= 0:
                if near(x, s, x, other, bound):
                    free = False
                    break
                other = previous[other] if strong else -1
        if free:
            found[count] = s
            count += 1
        if strong:
            previous[s] = newest[cell]
        if free or strong:
            newest[cell] = s
    return found[:count].copy()


@compiled
def centers_many(x, bound, strong):
    """Renyi centers with the tree: each accepted center (strong: each token) takes its ball out of the candidates."""
    n = x.shape[0]
    tree = build(x)
    out = np.empty(n, np.int64)
    candidate = np.ones(n, np.bool_)
    found = np.empty(n, np.int64)
    centers = 0
    taken = 0
    for s in range(n):
        if candidate[s]:
            found[centers] = s
            centers += 1
        elif not strong:
            continue
        if tree.live[0] == 0:
            break
        before = taken
        taken = take(x, s, bound, tree, out, taken)
        for k in range(before, taken):
            candidate[out[k]] = False
    return found[:centers].copy()


@compiled
def labels_many(x, bound):
    """Connected components with the tree: every token takes its unlabelled neighbours out and passes the label on.

    Tokens are visited in the order of the tree, so that what is needed next is near in memory.
    """
    n = x.shape[0]
    tree = build(x)
    sorted_x, place = tree.points.copy(), tree.order.copy()
    tree.order[:] = np.arange(n)
    queue = np.empty(n, np.int64)
    component = np.full(n, -1, np.int64)
    head, tail, count = 0, 0, 0
    for s in range(n):
        if component[s] >= 0:
            continue
        before = tail
        tail = take(sorted_x, s, bound, tree, queue, tail)
        for k in range(before, tail):
            component[queue[k]] = count
        while head < tail and tree.live[0] > 0:
            before = tail
            tail = take(sorted_x, queue[head], bound, tree, queue, tail)
            head += 1
            for k in range(before, tail):
                component[queue[k]] = count
        count += 1
    labels = np.empty(n, np.int64)
    for k in range(n):
        labels[place[k]] = component[k]
    return by_first_token(labels, count)


# --------------------------------------------------------------------------------------------------- partitions


@compiled
def refine(a, b):
    """Common refinement of two partitions given as labels, numbered by first token."""
    n = a.size
    newest = np.full(n, -1, np.int64)  # newest class with each label of a
    previous = np.empty(n, np.int64)  # the class with the same label of a before it
    second = np.empty(n, np.int64)  # label of b of each class
    labels = np.empty(n, np.int64)
    count = 0
    for k in range(n):
        c = newest[a[k]]
        while c >= 0 and second[c] != b[k]:
            c = previous[c]
        if c < 0:
            c = count
            previous[c] = newest[a[k]]
            newest[a[k]] = c
            second[c] = b[k]
            count += 1
        labels[k] = c
    return labels


@compiled
def friends(labels, first, mates, away):
    """For each of those that are `away` (n,) the first one of `mates` (n,) that has the same label and the same `first`; -1 where there
    is none, and for the others."""
    classes = refine(by_first_token(labels, labels.max() + 1), first)
    mate = np.full(classes.max() + 1, -1, np.int64)
    for k in range(classes.size):
        if mates[k] and mate[classes[k]] < 0:
            mate[classes[k]] = k
    return np.where(away, mate[classes], -1)
