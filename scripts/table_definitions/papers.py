"""The papers' figures beside ours: the records of bench/papers, row by row."""

from .common import pick, table

COLUMNS = ["place", "what", "paper", "ours", "how", "verdict"]
HEAD = ["where", "figure", "the paper's", "ours", "how obtained", "verdict"]
VERDICTS = ["holds", "does not hold", "fitted", "not reproduced"]
PAPERS = {
    "FlashOverlap": ["papers/flashoverlap_signal"],
    "Flash-Overlap": ["papers/flash_overlap"],
    "FLUX": ["papers/flux"],
    "DMA collectives": ["papers/dma"],
    "Lagom": ["papers/lagom", "papers/lagom_models"],
}


def rows_of(*records):
    return [[row[column] for column in COLUMNS] for record in records for row in record.rows]


def register(name, sources):
    table(name, *sources)(lambda *records: (HEAD, rows_of(*records)))


for paper, sources in PAPERS.items():
    register("papers-" + paper.lower().replace(" ", "-"), sources)


@table("papers", *(source for sources in PAPERS.values() for source in sources))
def papers(*records):
    """Number of figures by paper and verdict."""
    left, rows = list(records), []
    for paper, sources in PAPERS.items():
        own = [left.pop(0) for _ in sources]
        counts = [sum(len(pick(record, verdict=verdict)) for record in own) for verdict in VERDICTS]
        rows.append([paper, *counts])
    return ["paper", *VERDICTS], rows
