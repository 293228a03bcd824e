"""What a query should find, and what does not count for it, query by query."""

import math


def ranking_of(similarities, positives, ignored=()):
    """Is the 1st, 2nd, ... nearest gallery row that counts a positive? None without a positive.

    A negative tied with a positive stands before it.
    """
    rows = [j for j in range(len(similarities)) if j not in ignored]
    rows.sort(key=lambda j: (-similarities[j], j in positives))
    return [j in positives for j in rows] if positives else None


def graded(similarities, relevance, names):  # arXiv 1803.11285, section 3.2
    """The rankings of one query by difficulty, from the names of its easy, hard and junk gallery images."""
    easy, hard, junk = (
        [names.index(name) for name in relevance[grade]] for grade in ("easy", "hard", "junk")
    )
    return {
        "easy": ranking_of(similarities, easy, hard + junk),
        "medium": ranking_of(similarities, easy + hard, junk),
        "hard": ranking_of(similarities, hard, easy + junk),
    }


def averaged_groups(rows, groups):  # arXiv 2007.12163, section 5.1
    """(the first row, the mean embedding of norm 1, or zeros) of each group; -1: a row is one by itself."""
    members = {}
    for number, group in enumerate(groups):
        key = ("group", int(group)) if group >= 0 else ("alone", number)
        members.setdefault(key, []).append(number)
    found = []
    for numbers in members.values():
        total = [math.fsum(float(rows[n][column]) for n in numbers) for column in range(len(rows[0]))]
        norm = math.hypot(*total)
        found.append((numbers[0], [x / norm if norm > 1e-6 else 0.0 for x in total]))
    return found


def template_embedding(rows, templates, media, template):  # as InsightFace measures IJB-C
    """The sum over the media of a template of the mean of a media's rows, of norm 1, or zeros."""
    members = {}
    for row, of_template, of_media in zip(rows, templates, media):
        if of_template == template:
            members.setdefault(int(of_media), []).append([float(x) for x in row])
    total = [0.0] * len(rows[0])
    for group in members.values():
        for column in range(len(total)):
            total[column] += math.fsum(row[column] for row in group) / len(group)
    norm = math.hypot(*total)
    return [x / norm if norm > 1e-6 else 0.0 for x in total]
